"""`ostinato simulate trace` as it is typed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.cli import main
from ostinato.runtime.simulate import load_trace, save, stored_profiles


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    assert main(["simulate", "trace", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_stored_trace_by_two_policies(capsys: pytest.CaptureFixture[str]) -> None:
    fair = _json(capsys, "short-behind-long")
    fifo = _json(capsys, "short-behind-long", "--policy", "fifo-request")
    figure = "short_p95_over_alone"
    assert fair["figures"][figure] < 1.5 < fifo["figures"][figure]
    assert fair["figures"]["optimum_" + figure] <= fair["figures"][figure]
    assert fair["detail"]["policy"] == "fair-share"


def test_devices_stacking_and_measured_profiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = _json(capsys, "small-tokens")
    assert _json(capsys, "small-tokens", "--devices", "4")["figures"]["makespan_s"] < (
        0.5 * one["figures"]["makespan_s"]
    )
    assert _json(capsys, "small-tokens", "--no-stacking")["figures"]["mean_items"] == 1.0
    trace, profiles = load_trace("small-tokens"), stored_profiles("small-tokens")
    save(replace(trace, arrivals=trace.arrivals[:3]), tmp_path / "t.json")
    save(replace(profiles, source="measured"), tmp_path / "p.json")
    few = _json(capsys, str(tmp_path / "t.json"), "--profiles", str(tmp_path / "p.json"))
    assert few["figures"]["requests_finished"] == 3
    assert few["detail"]["profiles"] == "measured"


def test_traces_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "traces" in _json(capsys)
    assert main(["simulate", "trace"]) == 0
    assert "bursty-mix" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("waves",), "no simulation of 'waves'"),
        (("trace", "nothing"), "give a file, or one of"),
        (("trace", "sessions", "--policy", "best"), "no policy 'best'"),
        (("trace", "sessions", "--devices", "0"), "num_devices is 0"),
    ],
)
def test_bad_input_is_told(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_day_of_eight_devices_takes_less_than_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = _json(capsys, "day", "--devices", "8")["figures"]
    assert figures["simulation_s"] < 60
    assert figures["makespan_s"] > 86_000
    assert figures["jain_index"] > 0.9
