"""Exit codes and the shape of errors: one readable message, and JSON as the last line."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ostinato.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ostinato {version('ostinato')}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], "bad_usage", "generate, models, inspect, train, eval"),
        (["paint"], "bad_usage", "paint"),
        (["generate"], "bad_usage", "PROMPT"),
        (["generate", "x", "--sed", "3"], "bad_usage", "--seed"),
        (["generate", "x", "--seed", "three"], "bad_usage", "'three'"),
        (["generate", "x", "--num-frames", "None"], "bad_usage", "--num-frames"),
        (["generate", "x", "--outputs", "audio"], "bad_input", "'audio'"),
        (["generate", "x", "--outputs", ","], "bad_input", "video, latents"),
        (["generate", "x", "--output", "x.avi"], "invalid_output", "'.avi'"),
        (["generate", "x", "--output", "absent/x.mp4"], "invalid_output", "'absent'"),
        (["generate", "x", "--output", "x.gif", "--fps", "60"], "invalid_output", "at most 50"),
        (["generate", "x", "--output", "."], "invalid_output", "is a folder"),
        (["generate", "x", "--output", "x.mp4", "--fps", "0.0004"], "invalid_output", "at least"),
        (["generate", "x", "--output", "x" * 300 + ".mp4"], "invalid_output", "cannot be a file"),
        (["generate", "x", "--output", "~nosuchuser/x.mp4"], "invalid_output", "does not exist"),
        (["generate", "a \udcff cat"], "bad_usage", "not UTF-8"),
        (["generate", "x", "--model", "no-such-model"], "unknown_model", "'no-such-model'"),
        (["inspect", "no-such-model"], "unknown_model", "'no-such-model'"),
        (["train"], "bad_input", "builtin-base"),
        (["train", "builtin-bass"], "bad_input", "did you mean 'builtin-base'?"),
        (["eval", "no-such-model", "--suite", "world"], "unknown_model", "'no-such-model'"),
        (["eval", "builtin"], "bad_usage", "--suite"),
    ],
)
def test_bad_usage_and_bad_input_exit_2(
    arguments: list[str],
    code: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    plain = capsys.readouterr()
    assert plain.out == ""
    assert plain.err.startswith(f"error [{code}]: ")
    assert words in plain.err
    assert "Traceback" not in plain.err
    assert main([*arguments, "--json"]) == 2
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert error["code"] == code
    assert words in error["message"]
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no-such-model", "--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith("error [unknown_model]: ")


def test_what_nobody_foresaw_exits_1_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    arguments = ["train", "builtin-base", "--output-dir", str(tmp_path / "file" / "run")]
    assert main([*arguments, "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error [internal]: NotADirectoryError")
    assert shown.err.endswith("run again with --debug for the traceback\n")
    assert json.loads(shown.out.splitlines()[-1])["error"]["code"] == "internal"


@pytest.mark.parametrize("redirect", [">&-", "> /dev/full"])
@pytest.mark.parametrize("arguments", ["models --json", "models", "inspect no-such-model --json"])
def test_stdout_that_takes_nothing_is_one_message(arguments: str, redirect: str) -> None:
    command = f"{sys.executable} -m ostinato {arguments} {redirect}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "no-such-model" in arguments else 1)
    assert done.stderr.startswith("error [")
    assert done.stderr.count("\n") == 1


def test_closed_stderr_keeps_stdout_clean() -> None:
    command = f"{sys.executable} -m ostinato inspect no-such-model 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_flags_behind_two_dashes_are_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "x", "--", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_exit_inside_a_command_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave() -> None:
        raise SystemExit(0)

    monkeypatch.setattr("ostinato.cli._models.list_models", leave)
    assert main(["models"]) == 1
    assert capsys.readouterr().err.startswith("error [internal]: SystemExit: 0")


def test_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m ostinato inspect --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_help_is_quick_and_needs_no_torch() -> None:
    script = (
        "import sys\nfrom ostinato.cli import main\nassert main(['--help']) == 0\n"
        "assert not {'torch', 'diffusers', 'transformers'} & set(sys.modules)"
    )
    seconds: list[float] = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 1.0, "CPU seconds, which a busy machine does not stretch"
