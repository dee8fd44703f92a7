"""From a request to a generation spec: defaults filled in, everything checked, nothing bent.

All problems of one kind are reported at once. Order: the task, then what the recipe assumes, then
ranges; so a person hears the most telling reason first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeGuard, TypeVar

from ostinato.card import GuidanceForm, ModelCard
from ostinato.errors import InvalidRequest, RecipeMismatch, UnsupportedTask
from ostinato.request import (
    GenerationSpec,
    ImagePart,
    LatentPart,
    ModalPart,
    Request,
    TextPart,
)
from ostinato.runtime.latents import copied_latents
from ostinato.runtime.plain import plain, shown
from ostinato.tasks import ModelId, OutputName, RequestId, TaskType

T = TypeVar("T")

_MAX_SEED = 2**63 - 1
_MAX_FPS = 240.0
# Predictions are of order 10: scaled by this they stay within float16 (65504), and the difference
# of two branches keeps digits in float32. No model is guided beyond a few tens.
_MAX_GUIDANCE_SCALE = 1000.0
# Further out, float32 no longer tells the sigmas of a schedule apart.
_MIN_FLOW_SHIFT, _MAX_FLOW_SHIFT = 1e-3, 1e3
# Far beyond what any text encoder reads, and short enough to clean and tokenize at once.
_MAX_PROMPT_CHARS = 10_000
_MAX_TENANT_CHARS = 200


def resolve(card: ModelCard, request: Request, request_id: RequestId) -> GenerationSpec:
    """Validate against the card; raises UnsupportedTask, RecipeMismatch or InvalidRequest."""
    task = _task(card, request)
    request = plain(request)
    mismatches = tuple(_recipe_mismatches(card, request))
    if mismatches:
        raise RecipeMismatch(_listed(f"the recipe of {card.model_id!r} forbids this", mismatches))
    errors = tuple(_field_errors(card, request))
    if errors:
        raise InvalidRequest(_listed(f"the request to {card.model_id!r} is not valid", errors))
    defaults = card.defaults
    latents = [part.latents for part in request.inputs if isinstance(part, LatentPart)]
    flow_shift = _given(request.flow_shift, defaults.flow_shift)
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
        flow_shift=None if flow_shift is None else float(flow_shift),
        outputs=tuple(OutputName(name) for name in request.outputs),
        initial_latents=copied_latents(latents[0]) if latents else None,
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _listed(head: str, lines: tuple[str, ...]) -> str:
    return f"{head}: {lines[0]}" if len(lines) == 1 else f"{head}:\n  - " + "\n  - ".join(lines)


def _task(card: ModelCard, request: Request) -> TaskType:
    served = [task.value for task in card.capabilities.tasks]
    if not _is_text(request.task) or request.task not in served:
        raise UnsupportedTask(
            f"{card.model_id!r} does not serve task {shown(request.task)}; it serves: "
            f"{', '.join(served)}"
        )
    return TaskType(request.task)


def _recipe_mismatches(card: ModelCard, request: Request) -> Iterator[str]:
    pinned = card.recipe.assumes_schedule
    steps = request.num_inference_steps
    if pinned.num_inference_steps is not None and _is_int(steps):
        allowed = pinned.num_inference_steps
        if steps not in allowed:
            wanted = " or ".join(map(str, allowed))
            yield (
                f"num_inference_steps is {shown(steps)}, but these weights were made by "
                f"{card.recipe.method!r} for {wanted}; leave it out"
            )
    for name in ("sampler", "guidance_scale", "flow_shift"):
        assumed, asked = getattr(pinned, name), getattr(request, name)
        if assumed is None or not (_is_text(asked) or _is_real(asked)):
            continue  # not asked for, or no value at all: a field error
        if asked != assumed:
            yield f"{name} is {shown(asked)}, but these weights assume {assumed!r}; leave it out"


def _field_errors(card: ModelCard, request: Request) -> Iterator[str]:
    yield from _prompt_errors(card, request)
    yield from _size_errors(card, request)
    yield from _sampling_errors(card, request)
    yield from _input_errors(card, request)
    yield from _output_errors(card, request)
    if not _is_int(request.seed) or not 0 <= request.seed <= _MAX_SEED:
        yield f"seed is {shown(request.seed)}; expected a whole number from 0 to 2**63 - 1"
    fps, deadline = request.fps, request.deadline_s
    if fps is not None and not (_is_real(fps) and 0 < fps <= _MAX_FPS):
        yield f"fps is {shown(fps)}; expected more than 0 and at most {_MAX_FPS:g}"
    if deadline is not None and not (_is_real(deadline) and 0 < deadline < math.inf):
        yield f"deadline_s is {shown(deadline)}; expected finite seconds above 0"
    if not _is_int(request.priority):
        yield f"priority is {shown(request.priority)}; expected a whole number"
    tenant = request.tenant
    if not _is_text(tenant) or not 0 < len(tenant) <= _MAX_TENANT_CHARS:
        yield f"tenant is {shown(tenant)}; expected a name of 1 to {_MAX_TENANT_CHARS} characters"


def _prompt_errors(card: ModelCard, request: Request) -> Iterator[str]:
    if not _is_text(request.prompt) or not request.prompt.strip():
        yield f"prompt is {shown(request.prompt)}; expected some words"
    negative = request.negative_prompt
    if negative is not None and not _is_text(negative):
        yield f"negative_prompt is {shown(negative)}; expected words"
    elif negative and not card.capabilities.negative_prompt:
        yield "negative_prompt is given, but this model has no second branch; leave it out"
    for name, text in (("prompt", request.prompt), ("negative_prompt", negative)):
        if _is_text(text):
            yield from _text_errors(name, text)


def _text_errors(name: str, text: str) -> Iterator[str]:
    if len(text) > _MAX_PROMPT_CHARS:
        yield f"{name} has {len(text)} characters; expected at most {_MAX_PROMPT_CHARS}"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        yield f"{name} has a lone surrogate at {error.start}; expected text that UTF-8 can encode"


def _size_errors(card: ModelCard, request: Request) -> Iterator[str]:
    for name in ("height", "width", "num_frames", "num_inference_steps"):
        value, allowed = getattr(request, name), getattr(card.capabilities, name)
        if value is None:
            continue
        if not _is_int(value):
            yield f"{name} is {shown(value)}; expected a whole number"
        elif not allowed.accepts(value):
            nearest = " or ".join(map(str, allowed.nearest(value)))
            yield f"{name} is {shown(value)}; expected {allowed.describe()}; nearest: {nearest}"


def _sampling_errors(card: ModelCard, request: Request) -> Iterator[str]:
    caps = card.capabilities
    scale = request.guidance_scale
    if scale is not None and not (_is_real(scale) and 1.0 <= scale <= _MAX_GUIDANCE_SCALE):
        yield (
            f"guidance_scale is {shown(scale)}; expected a finite number of at least 1.0 (off) "
            f"and at most {_MAX_GUIDANCE_SCALE:g}"
        )
    elif scale is not None and scale > 1.0 and caps.guidance is GuidanceForm.NONE:
        yield f"guidance_scale is {scale!r}, but this model runs without guidance; leave it out"
    sampler = request.sampler
    if sampler is not None and not (_is_text(sampler) and sampler in caps.samplers):
        yield f"sampler is {shown(sampler)}; valid: {', '.join(caps.samplers)}"
    shift = request.flow_shift
    if shift is not None and not (_is_real(shift) and _MIN_FLOW_SHIFT <= shift <= _MAX_FLOW_SHIFT):
        yield (
            f"flow_shift is {shown(shift)}; expected a finite number above 0, "
            f"from {_MIN_FLOW_SHIFT:g} to {_MAX_FLOW_SHIFT:g}"
        )


def _input_errors(card: ModelCard, request: Request) -> Iterator[str]:
    accepted = [modality.value for modality in card.capabilities.inputs]
    for part in request.parts():
        if not _is_part(part):
            yield f"inputs has {shown(part)}; expected parts such as LatentPart(latents=...)"
        elif part.modality.value not in accepted:
            yield f"an input of modality {part.modality.value!r} is given; valid: {accepted}"
    if sum(isinstance(part, LatentPart) for part in request.inputs) > 1:
        yield "more than one initial latents are given; expected one"


def _output_errors(card: ModelCard, request: Request) -> Iterator[str]:
    offered = [output.value for output in card.capabilities.outputs]
    if not request.outputs:
        yield f"outputs is empty; valid: {offered}"
    names = [str(name) for name in request.outputs if _is_text(name)]
    for name in request.outputs:
        if not _is_text(name) or name not in offered:
            yield f"outputs has {shown(name)}; valid: {offered}"
    if len(set(names)) != len(names):
        yield f"outputs repeats a name: {names}"


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> TypeGuard[float]:
    """Tell whether `plain` made a float of it; not a bool, not beyond what a float holds."""
    return isinstance(value, float)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_part(value: object) -> TypeGuard[ModalPart]:
    return isinstance(value, TextPart | ImagePart | LatentPart)
