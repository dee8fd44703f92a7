"""C1 against an oracle: latents after every step, and pixels, equal to the library's bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.backend.importing import load_object
from ostinato.card import ModelSource
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.subject import Recorded, Subject, alike
from ostinato.request import GenerationSpec

NAME = "oracle"


class OracleRun(Protocol):
    """What the other implementation made of a request: latents after each step, and pixels.

    pixels: float32 [T,H,W,3] in [0,1]. frames: uint8 [T,H,W,3].
    """

    @property
    def step_latents(self) -> tuple[torch.Tensor, ...]: ...
    @property
    def pixels(self) -> NDArray[np.float32]: ...
    @property
    def frames(self) -> NDArray[np.uint8]: ...


class Oracle(Protocol):
    """Another implementation over the same files."""

    def run(self, spec: GenerationSpec) -> OracleRun: ...


@runtime_checkable
class GivesPixels(Protocol):
    """A decoder that shows its pixels before they become whole levels."""

    def pixels(self, latents: torch.Tensor) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One run: states compared, whether all are equal, and what is not as the card promises."""

    measured: int
    equal: bool
    differences: tuple[str, ...]


def oracle(subject: Subject) -> GateResult:
    """Hold each guidance setting's run against the oracle; the first step that differs is named.

    By bits, where the card promises them, and within the tolerance of whole runs where it does not.
    Raises NothingMeasured when the card names no oracle, when one shows no step, or when no decoder
    shows its pixels.
    """
    named = subject.card.parity.oracle
    if named is None:
        raise NothingMeasured(f"card {subject.card.model_id!r} names no oracle to be held against")
    make = cast("Callable[[ModelSource], Oracle]", load_object(named))
    with subject.cpu():
        other = make(subject.source)
    found = list[_Compared]()
    runs = [subject.recorded] if subject.options.quick else [subject.recorded, _unguided(subject)]
    for run in runs:
        with subject.cpu():
            expected = other.run(run.output.provenance.spec)
        found.append(_compared(subject, run, expected))
    first = next((difference for one in found for difference in one.differences), None)
    measured, equal = sum(one.measured for one in found), sum(one.equal for one in found)
    agree = "equal" if equal == len(runs) else "are within tolerance of"
    return GateResult(
        name=NAME,
        rung=Rung.C1,
        passed=first is None,
        measured=measured,
        variants=len(runs),
        variants_equal=equal,
        variants_tolerated=sum(not one.equal and not one.differences for one in found),
        message=f"{measured} states of {len(runs)} runs {agree} those of {named.rpartition(':')[2]}"
        if first is None
        else f"first difference: {first}",
        detail={"oracle": named},
    )


def _unguided(subject: Subject) -> Recorded:
    return subject.record(subject.request(1))


def _compared(subject: Subject, run: Recorded, expected: OracleRun) -> _Compared:
    """Hold one run against the oracle's."""
    steps = served_latents(subject, run)
    if not expected.step_latents or len(steps) != len(expected.step_latents):
        raise NothingMeasured(
            f"the oracle shows {len(expected.step_latents)} steps, we took {len(steps)}"
        )
    pairs = [
        (f"latents after step {step} of {len(steps)}", ours, theirs)
        for step, (ours, theirs) in enumerate(zip(steps, expected.step_latents, strict=True), 1)
    ]
    frames = torch.from_numpy(run.output.video.frames), torch.from_numpy(expected.frames)
    pairs.append(("frames", *frames))
    for name, decoder in _decoders(subject):
        with subject.cpu(), torch.no_grad():
            pixels = decoder.pixels(run.output.latents)
        shown = torch.from_numpy(pixels), torch.from_numpy(expected.pixels)
        pairs.append((f"pixels of {name}", *shown))
    unequal = [pair for pair in pairs if not _equal(pair[1], pair[2])]
    return _Compared(
        measured=len(pairs),
        equal=not unequal,
        differences=tuple(
            _difference(what, ours, theirs)
            for what, ours, theirs in unequal
            if subject.bitwise or not alike(ours, theirs)
        ),
    )


def _equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def _difference(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> str:
    if ours.shape != theirs.shape:
        return f"{what}, which are {list(ours.shape)} and {list(theirs.shape)}"
    return f"{what}, by up to {float((ours.double() - theirs.double()).abs().max()):.3g}"


def served_latents(subject: Subject, run: Recorded) -> list[torch.Tensor]:
    """Return the latents after each step: what each next step was fed, then what was delivered."""
    fed: dict[int, torch.Tensor] = {}
    for call in run.calls:
        latents = call.inputs.get("latents")
        if call.component in subject.denoisers and isinstance(latents, torch.Tensor):
            fed.setdefault(call.unit.step, latents)
    return [*list(fed.values())[1:], run.output.latents]


def _decoders(subject: Subject) -> list[tuple[str, GivesPixels]]:
    """Return what decodes latents, by name; raises NothingMeasured where nothing shows pixels."""
    resident = subject.resident()
    names = {loop.binds["latents"] for loop in subject.card.loops if "latents" in loop.binds}
    shown: list[tuple[str, GivesPixels]] = []
    for name in sorted(names):
        component = resident.component(name)
        if isinstance(component, GivesPixels):
            shown.append((name, component))
    if not shown:
        raise NothingMeasured(
            f"none of {', '.join(names) or 'the components'} shows its pixels, so only whole "
            "levels could be compared; a decoder with an oracle has `pixels`"
        )
    return shown
