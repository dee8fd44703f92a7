"""C1 without an oracle: the whole run against the same run in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from ostinato.parity.aligner import CallRecord, ParityAligner
from ostinato.parity.compare import Comparison, compare_call
from ostinato.parity.gate import GateResult, NothingMeasured, Rung, Tally
from ostinato.parity.gates.course import course
from ostinato.parity.gates.sampling import bound_sampler
from ostinato.parity.subject import Subject
from ostinato.parity.tolerances import Tolerance, trajectory_tolerance
from ostinato.request import Request
from ostinato.runtime import Engine

NAME = "trajectory"


def trajectory(subject: Subject) -> GateResult:
    """Serve the recorded request by the reference too, and compare every call in order.

    Here errors do grow from call to call: this is the run that a caller gets. What both runs owe to
    one loop is compared with what the request alone says. Raises InvalidCard
    without a reference, ReferenceTooLarge for one that does not fit into memory, NothingMeasured
    when the runs made different calls or none.
    """
    found = subject.recorded.calls
    expected = _reference_calls(subject)
    ours, theirs = ([(c.component, c.op) for c in calls] for calls in (found, expected))
    if ours != theirs or not ours:
        raise NothingMeasured(
            f"the served run made {len(ours)} calls and the reference {len(theirs)}, not the same"
        )
    tally = Tally()
    for mine, other in zip(found, expected, strict=True):
        tally.add(_compared(mine, other))
    for loop in subject.card.loops:
        tally.add(course(subject.recorded, loop, bound_sampler(subject.reference, loop)))
    return tally.result(
        NAME,
        Rung.C1,
        f"{tally.measured} inputs and outputs of {len(found)} calls stay with the float64 run and "
        "with what the request says",
    )


def _reference_calls(subject: Subject) -> tuple[CallRecord, ...]:
    subject.require_reference_room()
    source, aligner = subject.reference, ParityAligner()
    asked: Request = dataclasses.replace(subject.request(), model=source.card.model_id)
    with Engine(observer=aligner) as engine:
        engine.add(source)
        engine.run([asked])
    return aligner.calls


def _compared(found: CallRecord, expected: CallRecord) -> Iterator[Comparison]:
    """Compare what went in, then what came out."""
    mine, other = (
        dataclasses.replace(call, taps=(), outputs={**_named(call), **call.outputs})
        for call in (found, expected)
    )
    return compare_call(mine, other, _tolerance)


def _named(call: CallRecord) -> dict[str, object]:
    return {f"input {name}": value for name, value in call.inputs.items()}


def _tolerance(name: str, depth: int, dtype: torch.dtype) -> Tolerance:
    return trajectory_tolerance(dtype)
