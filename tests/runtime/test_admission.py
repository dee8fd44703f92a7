"""Joint pressure on a real engine: who does not fit waits, who never can is told at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.api import Engine
from ostinato.card import ModelSource
from ostinato.errors import AdmissionInfeasible
from ostinato.models.builtin.card import open_builtin
from ostinato.request import Request
from ostinato.runtime import ResidentModel
from ostinato.runtime.needs import need_of, weights_of
from ostinato.runtime.resolve import resolve
from ostinato.runtime.selection import Selection
from ostinato.runtime.witness import DecisionLog
from ostinato.tasks import RequestId
from ostinato.work import UNLIMITED
from support.faults import WAIT_S
from support.requests import request


@pytest.fixture
def source(tiny_builtin_folder: Path) -> ModelSource:
    return open_builtin(tiny_builtin_folder)


def bytes_of(source: ModelSource, asked: Request) -> tuple[float, float]:
    """Return what a request needs in memory, and its weights."""
    model = ResidentModel(source)
    spec = resolve(model.card, asked, RequestId("r1"))
    selection = Selection(model, model.program(spec.task), spec)
    weights = sum(size for _, size in weights_of(model, selection))
    return need_of(selection, spec, 0.0).memory_bytes, weights


def test_two_that_do_not_fit_together_run_one_after_the_other(source: ModelSource) -> None:
    need, weights = bytes_of(source, request())
    log = DecisionLog()
    room = replace(UNLIMITED, memory_bytes=1.5 * need + weights)
    with Engine(capacity=room, witness=log) as engine:
        engine.add(source)
        handles = [engine.submit(request(seed=seed)) for seed in (1, 2)]
        for handle in handles:
            handle.result(WAIT_S)
    assert all(len(record.snapshot.ready) <= 1 for record in log.records)
    ran = [unit.request_ids[0] for record in log.records for unit in record.decision.units]
    assert ran == sorted(ran), "the second begins when the first has ended"
    assert set(ran) == {handle.request_id for handle in handles}


def test_one_that_never_fits_is_refused_when_it_is_submitted(source: ModelSource) -> None:
    need, weights = bytes_of(source, request())
    room = replace(UNLIMITED, memory_bytes=0.9 * (need + weights))
    with Engine(capacity=room) as engine:
        resident = engine.add(source)
        with pytest.raises(AdmissionInfeasible, match="memory_bytes"):
            engine.submit(request())
        assert resident.loaded == ()


def test_weights_of_an_idle_model_make_room_for_another(source: ModelSource) -> None:
    need, weights = bytes_of(source, request())
    other = replace(source, card=source.card.derive(model_id="other"))
    room = replace(UNLIMITED, memory_bytes=need + 1.5 * weights)
    with Engine(capacity=room) as engine:
        first, second = engine.add(source), engine.add(other)
        engine.submit(request()).result(WAIT_S)
        assert first.loaded
        engine.submit(request(model="other")).result(WAIT_S)
        assert (bool(first.loaded), bool(second.loaded)) == (False, True)
        engine.submit(request()).result(WAIT_S)
        assert (bool(first.loaded), bool(second.loaded)) == (True, False)
