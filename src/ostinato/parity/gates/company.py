"""Determinism and interleaving: what a request gives depends neither on time nor on company."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.subject import Subject, same_output
from ostinato.request import Request
from ostinato.runtime import Output
from ostinato.runtime.scheduler import Rank, Ready, RoundRobin, Snapshot
from ostinato.tasks import RequestId

_SEED = 20260802


class ShuffledTurns(RoundRobin):
    """Any of the ready requests, by a seeded draw each tick; counts how often the turn changed."""

    def __init__(self, seed: int) -> None:
        super().__init__(name="shuffled")
        self._random = random.Random(seed)
        self._tick = -1
        self._order: dict[RequestId, float] = {}
        self._latest: RequestId | None = None
        self.switches = 0

    def rank(self, ready: Ready, snapshot: Snapshot) -> Rank:
        """Return the request's place in this tick's draw."""
        if snapshot.tick != self._tick:
            self._tick = snapshot.tick
            names = [other.request_id for other in snapshot.ready]
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
    return verdict("determinism", again, [expected] * len(again))


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
    return verdict("interleave", outputs, [expected[index] for index in order], detail)


def mixed_requests(subject: Subject, count: int) -> list[Request]:
    """Return requests of different prompts, seeds, steps and guidance; raises InvalidCard."""
    return [subject.request(index) for index in range(count)]


def verdict(
    name: str,
    outputs: Sequence[Output],
    expected: Sequence[Output],
    detail: Mapping[str, object] | None = None,
    suffix: str = "",
) -> GateResult:
    """Compare outputs with what each gave alone; raises NothingMeasured for none of them."""
    if not outputs or len(outputs) != len(expected):
        raise NothingMeasured(f"{len(outputs)} outputs to hold against {len(expected)}")
    same = [same_output(one, other) for one, other in zip(outputs, expected, strict=True)]
    return GateResult(
        name=name,
        rung=Rung.SERVING,
        passed=all(same),
        measured=len(same),
        variants=len(same),
        variants_equal=sum(same),
        message=f"{sum(same)} of {len(same)} outputs equal the one made alone{suffix}",
        detail=detail or {},
    )
