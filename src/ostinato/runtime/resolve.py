"""From a request to a generation spec: defaults filled in, everything checked, nothing bent.

All problems of one kind are reported at once. Order: the task, then what the recipe assumes, then
ranges; so a person hears the most telling reason first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

from ostinato.card import GuidanceForm, ModelCard
from ostinato.errors import InvalidRequest, RecipeMismatch, UnsupportedTask
from ostinato.request import GenerationSpec, LatentPart, Request
from ostinato.tasks import ModelId, OutputName, RequestId, TaskType

T = TypeVar("T")

_MAX_SEED = 2**63 - 1
_MAX_FPS = 240.0


def resolve(card: ModelCard, request: Request, request_id: RequestId) -> GenerationSpec:
    """Validate against the card; raises UnsupportedTask, RecipeMismatch or InvalidRequest."""
    task = _task(card, request)
    mismatches = tuple(_recipe_mismatches(card, request))
    if mismatches:
        raise RecipeMismatch(_listed(f"the recipe of {card.model_id!r} forbids this", mismatches))
    errors = tuple(_field_errors(card, request))
    if errors:
        raise InvalidRequest(_listed(f"the request to {card.model_id!r} is not valid", errors))
    defaults = card.defaults
    latents = [part.latents for part in request.inputs if isinstance(part, LatentPart)]
    return GenerationSpec(
        request_id=request_id,
        model=ModelId(request.model),
        task=task,
        prompt=request.prompt,
        negative_prompt=_given(request.negative_prompt, defaults.negative_prompt),
        seed=request.seed,
        height=_given(request.height, defaults.height),
        width=_given(request.width, defaults.width),
        num_frames=_given(request.num_frames, defaults.num_frames),
        fps=float(_given(request.fps, defaults.fps)),
        num_inference_steps=_given(request.num_inference_steps, defaults.num_inference_steps),
        guidance_scale=float(_given(request.guidance_scale, defaults.guidance_scale)),
        sampler=_given(request.sampler, card.capabilities.samplers[0]),
        flow_shift=_given(request.flow_shift, defaults.flow_shift),
        outputs=tuple(OutputName(name) for name in request.outputs),
        initial_latents=latents[0] if latents else None,
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _listed(head: str, lines: tuple[str, ...]) -> str:
    return f"{head}: {lines[0]}" if len(lines) == 1 else f"{head}:\n  - " + "\n  - ".join(lines)


def _task(card: ModelCard, request: Request) -> TaskType:
    served = [task.value for task in card.capabilities.tasks]
    if request.task not in served:
        raise UnsupportedTask(
            f"{card.model_id!r} does not serve task {str(request.task)!r}; it serves: "
            f"{', '.join(served)}"
        )
    return TaskType(request.task)


def _recipe_mismatches(card: ModelCard, request: Request) -> Iterator[str]:
    pinned = card.recipe.assumes_schedule
    steps = request.num_inference_steps
    if pinned.num_inference_steps is not None and steps is not None:
        allowed = pinned.num_inference_steps
        if steps not in allowed:
            wanted = " or ".join(map(str, allowed))
            yield (
                f"num_inference_steps is {steps!r}, but these weights were made by "
                f"{card.recipe.method!r} for {wanted}; leave it out"
            )
    for name in ("sampler", "guidance_scale", "flow_shift"):
        assumed, asked = getattr(pinned, name), getattr(request, name)
        if assumed is not None and asked is not None and asked != assumed:
            yield f"{name} is {asked!r}, but these weights assume {assumed!r}; leave it out"


def _field_errors(card: ModelCard, request: Request) -> Iterator[str]:
    if not isinstance(request.prompt, str) or not request.prompt.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        yield f"prompt is {request.prompt!r}; expected some words"
    yield from _size_errors(card, request)
    yield from _sampling_errors(card, request)
    yield from _input_errors(card, request)
    if not _is_int(request.seed) or not 0 <= request.seed <= _MAX_SEED:
        yield f"seed is {request.seed!r}; expected a whole number from 0 to 2**63 - 1"
    fps = request.fps
    if fps is not None and not (_is_number(fps) and 0 < fps <= _MAX_FPS):
        yield f"fps is {fps!r}; expected more than 0 and at most {_MAX_FPS:g}"
    if request.deadline_s is not None and not (
        _is_number(request.deadline_s) and request.deadline_s > 0
    ):
        yield f"deadline_s is {request.deadline_s!r}; expected seconds above 0"
    if not _is_int(request.priority):
        yield f"priority is {request.priority!r}; expected a whole number"


def _size_errors(card: ModelCard, request: Request) -> Iterator[str]:
    for name in ("height", "width", "num_frames", "num_inference_steps"):
        value, allowed = getattr(request, name), getattr(card.capabilities, name)
        if value is None:
            continue
        if not _is_int(value):
            yield f"{name} is {value!r}; expected a whole number"
        elif not allowed.accepts(value):
            nearest = " or ".join(map(str, allowed.nearest(value)))
            yield f"{name} is {value}; expected {allowed.describe()}; nearest: {nearest}"


def _sampling_errors(card: ModelCard, request: Request) -> Iterator[str]:
    caps = card.capabilities
    scale = request.guidance_scale
    if scale is not None and not (_is_number(scale) and math.isfinite(scale) and scale >= 1.0):
        yield f"guidance_scale is {scale!r}; expected a finite number of at least 1.0 (1.0: off)"
    elif scale is not None and scale > 1.0 and caps.guidance is GuidanceForm.NONE:
        yield f"guidance_scale is {scale!r}, but this model runs without guidance; leave it out"
    if request.sampler is not None and request.sampler not in caps.samplers:
        yield f"sampler is {request.sampler!r}; valid: {', '.join(caps.samplers)}"
    shift = request.flow_shift
    if shift is not None and not (_is_number(shift) and math.isfinite(shift) and shift > 0):
        yield f"flow_shift is {shift!r}; expected a finite number above 0"
    if request.negative_prompt and not caps.negative_prompt:
        yield "negative_prompt is given, but this model has no second branch; leave it out"


def _input_errors(card: ModelCard, request: Request) -> Iterator[str]:
    accepted = [modality.value for modality in card.capabilities.inputs]
    for part in request.parts():
        if part.modality.value not in accepted:
            yield f"an input of modality {part.modality.value!r} is given; valid: {accepted}"
    if sum(isinstance(part, LatentPart) for part in request.inputs) > 1:
        yield "more than one initial latents are given; expected one"
    offered = [output.value for output in card.capabilities.outputs]
    if not request.outputs:
        yield f"outputs is empty; valid: {offered}"
    for name in request.outputs:
        if name not in offered:
            yield f"outputs has {str(name)!r}; valid: {offered}"
    if len(set(request.outputs)) != len(request.outputs):
        yield f"outputs repeats a name: {[str(name) for name in request.outputs]}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
