"""Requests made from what a card says: contrasting, out of range, against the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from ostinato.card import GuidanceForm, ModelCard, ScheduleAssumption, SizeRange
from ostinato.request import ImagePart, LatentPart
from ostinato.tasks import Modality, OutputName

SIZES = ("height", "width", "num_frames", "num_inference_steps")
TWO_BRANCHES = (GuidanceForm.TWO_FORWARD, GuidanceForm.BATCHED)


def contrasting(card: ModelCard, small: Mapping[str, object]) -> tuple[Mapping[str, object], ...]:
    """Return fields of requests that differ in all that may differ, the smallest first.

    small: fields of the smallest request that runs every node.
    """
    caps, pinned = card.capabilities, card.recipe.assumes_schedule
    guided = caps.guidance is not GuidanceForm.NONE and pinned.guidance_scale is None
    scale = {"guidance_scale": 3.0} if guided else {}
    off = {"guidance_scale": 1.0} if guided else {}
    sampler = {"sampler": caps.samplers[-1]} if pinned.sampler is None else {}
    negative = {"negative_prompt": "blurry"} if caps.negative_prompt else {}
    sizes = {n: _other_size(getattr(caps, n), small.get(n)) for n in ("height", "num_frames")}
    steps = _other_size(caps.num_inference_steps, small.get("num_inference_steps"))
    more = {"num_inference_steps": steps} if pinned.num_inference_steps is None else {}
    return (
        {"seed": 1, **small, **scale},
        {"seed": 2, **small, **off, **more, **sampler},
        {"seed": 3, **small, **scale, **sizes, **negative},
        {"seed": 1, **small, **off, **sizes},
    )


def _other_size(allowed: SizeRange, value: object) -> int | None:
    if not isinstance(value, int):
        return None
    for other in (value + allowed.multiple, value - allowed.multiple):
        if allowed.accepts(other):
            return other
    return value


def out_of_range(card: ModelCard) -> Iterator[Mapping[str, object]]:
    """Yield fields that no request to this card may have."""
    caps = card.capabilities
    for name in SIZES:
        allowed: SizeRange = getattr(caps, name)
        yield {name: allowed.minimum - allowed.multiple}
        yield {name: allowed.maximum + allowed.multiple}
        yield {name: 0}
        yield {name: -1}
        yield {name: float(allowed.minimum) + 0.5}
        if allowed.multiple > 1:
            yield {name: allowed.minimum + allowed.multiple // 2}
    yield {"sampler": "no-such-sampler"}
    yield {"outputs": ()}
    yield {"outputs": ("no-such-output",)}
    yield {"outputs": (caps.outputs[0], caps.outputs[0])}
    for name in set(OutputName) - set(caps.outputs):
        yield {"outputs": (name,)}
    yield {"seed": -1}
    yield {"prompt": " "}
    for scale in (0.5, float("nan"), float("inf")):
        yield {"guidance_scale": scale}
    if caps.guidance is GuidanceForm.NONE:
        yield {"guidance_scale": 2.0}
    if not caps.negative_prompt:
        yield {"negative_prompt": "blurry"}
    foreign = {
        Modality.IMAGE: ImagePart(pixels=_Array()),
        Modality.LATENT: LatentPart(latents=_Array()),
    }
    for modality, part in foreign.items():
        if modality not in caps.inputs:
            yield {"inputs": (part,)}


class _Array:
    """Something with a shape, for inputs that are refused before they are looked at."""

    shape = (1, 2, 3)


def pinned_variants(card: ModelCard) -> Iterator[ModelCard]:
    """Yield variants whose recipe pins one point of the schedule each, at the card's default."""
    caps, defaults = card.capabilities, card.defaults
    shift = 3.0 if defaults.flow_shift is None else defaults.flow_shift
    points: tuple[dict[str, object], ...] = (
        {"sampler": caps.samplers[0]},
        {"num_inference_steps": (defaults.num_inference_steps,)},
        {"guidance_scale": defaults.guidance_scale},
        {"flow_shift": shift},
    )
    for point in points:
        pinned = dataclasses.replace(card.recipe.assumes_schedule, **point)  # type: ignore[arg-type]
        recipe = dataclasses.replace(card.recipe, assumes_schedule=pinned)
        own = dataclasses.replace(defaults, flow_shift=shift) if "flow_shift" in point else defaults
        name = f"{card.model_id}-{min(point)}"
        yield card.derive(model_id=name, recipe=recipe, defaults=own)


def contradictions(card: ModelCard) -> Iterator[Mapping[str, object]]:
    """Yield fields that contradict each point which the recipe pins."""
    pinned: ScheduleAssumption = card.recipe.assumes_schedule
    if pinned.num_inference_steps is not None:
        yield {"num_inference_steps": max(pinned.num_inference_steps) + 1}
    if pinned.sampler is not None:
        yield {"sampler": f"not-{pinned.sampler}"}
    if pinned.guidance_scale is not None:
        yield {"guidance_scale": pinned.guidance_scale + 0.5}
    if pinned.flow_shift is not None:
        yield {"flow_shift": pinned.flow_shift + 0.5}
