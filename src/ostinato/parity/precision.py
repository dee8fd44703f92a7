"""How far float32 and bfloat16 lie from the float64 value, tap by tap."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from ostinato.errors import BadInput
from ostinato.parity.aligner import CallRecord, replay
from ostinato.parity.compare import values_of
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.perturb import module_of
from ostinato.parity.subject import Subject
from ostinato.parity.tolerances import ROUNDING, measure
from ostinato.parity.values import Values, rebuilt
from ostinato.parity.written import require_writable, writing

DTYPES = ("float32", "bfloat16")
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=\[)\d+(?=\])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """One kind of tap, over all layers, calls and occurrences: `count` of them.

    largest: the largest error over the largest float64 value of its tap. rms: likewise of the
    root mean squares. levels: of whole numbers, the largest difference; 0 for others. An error that
    is NaN counts as infinite, since no other is worse; JSON has no infinity and shows null.
    """

    component: str
    op: str
    tap: str
    count: int
    largest: float
    rms: float
    levels: float


def measure_errors(subject: Subject, dtype: str) -> tuple[ErrorRow, ...]:
    """Run a served request's calls in `dtype` and in float64 on the same inputs.

    dtype: a name of DTYPES; in bfloat16 weights and activations are both cast.
    Raises BadInput for another dtype, NothingMeasured when no tap was seen.
    """
    if dtype not in DTYPES:
        raise BadInput(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    recorded, reference = subject.recorded, subject.reference_component
    if recorded.num_taps == 0:
        raise NothingMeasured("no value was seen inside any component")
    expected = replay(recorded.calls, reference)
    rows: dict[tuple[str, str, str], ErrorRow] = {}
    for found, truth in zip(_in_dtype(subject, recorded.calls, dtype), expected, strict=True):
        theirs = dict(values_of(truth))
        for key, value in values_of(found):
            other = theirs[key]
            if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
                continue  # words have no distance
            row = _row(found, key.name, value, other)
            place = (row.component, row.op, row.tap)
            rows[place] = _joined(rows[place], row) if place in rows else row
    return tuple(rows.values())


def markdown(rows: Iterable[ErrorRow], model: str, dtype: str) -> str:
    """Return a table for a page of documentation."""
    unit = ROUNDING[getattr(torch, dtype)]
    lines = [
        f"## `{model}` in {dtype}, against float64",
        "",
        f"`ostinato verify {model} --errors --dtype {dtype}`: largest error of each kind of tap "
        "relative to the largest float64 value of that tap, and the same of root mean squares; "
        f"u = {unit:.3g} is one rounding of {dtype}.",
        "",
        "| component | op | tap | values | largest | in u | rms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = f"{row.levels:g} level" if row.levels else f"{row.largest:.2e}"
        roundings = "" if row.levels else f"{row.largest / unit:.1f}"
        lines.append(
            f"| {row.component} | {row.op} | `{row.tap}` | {row.count} | {shown} | {roundings} "
            f"| {row.rms:.2e} |"
        )
    return "\n".join(lines) + "\n"


def write_between_markers(path: Path, name: str, text: str) -> None:
    """Put text between `<!-- begin NAME -->` and `<!-- end NAME -->`; all else stays.

    Markers are added at the end of a file that lacks them; a missing file is made. Raises as
    `require_markers` does.
    """
    page, (begin, end) = _page(path, name), _markers(name)
    if begin not in page:
        page = f"{page.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    with writing(path):
        path.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")


def require_markers(path: Path, name: str) -> None:
    """Look whether text can be put there, before it is made.

    Raises BadInput for a file with one marker only, InvalidOutput for one that cannot be written.
    """
    _page(path, name)
    require_writable(path)


def _page(path: Path, name: str) -> str:
    with writing(path):
        page = path.read_text(encoding="utf-8") if path.exists() else "# Numerics\n"
    begin, end = _markers(name)
    if (begin in page) != (end in page):
        raise BadInput(f"{path} has one of the markers {begin!r}, {end!r} without the other")
    return page


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"


def _in_dtype(subject: Subject, calls: tuple[CallRecord, ...], dtype: str) -> Iterable[CallRecord]:
    if dtype == "float32":
        return calls
    resident, kind = subject.resident(), cast("torch.dtype", getattr(torch, dtype))
    for name in subject.weighted:
        module_of(resident.component(name), name).to(kind)
    return replay(calls, resident.component, lambda call: _cast(call.inputs, kind))


def _cast(inputs: Values, dtype: torch.dtype) -> Values:
    return {name: _cast_value(value, dtype) for name, value in inputs.items()}


def _cast_value(value: object, dtype: torch.dtype) -> object:
    """Cast activations; scalars such as a timestep are no activations and stay as they are."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
        return value.to(dtype)
    if isinstance(value, tuple):
        whole = cast("tuple[object, ...]", value)
        return rebuilt(whole, [_cast_value(item, dtype) for item in whole])
    return value


def _row(call: CallRecord, name: str, found: torch.Tensor, expected: torch.Tensor) -> ErrorRow:
    errors = measure(found, expected)
    return ErrorRow(
        component=call.component,
        op=call.op,
        tap=_INDEX.sub("*", name),
        count=1,
        largest=_at_worst(errors.largest),
        rms=_at_worst(errors.rms),
        levels=0.0 if found.is_floating_point() else _at_worst(errors.absolute),
    )


def _at_worst(error: float) -> float:
    """Return what orders: max() passes over NaN or keeps it, by which comes first."""
    return math.inf if math.isnan(error) else error


def _joined(one: ErrorRow, other: ErrorRow) -> ErrorRow:
    return ErrorRow(
        component=one.component,
        op=one.op,
        tap=one.tap,
        count=one.count + other.count,
        largest=max(one.largest, other.largest),
        rms=max(one.rms, other.rms),
        levels=max(one.levels, other.levels),
    )
