"""C1 against an oracle: latents after every step, and pixels, equal to the library's bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.backend.importing import load_object
from ostinato.card import ModelSource
from ostinato.parity.gate import GateResult, NothingMeasured, Rung
from ostinato.parity.subject import Recorded, Subject
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
    @property
    def calls(self) -> Mapping[str, int]: ...


class Oracle(Protocol):
    """Another implementation over the same files."""

    def run(self, spec: GenerationSpec) -> OracleRun: ...


@runtime_checkable
class GivesPixels(Protocol):
    """A decoder that shows its pixels before they become whole levels."""

    def pixels(self, latents: torch.Tensor) -> NDArray[np.float32]: ...


def oracle(subject: Subject) -> GateResult:
    """Hold each guidance setting's run against the oracle; the first step that differs is named.

    Raises NothingMeasured when the card names no oracle, or an oracle shows no step.
    """
    named = subject.card.parity.oracle
    if named is None:
        raise NothingMeasured(f"card {subject.card.model_id!r} names no oracle to be held against")
    make = cast("Callable[[ModelSource], Oracle]", load_object(named))
    with subject.cpu():
        other = make(subject.source)
    measured, differences = 0, list[str]()
    runs = [subject.recorded] if subject.options.quick else [subject.recorded, _unguided(subject)]
    for run in runs:
        with subject.cpu():
            expected = other.run(run.output.provenance.spec)
        compared, found = _differences(subject, run, expected)
        measured += compared
        differences += found
    first = differences[0] if differences else None
    return GateResult(
        name=NAME,
        rung=Rung.C1,
        passed=first is None,
        measured=measured,
        variants=len(runs),
        variants_equal=len(runs) if first is None else 0,
        message=f"{measured} states of {len(runs)} runs equal those of {named.rpartition(':')[2]}"
        if first is None
        else f"first difference: {first}",
        detail={"oracle": named},
    )


def _unguided(subject: Subject) -> Recorded:
    return subject.record(subject.request(1))


def _differences(subject: Subject, run: Recorded, expected: OracleRun) -> tuple[int, list[str]]:
    """Return how much was compared, and what differs, in order."""
    steps, differences = served_latents(subject, run), list[str]()
    if not expected.step_latents or len(steps) != len(expected.step_latents):
        raise NothingMeasured(
            f"the oracle shows {len(expected.step_latents)} steps, we took {len(steps)}"
        )
    for step, (ours, theirs) in enumerate(zip(steps, expected.step_latents, strict=True), 1):
        if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
            worst = float((ours.double() - theirs.double()).abs().max())
            differences.append(f"latents after step {step} of {len(steps)}, by up to {worst:.3g}")
    if not np.array_equal(run.output.video.frames, expected.frames):
        differences.append("frames")
    measured = len(steps) + 1
    for name, decoder in _decoders(subject):
        measured += 1
        with subject.cpu(), torch.no_grad():
            pixels = decoder.pixels(run.output.latents)
        if not np.array_equal(pixels, expected.pixels):
            differences.append(f"pixels of {name}")
    return measured, differences


def served_latents(subject: Subject, run: Recorded) -> list[torch.Tensor]:
    """Return the latents after each step: what each next step was fed, then what was delivered."""
    fed: dict[int, torch.Tensor] = {}
    for call in run.calls:
        latents = call.inputs.get("latents")
        if call.component in subject.denoisers and isinstance(latents, torch.Tensor):
            fed.setdefault(call.unit.step, latents)
    return [*list(fed.values())[1:], run.output.latents]


def _decoders(subject: Subject) -> list[tuple[str, GivesPixels]]:
    resident = subject.resident()
    names = {loop.binds["latents"] for loop in subject.card.loops if "latents" in loop.binds}
    found = [(name, resident.component(name)) for name in sorted(names)]
    return [(name, component) for name, component in found if isinstance(component, GivesPixels)]
