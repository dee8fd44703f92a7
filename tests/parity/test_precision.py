"""How far float32 and bfloat16 lie from float64, as rows and as a table in a page."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from ostinato.errors import BadInput
from ostinato.parity.precision import markdown, measure_errors, write_between_markers
from ostinato.parity.subject import Subject


def test_bfloat16_lies_further_than_float32_in_every_tap(builtin: Subject) -> None:
    single, half = (measure_errors(builtin, dtype) for dtype in ("float32", "bfloat16"))
    places = [(row.component, row.op, row.tap) for row in single]
    assert places == [(row.component, row.op, row.tap) for row in half]
    assert ("transformer", "predict", "blocks.*.ffn") in places
    assert ("transformer", "store", "out.layers[*].key_rotated") in places
    assert ("codec", "decode", "pixels") in places
    assert len(set(places)) == len(places)
    for one, other in zip(single, half, strict=True):
        assert one.count == other.count >= 1
        assert one.largest <= other.largest
        if "time" not in one.tap and not one.levels and one.largest > 0:
            assert one.largest < 1e-5
            assert other.largest > 1e-4
    text = markdown(single, "builtin", "float32")
    assert "| transformer | predict | `blocks.*.ffn` |" in text
    assert "ostinato verify builtin --errors --dtype float32" in text
    assert "| codec | decode | `out.frames` |" in text


def test_other_dtypes_are_refused(builtin: Subject) -> None:
    with pytest.raises(BadInput, match="dtype is 'int8'"):
        measure_errors(builtin, "int8")


def test_only_what_lies_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "numerics.md"
    page.write_text("# Numerics\n\nbefore\n\n<!-- begin a -->\nold\n<!-- end a -->\n\nafter\n")
    write_between_markers(page, "a", "new\n")
    assert page.read_text() == (
        "# Numerics\n\nbefore\n\n<!-- begin a -->\nnew\n<!-- end a -->\n\nafter\n"
    )
    write_between_markers(page, "b", "more\n")
    write_between_markers(page, "b", "most\n")
    assert page.read_text().endswith("after\n\n<!-- begin b -->\nmost\n<!-- end b -->\n")
    write_between_markers(tmp_path / "made.md", "a", "new\n")
    assert (tmp_path / "made.md").read_text().startswith("# Numerics\n")
    page.write_text("<!-- begin a -->\n")
    with pytest.raises(BadInput, match="without the other"):
        write_between_markers(page, "a", "new\n")
    with pytest.raises(BadInput, match="cannot be written"):
        write_between_markers(tmp_path / "no" / "page.md", "a", "new\n")


@pytest.mark.parametrize("poisoned", [0, -1])
def test_nan_is_infinitely_far_wherever_it_comes(builtin: Subject, poisoned: int) -> None:
    """One value of one call among many of a kind, the first or the last of them."""
    run, subject = builtin.recorded, Subject(builtin.source, builtin.options)
    predictions = [index for index, call in enumerate(run.calls) if call.op == "predict"]
    calls = list(run.calls)
    call = calls[predictions[poisoned]]
    prediction = call.outputs["prediction"]
    assert isinstance(prediction, torch.Tensor)
    prediction = prediction.clone()
    prediction.view(-1)[0] = torch.nan
    calls[predictions[poisoned]] = dataclasses.replace(call, outputs={"prediction": prediction})
    subject.recorded = dataclasses.replace(run, calls=tuple(calls))  # type: ignore[misc]
    rows = measure_errors(subject, "float32")
    row = next(row for row in rows if (row.op, row.tap) == ("predict", "out.prediction"))
    assert row.count == len(predictions) > 1
    assert row.largest == row.rms == math.inf
    assert f"| `out.prediction` | {row.count} | inf | inf | inf |" in markdown(
        rows, "builtin", "float32"
    )
