"""Random schedules of requests to one engine: who asks for what, and what each of them meets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hypothesis import strategies as st

from ostinato.runtime import Stacking
from ostinato.runtime.scheduler import policies

TENANTS = ("a", "b", "c")


class Fate(StrEnum):
    """What a request meets."""

    PLAIN = "plain"
    NO_ROOM = "no_room"  # its stacks fail at one plan, its calls do not
    RAISES = "raises"
    EXITS = "exits"
    NAN = "nan"
    OVERFLOWS = "overflows"
    LATE = "late"
    CANCELLED_WAITING = "cancelled_waiting"
    CANCELLED_AT_EVENT = "cancelled_at_event"
    CANCELLED_IN_CALL = "cancelled_in_call"


@dataclass(frozen=True)
class Asked:
    """A request, and what it meets: at which of its denoising plans, or after which event."""

    family: str
    side: int | None  # pixels; of Wan
    num_frames: int
    steps: int
    guidance: float
    seed: int
    fate: Fate = Fate.PLAIN
    at: int = 0
    tenant: str = "a"
    priority: int = 0
    timely: bool = False  # whether it has a deadline, far away


@dataclass(frozen=True)
class Schedule:
    """What is asked of one engine; `late` of the requests come when others have begun.

    room: how many of the largest requests have room at once; None where room is not managed.
    """

    policy: str
    max_batch: int
    stacking: Stacking
    asked: tuple[Asked, ...]
    late: int = 0
    room: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)


def wan(side: int, **fields: object) -> Asked:
    """Return a request of Wan, of so many pixels a side."""
    base = Asked("wan", side, 1, 2, 1.0, 0)
    return replace(base, **fields)  # type: ignore[arg-type]


def builtin(num_frames: int, **fields: object) -> Asked:
    """Return a request of the built-in model."""
    base = Asked("builtin", None, num_frames, 2, 1.0, 0)
    return replace(base, **fields)  # type: ignore[arg-type]


# Fewer than 16 tokens are in a stack what they are alone on some processors only.
SIZES = st.one_of(
    st.builds(wan, st.sampled_from((16, 32, 64, 64))),
    st.builds(builtin, st.sampled_from((7, 12, 12, 24))),
)


@st.composite
def askings(draw: st.DrawFn, like: Asked | None = None) -> Asked:
    """Draw one request; like: of which it has the model and the size."""
    steps, size = draw(st.integers(1, 3)), draw(SIZES if like is None else st.just(like))
    fates = (Fate.PLAIN,) * 6 + tuple(Fate)
    if size.family == "builtin":  # what it returns is cut, so it is no initial latents
        fates = tuple(fate for fate in fates if fate is not Fate.OVERFLOWS)
    return replace(
        size,
        steps=steps,
        guidance=draw(st.sampled_from((1.0, 3.0))),
        seed=draw(st.integers(0, 1)),
        fate=draw(st.sampled_from(fates)),
        at=draw(st.integers(0, steps - 1)),
        tenant=draw(st.sampled_from(TENANTS)),
        priority=draw(st.integers(-1, 1)),
        timely=draw(st.booleans()),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw requests, many of which agree with another, and an engine for them."""
    few = draw(st.lists(askings(), min_size=1, max_size=3))
    sisters = st.lists(st.sampled_from(few).flatmap(askings), min_size=1, max_size=5)
    asked = (*few, *draw(sisters))
    return Schedule(
        policy=draw(st.sampled_from([policy.name for policy in policies()])),
        max_batch=draw(st.sampled_from((1, 2, 3, 4, 5, 6, 7, 8))),
        stacking=draw(st.sampled_from(Stacking)),
        asked=asked,
        late=draw(st.integers(0, len(asked) - 1)),
        room=draw(st.sampled_from((None, None, 1.0, 2.5))),
        weights=draw(st.dictionaries(st.sampled_from(TENANTS), st.sampled_from((0.5, 4.0)))),
    )


def all_at_once(*fates: tuple[Fate, int], like: Asked, **fields: object) -> Schedule:
    """Return a schedule of equal shapes that share every forward while none has failed."""
    plain = (replace(like, guidance=3.0), replace(like, guidance=3.0, seed=1))
    asked = (*plain, *(replace(like, fate=fate, at=at) for fate, at in fates))
    values: dict[str, object] = {"policy": "round-robin", "max_batch": 12, "asked": asked}
    return Schedule(**{"stacking": Stacking.ALWAYS, **values, **fields})  # type: ignore[arg-type]


IN_STACKS = (
    (Fate.NO_ROOM, 0),
    (Fate.NAN, 0),
    (Fate.RAISES, 1),
    (Fate.CANCELLED_IN_CALL, 1),
    (Fate.EXITS, 2),
)
EXAMPLES = (
    all_at_once(*IN_STACKS, like=wan(64, steps=3)),
    all_at_once(*IN_STACKS, like=builtin(24, steps=3)),
    all_at_once((Fate.OVERFLOWS, 0), (Fate.PLAIN, 0), like=wan(64)),
    # Too few tokens to be exact in a stack on some processors.
    all_at_once((Fate.PLAIN, 0), like=wan(16)),
)
