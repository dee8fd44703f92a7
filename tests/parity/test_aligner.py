"""The aligner records a real run apart from it, and a replay gives the run's bits again."""

from __future__ import annotations

import pytest
import torch

from ostinato.errors import InternalError
from ostinato.loop.observe import Unit
from ostinato.parity.aligner import ParityAligner, replay
from ostinato.parity.compare import compare_exact, first_divergence
from ostinato.parity.subject import Subject
from ostinato.parity.values import detached, tensors


def test_every_call_of_the_request_is_recorded_with_its_taps(builtin: Subject) -> None:
    recorded = builtin.recorded
    counted: dict[str, int] = {}
    for call in recorded.calls:
        name = f"{call.component}.{call.op}"
        counted[name] = counted.get(name, 0) + 1
        assert call.taps, name
        assert [tap.occurrence for tap in call.taps if tap.name == call.taps[0].name] == list(
            range(sum(tap.name == call.taps[0].name for tap in call.taps))
        )
    assert counted == recorded.output.provenance.calls
    assert recorded.num_taps == sum(len(call.taps) for call in recorded.calls) > 100
    steps = [call.unit.step for call in recorded.calls]
    assert steps == sorted(steps)
    assert steps[0] == 1


def test_a_replay_through_the_same_components_is_exact(builtin: Subject) -> None:
    resident = builtin.resident()
    with builtin.cpu():
        for found, call in zip(
            replay(builtin.recorded.calls, resident.component),
            builtin.recorded.calls,
            strict=True,
        ):
            compared = list(compare_exact(found, call))
            assert len(compared) > len(call.taps)
            assert first_divergence(compared) is None


def test_only_the_units_that_are_kept_take_memory(builtin: Subject) -> None:
    aligner = ParityAligner(keep=lambda unit: unit.node == "rollout" and unit.step % 4 == 0)
    with builtin.serving(observer=aligner) as (engine, _):
        output = engine.run([builtin.request()])[0]
    steps = {call.unit.step for call in aligner.calls}
    assert 0 < len(steps) < sum(output.provenance.calls.values()) / 2
    assert all(step % 4 == 0 for step in steps)
    assert aligner.watch(Unit(aligner.calls[0].unit.request_id, "rollout", 1)) is None
    assert torch.equal(output.latents, builtin.recorded.output.latents)


def test_what_was_recorded_is_apart_from_what_runs_on() -> None:
    ours = torch.zeros(2, requires_grad=True)
    copy = detached((ours, "text", 1, None))
    assert isinstance(copy, tuple)
    with torch.no_grad():
        ours += 1
    assert torch.equal(copy[0], torch.zeros(2))
    assert not copy[0].requires_grad
    assert copy[1:] == ("text", 1, None)
    with pytest.raises(InternalError, match="carries a dict"):
        detached({})


def test_named_tuples_keep_their_names(builtin: Subject) -> None:
    store = next(call for call in builtin.recorded.calls if call.op == "store")
    paths = [path for path, _ in tensors(store.outputs)]
    assert "layers[1].key_rotated" in paths
