"""Determinism and interleaving: what a request gives depends neither on time nor on company."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.subject import Subject, alike_output, same_output
from ostinato.request import Request
from ostinato.runtime import Output
from ostinato.runtime.scheduler import Around, FifoRequest, Rank, Ready, Snapshot
from ostinato.tasks import RequestId

_SEED = 20260802


class ShuffledTurns(Around):
    """Any of the ready requests, by a seeded draw each tick; counts how often the turn changed."""

    def __init__(self, seed: int) -> None:
        super().__init__(FifoRequest())
        self._random = random.Random(seed)
        self._tick = -1
        self._order: dict[RequestId, float] = {}
        self._latest: RequestId | None = None
        self.switches = 0

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return the request's place in this tick's draw."""
        if snapshot.tick != self._tick:
            self._tick = snapshot.tick
            there = sorted(snapshot.ready, key=lambda other: other.arrival)
            names = [other.request_id for other in there]
            self._random.shuffle(names)
            self._order = {name: float(place) for place, name in enumerate(names)}
            self.switches += self._latest is not None and names[0] != self._latest
            self._latest = names[0]
        return (self._order[ready.request_id],)


def determinism(subject: Subject) -> GateResult:
    """Serve one request again, in the same engine and in a new one."""
    request = subject.request()
    expected = subject.alone([request])[0]
    with subject.serving() as (engine, _):
        again = [engine.submit(request).result() for _ in range(2)]
    return verdict(subject, "determinism", again, [expected] * len(again))


def interleave(subject: Subject) -> GateResult:
    """Serve mixed requests in random order, step by step; raises NothingMeasured unless mixed."""
    requests = mixed_requests(subject, 4 if subject.options.quick else 6)
    expected = subject.alone(requests)
    order = random.Random(_SEED).sample(range(len(requests)), len(requests))
    turns = ShuffledTurns(_SEED)
    with subject.serving(turns) as (engine, _):
        outputs = engine.run([requests[index] for index in order])
    if turns.switches <= len(requests):
        raise NothingMeasured(
            f"the turn changed hands {turns.switches} times in {len(requests)} requests, so they "
            "were not interleaved"
        )
    detail = {"turns_that_changed_hands": turns.switches}
    return verdict(subject, "interleave", outputs, [expected[index] for index in order], detail)


def mixed_requests(subject: Subject, count: int) -> list[Request]:
    """Return requests of different prompts, seeds, steps and guidance; raises InvalidCard."""
    return [subject.request(index) for index in range(count)]


def verdict(
    subject: Subject,
    name: str,
    outputs: Sequence[Output],
    expected: Sequence[Output],
    detail: Mapping[str, object] | None = None,
    suffix: str = "",
) -> GateResult:
    """Compare outputs with what each gave alone, as the card promises: bytes, or a tolerance.

    Raises NothingMeasured for none of them.
    """
    if not outputs or len(outputs) != len(expected):
        raise NothingMeasured(f"{len(outputs)} outputs to hold against {len(expected)}")
    pairs = list(zip(outputs, expected, strict=True))
    equal = sum(same_output(*pair) for pair in pairs)
    tolerated = 0
    if not subject.bitwise:
        tolerated = sum(not same_output(*pair) and alike_output(*pair) for pair in pairs)
    return GateResult(
        name=name,
        rung=Rung.SERVING,
        passed=equal + tolerated == len(pairs),
        measured=len(pairs),
        variants=len(pairs),
        variants_equal=equal,
        variants_tolerated=tolerated,
        message=f"{equal} of {len(pairs)} outputs equal the one made alone"
        + ("" if subject.bitwise else f", {tolerated} more are within the tolerance of the card")
        + suffix,
        detail=detail or {},
    )
