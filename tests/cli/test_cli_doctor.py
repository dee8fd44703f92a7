"""`ostinato doctor`: what it prints, what it counts as broken, what it only notes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ostinato.backend.batch_rules import NEVER, BatchRules, Finding
from ostinato.cli import _doctor, _machine, main
from ostinato.cli._exactness import Setting, family_line, findings_table, rule_lines
from ostinato.media import Video
from ostinato.models.registry import open_model

RULES = BatchRules(
    linear_rows=4,
    activation_multiple=16,
    attention=True,
    norms=True,
)
TABLE = (
    Finding(op="linear", shape="64 to 64", needs=4, largest_difference=1e-6),
    Finding(op="attention", shape="5 on 5", needs=1, largest_difference=0.0),
)


@pytest.fixture
def _probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Verdicts without measuring; the probe has its own tests."""
    monkeypatch.setattr(_doctor, "probe_batch_rules", lambda: RULES)
    monkeypatch.setattr("ostinato.runtime.turns.probe_batch_rules", lambda: RULES)
    monkeypatch.setattr(_doctor, "probe_thoroughly", lambda _dtype: TABLE)
    threads = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == threads


def _run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, dict[str, object]]:
    code = main(["doctor", *flags, "--json"])
    *text, last = capsys.readouterr().out.splitlines()
    return code, "\n".join(text), json.loads(last)


def test_measures_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, document = _run(capsys, "--quick")
    assert code == 0, text
    assert document["name"] == "doctor"
    assert document["passed"]
    figures = document["figures"]
    assert figures["checks"] == figures["checks_passed"] > 4
    assert figures["linear_rows"] >= 1
    assert torch.backends.cpu.get_cpu_capability() in text
    assert torch.__version__ in text
    assert "doctor: passed" in text
    assert document["detail"]["findings"] == []


@pytest.mark.usefixtures("_probes")
def test_says_the_rules_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "2")
    code, text, document = _run(capsys)
    assert code == 0, text
    for words in (
        "at least 4 rows a request",
        "multiples of 16 elements a row",
        "stacked freely",
        "FLOAT32 T1",
        "BFLOAT16 T2",
        "from 4 rows",
    ):
        assert words in text
    exact = document["detail"]["exact"]
    assert exact["builtin"].startswith("stacked: two small requests shared ")
    assert "So concurrent requests run, on an engine with max_batch above 1" in text
    assert "conv2d" not in text.partition("OPERATION")[0]
    assert exact["wan"].startswith("stacked from 4 tokens a request on")
    assert len(document["detail"]["findings"]) == 4 * len(TABLE)
    figures = document["figures"]
    assert figures["linear_rows_t1"] == figures["linear_rows_t2"] == figures["linear_rows"] == 4


@pytest.mark.usefixtures("_probes")
def test_quick_leaves_the_table_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "probe_thoroughly", None)
    code, text, _ = _run(capsys, "--quick")
    assert code == 0, text
    assert "WHAT FOLLOWS" not in text


@pytest.mark.usefixtures("_probes")
def test_damaged_weights_are_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipped = open_model("builtin").folder
    damaged = shutil.copytree(shipped, tmp_path / "weights")
    weights = damaged / "codec" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    opened = lambda name: open_model(damaged if name == "builtin" else name)  # noqa: E731
    monkeypatch.setattr(_machine, "open_model", opened)
    monkeypatch.setattr(_doctor, "open_model", opened)
    code, text, document = _run(capsys, "--quick")
    assert code == 1, text
    assert "BROKEN" in text
    assert "has sha256" in text
    assert not document["passed"]
    assert document["figures"]["checks_passed"] == document["figures"]["checks"] - 1


@pytest.mark.usefixtures("_probes")
@pytest.mark.parametrize(
    ("suffix", "code", "verdict"), [(".mp4", 1, "BROKEN"), (".webm", 0, "missing")]
)
def test_encoder_that_is_not_there(
    suffix: str,
    code: int,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save: Callable[[Video, Path], Path] = Video.save

    def fails(video: Video, path: Path) -> Path:
        if path.suffix == suffix:
            raise ValueError("unknown codec")
        return save(video, path)

    monkeypatch.setattr(Video, "save", fails)
    found, text, _ = _run(capsys, "--quick")
    assert found == code
    line = next(line for line in text.splitlines() if line.startswith(f"{suffix} clips"))
    assert verdict in line
    assert "unknown codec" in line


@pytest.mark.usefixtures("_probes")
def test_encoder_that_loses_frames_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _machine.decode
    monkeypatch.setattr(
        _machine, "decode", lambda path: Video(frames=kept(path).frames[:3], fps=8.0)
    )
    code, text, _ = _run(capsys, "--quick")
    assert code == 1, text
    assert "3 of 4 frames came back" in text


@pytest.mark.usefixtures("_probes")
def test_no_temporary_folder_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    code, text, _ = _run(capsys, "--quick")
    assert code == 1, text
    assert "set TMPDIR" in text


@pytest.mark.usefixtures("_probes")
def test_missing_compiler_is_only_noted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    code, text, _ = _run(capsys, "--quick")
    assert code == 0, text
    assert "training runs eagerly" in text


def test_kernels_that_do_not_repeat_are_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter((RULES, dataclasses.replace(RULES, norms=False)) * 2)
    monkeypatch.setattr(_doctor, "probe_batch_rules", lambda: next(answers))
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "1")
    code, text, _ = _run(capsys, "--quick")
    assert code == 1, text
    assert "two probes disagree" in text


def test_run_folder_is_not_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSTINATO_RUNS_DIR", str(tmp_path / "runs" / "mine"))
    check = next(c for c in _machine.machine_checks() if c.name == "folder of training runs")
    assert check.passed
    assert list(tmp_path.iterdir()) == []


def _line(patch: pytest.MonkeyPatch, folder: Path, rules: BatchRules) -> str:
    """Return what is said of a small built-in model on a processor with these rules."""
    patch.setattr("ostinato.runtime.turns.probe_batch_rules", lambda: rules)
    return family_line(open_model(folder), rules)


def test_family_that_the_engine_stacks(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = _line(monkeypatch, tiny_builtin_folder, RULES)
    assert re.fullmatch(r"stacked: two small requests shared [1-9]\d* forwards", words)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        # Below its 48 tokens, and above the rows that its time embedding is padded to.
        ({"linear_rows": 20}, "linear: at least 20 rows a request"),
        ({"activation_multiple": 96}, "activations: multiples of 96 elements a row"),
        ({"norms": False}, "norms: one request at a time"),
    ],
)
def test_family_that_the_engine_does_not_stack_says_why(
    change: dict[str, int],
    reason: str,
    tiny_builtin_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = _line(monkeypatch, tiny_builtin_folder, dataclasses.replace(RULES, **change))
    assert words.startswith("request by request: ")
    assert reason in words


def test_family_without_a_shipped_model() -> None:
    assert "4 tokens a request on" in family_line(None, RULES)
    never = dataclasses.replace(RULES, linear_rows=NEVER)
    assert family_line(None, never).startswith("request by request: linear: one request at a time")


def test_never_is_said_in_words() -> None:
    never = dataclasses.replace(RULES, linear_rows=NEVER, activation_multiple=NEVER)
    assert dict(rule_lines(never))["activations"] == "one request at a time"
    assert str(NEVER) not in str(rule_lines(never))


def test_table_sums_shapes_up() -> None:
    found = (
        Finding(op="conv1d", shape="a", needs=1, largest_difference=0.0),
        Finding(op="conv1d", shape="b", needs=NEVER, largest_difference=2e-6),
        Finding(op="activation", shape="SiLU", needs=32, largest_difference=1e-7),
    )
    rows = {row[0]: row[1:] for row in findings_table({Setting(torch.float32, 1): found})}
    assert rows["conv1d"] == ("1 of 2 differ, 2e-06", "runs request by request")
    assert rows["activation"][0] == "multiples of 32"
    assert rows["OPERATION"] == ("FLOAT32 T1", "WHAT FOLLOWS")


def test_other_dtypes_decide_nothing() -> None:
    found = (Finding(op="conv1d", shape="a", needs=NEVER, largest_difference=1.0),)
    exact = (Finding(op="conv1d", shape="a", needs=1, largest_difference=0.0),)
    settings = {Setting(torch.float32, 1): exact, Setting(torch.bfloat16, 1): found}
    rows = {row[0]: row[1:] for row in findings_table(settings)}
    assert rows["conv1d"] == ("equal", "1 of 1 differ, 1e+00", "")


def test_every_operation_of_the_table_has_its_consequence() -> None:
    from ostinato.backend.batch_rules import Kernels, probe_thoroughly

    still: Callable[..., torch.Tensor] = lambda x, *_, **__: x  # noqa: E731
    kernels = Kernels(**{field.name: still for field in dataclasses.fields(Kernels)})
    ops = {finding.op for finding in probe_thoroughly(torch.float32, kernels)}
    rows = findings_table({Setting(torch.float32, 1): ()})
    assert ops == {row[0] for row in rows[1:]}
