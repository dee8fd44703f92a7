"""All witnesses of one real engine, and the replay of what it decided."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostinato.api import Engine
from ostinato.models.builtin.card import open_builtin
from ostinato.runtime.scheduler import FairShare, UnitRecord
from ostinato.runtime.witness import (
    Bystander,
    DecisionLog,
    Timeline,
    Witnesses,
    read_decisions,
    replay,
)
from ostinato.runtime.witness.metrics import Metrics
from support.faults import WAIT_S
from support.requests import request


class Units(Bystander):
    """Keeps what ran."""

    def __init__(self) -> None:
        self.units: list[UnitRecord] = []

    def executed(self, unit: UnitRecord) -> None:
        self.units.append(unit)


class Broken(Bystander):
    """Raises."""

    def executed(self, unit: UnitRecord) -> None:
        raise SystemExit("no")


def test_all_witnesses_see_one_run_and_its_decisions_replay(
    tiny_builtin_folder: Path, tmp_path: Path
) -> None:
    units, timeline, metrics = Units(), Timeline(), Metrics()
    log = DecisionLog(tmp_path / "decisions.jsonl")
    with Engine(
        FairShare(), max_batch=4, witness=Witnesses(units, metrics, timeline, log)
    ) as engine:
        resident = engine.add(open_builtin(tiny_builtin_folder))
        handles = [engine.submit(request(seed=seed)) for seed in (1, 2, 3)]
        outputs = [handle.result(WAIT_S) for handle in handles]
    log.close()
    ran = sum(unit.device_s for unit in units.units)
    assert ran == pytest.approx(sum(output.provenance.device_s for output in outputs))
    decided = [unit.request_ids for r in log.records for unit in r.decision.units]
    assert decided == [unit.request_ids for unit in units.units]
    for records in (log.records, tuple(read_decisions(tmp_path / "decisions.jsonl"))):
        found = replay(records, FairShare())
        assert (found.num_ticks, found.num_different) == (len(log.records), 0)
    found = re.findall(r'^ostinato_weight_bytes{model="builtin"} (.+)$', metrics.text(), re.M)
    assert float(*found) == sum(map(resident.weight_bytes, resident.loaded))
    charged = re.findall(r"^ostinato_device_seconds_total.* (\S+)$", metrics.text(), re.MULTILINE)
    assert sum(map(float, charged)) == pytest.approx(ran), "the last units are charged too"
    timeline.save(tmp_path / "timeline.json")
    assert "builtin" in (tmp_path / "timeline.json").read_text()


def test_a_witness_that_raises_harms_no_request(tiny_builtin_folder: Path) -> None:
    with Engine(witness=Broken()) as engine:
        engine.add(open_builtin(tiny_builtin_folder))
        handle = engine.submit(request())
        with pytest.warns(RuntimeWarning, match="Broken raised SystemExit"):
            handle.result(WAIT_S)
