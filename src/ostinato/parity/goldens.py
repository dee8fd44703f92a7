"""Goldens: what a model gave when it was last looked at, kept as a small JSON file.

Statistics hold across processors within a tolerance; sha256 of the exact bytes is kept with what
it was made on, and compared on no other. A file of goldens speaks of one card and one set of files,
and of nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ostinato.errors import InvalidCheckpoint
from ostinato.parity.sources import digests
from ostinato.parity.subject import Subject
from ostinato.parity.written import writing
from ostinato.report import describe_environment
from ostinato.runtime import Output
from ostinato.wire import decode, encode

_REQUESTS, _SAMPLES = 3, 16
_MADE_ON = ("processor", "threads", "torch")
# Five times what whole runs in float32 may lie from float64: two processors lie on either side.
_LATENTS = 1e-4
# One level of 255 for a single value; a mean over all of them moves by far less.
_LEVEL, _MEAN_LEVEL = 1.0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is kept of an array: moments, evenly spaced samples, and the hash of its bytes."""

    shape: tuple[int, ...]
    mean: float
    std: float
    largest: float
    samples: tuple[float, ...]
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """One request, by what makes it what it is, and what it gave."""

    prompt: str
    seed: int
    num_frames: int
    num_inference_steps: int
    guidance_scale: float
    sampler: str
    latents: Summary
    frames: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Goldens:
    """Of one model. sources: sha256 of whatever decides its bytes. made_on: where those hold."""

    sources: dict[str, str]
    made_on: dict[str, str]
    runs: tuple[GoldenRun, ...]


def make_goldens(subject: Subject) -> Goldens:
    """Serve the requests and summarise what they gave."""
    requests = [subject.request(index) for index in range(_REQUESTS)]
    return Goldens(
        sources=digests(subject.source),
        made_on=made_on(subject.threads),
        runs=tuple(_run(output) for output in subject.alone(requests)),
    )


def write_goldens(goldens: Goldens, path: Path) -> None:
    """Write the file; raises InvalidOutput where that cannot be done."""
    with writing(path):
        path.write_bytes(encode(goldens) + b"\n")


def read_goldens(path: Path) -> Goldens:
    """Read the file; raises InvalidCheckpoint when it is not there, BadInput for other content."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidCheckpoint(
            f"the goldens {str(path)!r} cannot be read ({error}); make them with "
            "`ostinato verify MODEL --write-goldens PATH`"
        ) from error
    return decode(data, Goldens, what=f"goldens {str(path)!r}")


def made_on(threads: int) -> dict[str, str]:
    """Return what exact bytes depend on beside the model; kernels: the vector units torch uses."""
    environment = describe_environment(threads)
    kernels = torch.backends.cpu.get_cpu_capability()
    return {**{name: environment[name] for name in _MADE_ON}, "kernels": kernels}


def elsewhere(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[str, ...]:
    """Name each thing that bytes depend on and that is another one here than it was there."""
    return tuple(
        f"{name}: {here.get(name)!r} here, {there.get(name)!r} there"
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    )


def differences(found: Goldens, kept: Goldens, *, bitwise: bool) -> Iterator[str]:
    """Say what differs, in the bytes too where the card promises them.

    They are compared only where both were made on one kind of machine.
    """
    bitwise = bitwise and not elsewhere(found.made_on, kept.made_on)
    for index, (mine, other) in enumerate(zip(found.runs, kept.runs, strict=True)):
        if _identity(mine) != _identity(other):
            yield f"request {index} is another one now; make the goldens again"
            continue
        scale = other.latents.largest * _LATENTS
        pairs = (
            ("latents", mine.latents, other.latents, scale, scale),
            ("frames", mine.frames, other.frames, _LEVEL, _MEAN_LEVEL),
        )
        for name, one, two, value_bound, moment_bound in pairs:
            where = f"{name} of request {index}"
            if bitwise and one.sha256 != two.sha256:
                yield f"{where} have other bytes, on what the goldens were made on"
            yield from _apart(where, one, two, value_bound, moment_bound)


def _apart(
    where: str, one: Summary, two: Summary, value_bound: float, moment_bound: float
) -> Iterator[str]:
    if one.shape != two.shape:
        yield f"{where} have shape {list(one.shape)}, expected {list(two.shape)}"
        return
    for name in ("mean", "std"):
        mine, other = getattr(one, name), getattr(two, name)
        if not abs(mine - other) <= moment_bound:
            yield f"{where}: {name} is {mine:.6g}, expected {other:.6g} within {moment_bound:.3g}"
    worst = max(abs(a - b) for a, b in zip(one.samples, two.samples, strict=True))
    if not worst <= value_bound:
        yield f"{where}: a sampled value is off by {worst:.3g}, allowed {value_bound:.3g}"


def _identity(run: GoldenRun) -> tuple[object, ...]:
    fields = ("prompt", "seed", "num_frames", "num_inference_steps", "guidance_scale", "sampler")
    return tuple(getattr(run, name) for name in fields)


def _run(output: Output) -> GoldenRun:
    spec = output.provenance.spec
    return GoldenRun(
        prompt=spec.prompt,
        seed=spec.seed,
        num_frames=spec.num_frames,
        num_inference_steps=spec.num_inference_steps,
        guidance_scale=spec.guidance_scale,
        sampler=spec.sampler,
        latents=_summary(output.latents),
        frames=_summary(torch.from_numpy(output.video.frames)),
    )


def _summary(values: torch.Tensor) -> Summary:
    flat = values.contiguous().view(-1)
    exact = flat.double()
    step = max(1, len(exact) // _SAMPLES)
    return Summary(
        shape=tuple(values.shape),
        mean=float(exact.mean()),
        std=float(exact.std()),
        largest=float(exact.abs().max()),
        samples=tuple(exact[step // 2 :: step][:_SAMPLES].tolist()),
        sha256=hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
    )
