"""`ostinato generate` on real pipelines at tiny size: files, JSON, progress, interruption."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import ostinato
from ostinato.api import Model
from ostinato.cli import main
from ostinato.cli._destinations import destinations, slug
from ostinato.cli._generate import follow
from ostinato.cli._progress import Reading
from ostinato.media import decode
from ostinato.models.builtin.card import open_builtin
from ostinato.request import Cancelled, Progress
from ostinato.runtime.costs import CostStore
from ostinato.runtime.threads import kernel_threads
from ostinato.tasks import OutputName

SIZE = ("--height", "32", "--width", "32", "--num-frames", "5", "--guidance-scale", "1.0")


@pytest.fixture
def tiny(tiny_wan_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return the flags of a quick request, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return ["--model", str(tiny_wan_folder()), *SIZE, "--num-inference-steps", "2"]


def test_clip_and_latents_are_what_the_python_api_makes(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "a red cat", *tiny, "--seed", "7", "--fps", "12", "--json"]
    assert main([*arguments, "--outputs", "video,latents", "--output", "cat.gif"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out.splitlines()[-1])
    assert document["files"] == {"video": "cat.gif", "latents": "cat.safetensors"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat.gif", "cat.safetensors"]
    with ostinato.load(tiny[1]) as model:
        output = model.generate(
            "a red cat",
            seed=7,
            fps=12.0,
            height=32,
            width=32,
            num_frames=5,
            guidance_scale=1.0,
            num_inference_steps=2,
            outputs=("video", "latents"),
        )
        digest = model.card.digest()
    assert load_file("cat.safetensors")["latents"].equal(output.latents)
    clip = decode("cat.gif")
    assert clip.frames.shape == output.video.frames.shape
    assert clip.fps == pytest.approx(12, rel=0.03)
    provenance = document["provenance"]
    assert provenance["card_digest"] == digest
    spec = provenance["spec"]
    assert (spec["seed"], spec["num_frames"], spec["num_inference_steps"]) == (7, 5, 2)
    assert provenance["calls"]["transformer.predict"] == 2


def test_a_timeline_holds_the_units_of_the_request(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", "a red cat", *tiny, "--output", "cat.gif", "--timeline", "when.json"]
    assert main([*arguments, "--quiet", "--json"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert shown == ["cat.gif", "when.json"]
    document = json.loads(last)
    assert document["files"] == {"video": "cat.gif", "timeline": "when.json"}
    events = json.loads((tmp_path / "when.json").read_bytes())["traceEvents"]
    units = [event for event in events if event["ph"] == "X"]
    ops = Counter(op for unit in units for op in unit["name"].split(" + "))
    assert ops == document["provenance"]["calls"]
    assert sum(unit["args"]["device_s"] for unit in units) == pytest.approx(
        document["provenance"]["device_s"], abs=1e-3
    )
    assert {tuple(unit["args"]["requests"]) for unit in units} == {("r1",)}


def test_what_was_measured_is_kept_for_the_next_clip(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["generate", "a red cat", *tiny, "--quiet"]) == 0
    store = CostStore.of_this_process(kernel_threads())
    once = {entry.key: len(entry.seconds) for entry in store.load().measured}
    assert any(key.component.endswith("/transformer") for key in once)
    assert main(["generate", "a red cat", *tiny, "--quiet"]) == 0
    twice = {entry.key: len(entry.seconds) for entry in store.load().measured}
    assert twice == {key: 2 * count for key, count in once.items()}


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_costs_that_cannot_be_kept_are_a_line_on_stderr(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
) -> None:
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["generate", "a red cat", *tiny, *(["--quiet"] if quiet else [])]) == 0
    shown = capsys.readouterr().err
    assert shown.count("warning: measured costs cannot be kept in ") == (0 if quiet else 1)
    assert "RuntimeWarning" not in shown
    assert not quiet or shown == ""


def test_default_name_comes_from_the_prompt_and_replaces_nothing(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for expected in ("a-red-cat.mp4", "a-red-cat-2.mp4"):
        assert main(["generate", "A red, cat!", *tiny, "--quiet"]) == 0
        assert capsys.readouterr() == (f"{expected}\n", "")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a-red-cat-2.mp4", "a-red-cat.mp4"]
    assert len(decode("a-red-cat.mp4").frames) == 5


def test_progress_goes_to_stderr(tiny: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "a red cat", *tiny]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("a-red-cat.mp4\n5 frames of 32x32 at 16 fps, seed 0, 2 steps")
    assert re.search(r"^step (\d+)/\1, \d+\.\d device-s.*, 0 s left$", shown.err, re.MULTILINE)
    assert "Loading" not in shown.err


def test_invalid_field_writes_nothing(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "a red cat", *tiny, "--height", "33"]) == 2
    assert capsys.readouterr().err.startswith("error [invalid_request]: ")
    assert main(["generate", "a red cat", *tiny, "--task", "text_to_audio"]) == 2
    assert capsys.readouterr().err.startswith("error [unsupported_task]: ")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Let SIGINT interrupt, as in a terminal: a shell starts background jobs with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class _InterruptingStream(io.StringIO):
    """A stderr that behaves as if Ctrl-C were typed when the first progress line appears."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.startswith("step "):
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.usefixtures("_ctrl_c")
def test_interrupt_exits_130_and_writes_nothing(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = _InterruptingStream()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        arguments = ["generate", "a red cat", *tiny, "--num-inference-steps", "200", "--json"]
        assert main(arguments) == 130
    assert stream.getvalue().endswith("error [cancelled]: interrupted\n")
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert error == {"code": "cancelled", "message": "interrupted"}
    assert list(tmp_path.iterdir()) == []


class _Recorder:
    """A display that remembers, and fails in a given way at step 2."""

    def __init__(self, fail: Callable[[], object] | None = None) -> None:
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self._fail = fail

    def show(self, reading: Reading) -> None:
        self.readings.append(reading)
        if reading.step == 2 and self._fail is not None:
            self._fail()

    def note(self, text: str) -> None:
        self.notes.append(text)


def _type_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def _lose_the_terminal() -> None:
    raise BrokenPipeError


def _exit() -> None:
    raise SystemExit(3)


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.parametrize(
    ("fail", "raised"),
    [
        (_type_ctrl_c, KeyboardInterrupt),
        (_lose_the_terminal, BrokenPipeError),
        (_exit, SystemExit),
    ],
)
def test_whatever_ends_the_following_cancels_at_a_step_boundary(
    tiny: list[str], fail: Callable[[], object], raised: type[BaseException]
) -> None:
    with ostinato.load(tiny[1]) as model:
        handle = model.submit(
            "a red cat", height=32, width=32, num_frames=5, num_inference_steps=200
        )
        with pytest.raises(raised):
            follow(handle, _Recorder(fail))
        events = list(handle.events())
    assert isinstance(events[-1], Cancelled)
    done = [event for event in events if isinstance(event, Progress)]
    assert 2 <= len(done) < done[0].total


def test_advice_and_chunks_are_shown(tiny_builtin_folder: Path) -> None:
    display = _Recorder()
    with Model(open_builtin(tiny_builtin_folder)) as model:
        handle = model.submit(
            "a red circle xylophone", num_frames=24, num_inference_steps=1, guidance_scale=1.0
        )
        output = follow(handle, display)
    assert output.video.frames.dtype == np.uint8
    assert any(note.startswith("warning: ") and "xylophone" in note for note in display.notes)
    assert display.readings[-1].step == display.readings[-1].total
    assert (display.readings[-1].chunks or 0) >= 1


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("A red, circle!", "a-red-circle"),
        ("../../etc/passwd", "etc-passwd"),
        ("  ", "clip"),
        ("\u732b", "\u732b"),
        ("word " * 40, "-".join(["word"] * 12)),
        ("x" * 300, "clip"),
    ],
)
def test_slug(prompt: str, expected: str) -> None:
    assert slug(prompt) == expected


def test_destinations_keep_the_order_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    both = destinations(Path("a.webm"), "x", "latents, video")
    assert list(both.items()) == [
        (OutputName.LATENTS, Path("a.safetensors")),
        (OutputName.VIDEO, Path("a.webm")),
    ]
    assert destinations(None, "x y", "latents") == {OutputName.LATENTS: Path("x-y.safetensors")}


@pytest.mark.parametrize("taken", ["x-y.mp4", "x-y.safetensors"])
def test_chosen_name_is_free_for_every_output(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(taken).touch()
    for names in ("video,latents", "latents,video"):
        assert destinations(None, "x y", names) == {
            OutputName.VIDEO: Path("x-y-2.mp4"),
            OutputName.LATENTS: Path("x-y-2.safetensors"),
        }
