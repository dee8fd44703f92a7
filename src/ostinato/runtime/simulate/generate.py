"""The stored traces, drawn from seeded arrival processes.

Shapes and step counts are small, so that a benchmark runs each trace on a CPU; loads are set in
multiples of a class's time alone, so they hold on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from ostinato.runtime.simulate.trace import (
    DAY_S,
    Arrival,
    DiurnalTraffic,
    TimeUnit,
    Trace,
    TraceClass,
    exponential,
)

SMALL_WAN = "small-wan"
"""Model of the stored traces: the small Wan that `ostinato bench` writes."""

_DIGITS = 6  # so that a stored time does not depend on the last bits of a logarithm


def stored_traces() -> Iterator[Trace]:
    """Yield every trace that ships."""
    yield short_behind_long()
    yield bursty_mix()
    yield sessions()
    yield skewed_tenants()
    yield small_tokens()
    yield day()


def short_behind_long(seed: int = 41) -> Trace:
    """One 40-step job, then 16 4-step jobs at gaps of twice their time alone or more."""
    random = Random(seed)
    arrivals = [Arrival(at=0.0, request_class="long")]
    at = 0.5
    for _ in range(16):
        arrivals.append(Arrival(at=round(at, _DIGITS), request_class="short"))
        at += 2.0 + exponential(random, 0.25)
    return Trace(
        name="short-behind-long",
        seed=seed,
        unit_class="short",
        classes={"long": _clip(128, 40), "short": _clip(128, 4)},
        arrivals=tuple(arrivals),
    )


def bursty_mix(seed: int = 42) -> Trace:
    """Three shapes; a Markov-modulated Poisson process: calm, then eight times as many."""
    random = Random(seed)
    mean_gap = {"calm": 10.0, "burst": 1.25}  # between arrivals, in the unit of time
    mean_stay = {"calm": 60.0, "burst": 12.0}
    names, weights = ("small", "medium", "large"), (6, 3, 1)
    arrivals: list[Arrival] = []
    state, at = "calm", 0.0
    leaves = exponential(random, mean_stay[state])
    while len(arrivals) < 48:
        gap = exponential(random, mean_gap[state])
        if at + gap >= leaves:  # without memory: what is left of the gap may be drawn again
            at, state = leaves, "burst" if state == "calm" else "calm"
            leaves = at + exponential(random, mean_stay[state])
            continue
        at += gap
        drawn = random.choices(names, weights)[0]
        arrivals.append(Arrival(at=round(at, _DIGITS), request_class=drawn))
    return Trace(
        name="bursty-mix",
        seed=seed,
        unit_class="small",
        classes={"small": _clip(64, 4), "medium": _clip(96, 8), "large": _clip(128, 12)},
        arrivals=tuple(arrivals),
    )


def sessions(seed: int = 43) -> Trace:
    """Two interactive sessions beside batch jobs.

    A session asks for a piece every 5 units of time, eight times, then pauses: a duty cycle of two
    thirds, with jitter. A piece is due 3.5 after it was asked for. The batch jobs would fill the
    device by themselves.
    """
    random = Random(seed)
    arrivals = [Arrival(at=float(at), request_class="batch", tenant="batch") for at in (0, 0, 40)]
    for name, start in (("session-a", 2.0), ("session-b", 4.0)):
        at = start
        for piece in range(24):
            jittered = at + random.uniform(0.0, 0.5)
            arrivals.append(
                Arrival(
                    at=round(jittered, _DIGITS), request_class="piece", tenant=name, deadline=3.5
                )
            )
            at += 5.0 if (piece + 1) % 8 else 20.0 + random.uniform(0.0, 2.0)
    arrivals.sort(key=lambda arrival: arrival.at)
    return Trace(
        name="sessions",
        seed=seed,
        unit_class="piece",
        classes={"piece": _clip(64, 4), "batch": _clip(64, 150)},
        arrivals=tuple(arrivals),
    )


def skewed_tenants(seed: int = 44) -> Trace:
    """Three tenants of equal weight; one sends ten times as much, all of it nearly at once."""
    random = Random(seed)
    counts = {"heavy": 60, "light-a": 6, "light-b": 6}
    tenants = [tenant for tenant, count in counts.items() for _ in range(count)]
    random.shuffle(tenants)
    arrivals: list[Arrival] = []
    at = 0.0
    for tenant in tenants:
        at += exponential(random, 0.02)
        arrivals.append(Arrival(at=round(at, _DIGITS), request_class="clip", tenant=tenant))
    return Trace(
        name="skewed-tenants",
        seed=seed,
        unit_class="clip",
        classes={"clip": _clip(96, 4)},
        arrivals=tuple(arrivals),
        tenant_weights={tenant: 1.0 for tenant in counts},
    )


def small_tokens(seed: int = 45) -> Trace:
    """Forty-eight clips of four tokens, nearly at once: where one forward for several pays.

    Of one token there is no exact stack on every processor: linears of one row round otherwise.
    """
    random = Random(seed)
    arrivals: list[Arrival] = []
    at = 0.0
    for _ in range(48):
        arrivals.append(Arrival(at=round(at, _DIGITS), request_class="tiny"))
        at += exponential(random, 0.05)
    return Trace(
        name="small-tokens",
        seed=seed,
        unit_class="tiny",
        classes={"tiny": _clip(32, 30)},
        arrivals=tuple(arrivals),
    )


def day(seed: int = 46) -> Trace:
    """Twenty-four hours of a pool of eight devices: six classes, kept as parameters."""
    small, large = "wan2.1-t2v-1.3b", "wan2.1-t2v-14b"
    classes = {
        "preview": _video(small, 480, 832, 17, 4),
        "distilled": _video(small, 480, 832, 81, 4),
        "draft": _video(small, 480, 832, 49, 30),
        "clip": _video(small, 480, 832, 81, 50),
        "still": _video(large, 720, 1280, 1, 50),
        "feature": _video(large, 480, 832, 81, 50),
    }
    return Trace(
        name="day",
        seed=seed,
        unit_class="clip",
        classes=classes,
        time_unit=TimeUnit.SECONDS,
        traffic=DiurnalTraffic(
            span_s=DAY_S,
            num_devices=8,
            load=0.5,
            swing=0.5,
            class_shares={
                "preview": 0.1,
                "distilled": 1.5,
                "draft": 1.5,
                "clip": 5.0,
                "still": 0.5,
                "feature": 20.0,
            },
            tenant_shares={"studio": 5.0, "shop": 3.0, "lab": 1.0, "free": 1.0},
            deadline_over_alone={"preview": 20.0, "distilled": 20.0},
        ),
        tenant_weights={"studio": 4.0, "shop": 2.0, "lab": 2.0, "free": 1.0},
    )


def _clip(side: int, num_inference_steps: int) -> TraceClass:
    """Return a clip of one frame without guidance."""
    return TraceClass(
        model=SMALL_WAN,
        height=side,
        width=side,
        num_frames=1,
        num_inference_steps=num_inference_steps,
        guidance_scale=1.0,
    )


def _video(model: str, height: int, width: int, num_frames: int, steps: int) -> TraceClass:
    """Return a clip as the published weights are used: with guidance, unless it takes few steps."""
    asked = TraceClass(
        model=model, height=height, width=width, num_frames=num_frames, num_inference_steps=steps
    )
    return replace(asked, guidance_scale=5.0 if steps > 8 else 1.0)
