"""Consistency of a card: all errors at once, so that a person mends it in one go."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ostinato.card._spec import AttentionContext, GuidanceForm, LoopSpec, SizeRange

if TYPE_CHECKING:
    from ostinato.card._card import ModelCard

_IMPORT_STRING = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_CARD_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FILE_DIGEST = re.compile(r"[0-9a-f]{64}")
_SIZES = ("height", "width", "num_frames", "num_inference_steps")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def card_errors(card: ModelCard) -> tuple[str, ...]:
    """Return every inconsistency of `card`, in the order of its fields."""
    return (
        *_component_errors(card),
        *_loop_errors(card),
        *_program_errors(card),
        *_capability_errors(card),
        *_recipe_errors(card),
        *_pinned_errors(card),
        *_default_errors(card),
        *_parity_errors(card),
        *_attachment_errors(card),
    )


def _import_string(value: str, where: str) -> Iterator[str]:
    if not _IMPORT_STRING.fullmatch(value):
        yield f"{where} is {value!r}; expected an import string such as 'package.module:Name'"


def _duplicates(names: Iterable[str], where: str) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{where} {name!r} is declared {count} times"


def _component_errors(card: ModelCard) -> Iterator[str]:
    if not card.model_id:
        yield "model_id is empty"
    if not card.components:
        yield "components is empty; a card owns at least one"
    yield from _duplicates((c.name for c in card.components), "component")
    bound = {component for loop in card.loops for component in loop.binds.values()}
    for spec in card.components:
        yield from _import_string(spec.adapter, f"component {spec.name!r}: adapter")
        if not spec.ops and spec.name not in bound:
            yield f"component {spec.name!r}: ops is empty and no loop binds it, so nothing uses it"
        if _leaves_folder(spec.subfolder):
            yield f"component {spec.name!r}: subfolder {spec.subfolder!r} leaves the model folder"


def _loop_errors(card: ModelCard) -> Iterator[str]:
    names = {c.name for c in card.components}
    yield from _duplicates((loop.name for loop in card.loops), "loop")
    for spec in card.loops:
        yield from _import_string(spec.loop, f"loop {spec.name!r}")
        for role, component in spec.binds.items():
            if component not in names:
                yield (
                    f"loop {spec.name!r}: role {role!r} binds {component!r}, "
                    f"which is no component; valid: {sorted(names)}"
                )


def _program_errors(card: ModelCard) -> Iterator[str]:
    yield from _duplicates((p.task for p in card.programs), "program for task")
    for spec in card.programs:
        yield from _import_string(spec.program, f"program for {spec.task.value!r}")
    served = {p.task for p in card.programs}
    for task in card.capabilities.tasks:
        if task not in served:
            yield f"capabilities list task {task.value!r}, but no program serves it"
    for task in sorted(served - set(card.capabilities.tasks)):
        yield f"a program serves {task.value!r}, but capabilities do not list it"


def _capability_errors(card: ModelCard) -> Iterator[str]:
    caps = card.capabilities
    if not caps.tasks:
        yield "capabilities.tasks is empty"
    if not caps.outputs:
        yield "capabilities.outputs is empty"
    if not caps.samplers:
        yield "capabilities.samplers is empty; the first is the default"
    for name in ("tasks", "inputs", "outputs", "samplers"):
        yield from _duplicates(getattr(caps, name), f"capabilities.{name}:")
    for name in _SIZES:
        size = getattr(caps, name)
        if not _holds_a_size(size):
            yield f"capabilities.{name} is empty or not positive: {size.describe()}"
    if caps.negative_prompt and caps.guidance in (GuidanceForm.NONE, GuidanceForm.EMBEDDED):
        yield f"negative_prompt needs a second branch, but guidance is {caps.guidance.value!r}"


def _holds_a_size(size: SizeRange) -> bool:
    if size.multiple < 1 or size.minimum < 1:
        return False
    return size.minimum + (size.offset - size.minimum) % size.multiple <= size.maximum


def _recipe_errors(card: ModelCard) -> Iterator[str]:
    recipe = card.recipe
    loops = {spec.name: spec for spec in card.loops}
    if recipe.assumes_loop not in loops:
        yield f"recipe assumes loop {recipe.assumes_loop!r}; declared: {sorted(loops)}"
    else:
        yield from _assumed_loop_errors(card, loops[recipe.assumes_loop])
    for parent in (*recipe.parents, *((card.parent,) if card.parent is not None else ())):
        if not _CARD_DIGEST.fullmatch(parent.digest):
            yield (
                f"parent {parent.model_id!r}: digest {parent.digest!r}; expected 'sha256:' and "
                "64 hex digits"
            )
    if card.precision.weights not in _DTYPES or card.precision.latents not in _DTYPES:
        yield f"precision {card.precision} names a dtype outside {_DTYPES}"
    if recipe.assumes_precision != card.precision.weights:
        yield (
            f"recipe assumes precision {recipe.assumes_precision!r}, but the card keeps weights "
            f"in {card.precision.weights!r}"
        )


def _assumed_loop_errors(card: ModelCard, spec: LoopSpec) -> Iterator[str]:
    """Hold the loop's own options against what the card says of them."""
    pinned = card.recipe.assumes_schedule
    served = spec.options.get("attention_context", AttentionContext.BIDIRECTIONAL.value)
    if pinned.attention_context is not None and served != pinned.attention_context.value:
        yield (
            f"recipe assumes attention context {pinned.attention_context.value!r}, but loop "
            f"{spec.name!r} serves {served!r}"
        )
    form = spec.options.get("guidance")
    if form is not None and form != card.capabilities.guidance.value:
        yield (
            f"loop {spec.name!r} runs guidance {form!r}, but capabilities say "
            f"{card.capabilities.guidance.value!r}"
        )


def _pinned_errors(card: ModelCard) -> Iterator[str]:
    """Hold what the recipe pins against what can be asked for."""
    caps, pinned = card.capabilities, card.recipe.assumes_schedule
    if pinned.sampler is not None and pinned.sampler not in caps.samplers:
        yield f"recipe assumes sampler {pinned.sampler!r}, which capabilities do not list"
    elif pinned.sampler is not None and pinned.sampler != caps.samplers[0]:
        yield (
            f"recipe assumes sampler {pinned.sampler!r}, but the default is {caps.samplers[0]!r}; "
            "list the assumed one first"
        )
    if pinned.guidance is not None and pinned.guidance is not caps.guidance:
        yield (
            f"recipe assumes guidance {pinned.guidance.value!r}, but capabilities say "
            f"{caps.guidance.value!r}"
        )
    for steps in pinned.num_inference_steps or ():
        if _holds_a_size(caps.num_inference_steps) and not caps.num_inference_steps.accepts(steps):
            yield (
                f"recipe assumes {steps} steps, but capabilities allow "
                f"{caps.num_inference_steps.describe()}"
            )


def _default_errors(card: ModelCard) -> Iterator[str]:
    caps, defaults, pinned = card.capabilities, card.defaults, card.recipe.assumes_schedule
    for name in _SIZES:
        size, value = getattr(caps, name), getattr(defaults, name)
        if _holds_a_size(size) and not size.accepts(value):
            yield f"defaults.{name} is {value}; capabilities allow {size.describe()}"
    if defaults.fps <= 0:
        yield f"defaults.fps is {defaults.fps}; expected more than 0"
    if defaults.flow_shift is not None and defaults.flow_shift <= 0:
        yield f"defaults.flow_shift is {defaults.flow_shift}; expected more than 0"
    if defaults.guidance_scale < 1.0:
        yield f"defaults.guidance_scale is {defaults.guidance_scale}; expected at least 1.0 (off)"
    if defaults.guidance_scale > 1.0 and caps.guidance is GuidanceForm.NONE:
        yield f"defaults.guidance_scale is {defaults.guidance_scale}, but guidance is 'none'"
    if defaults.negative_prompt and not caps.negative_prompt:
        yield "defaults.negative_prompt is given, but capabilities say that nothing reads it"
    if defaults.task not in caps.tasks:
        yield f"defaults.task {defaults.task.value!r} is not among capabilities.tasks"
    steps = pinned.num_inference_steps
    if steps is not None and defaults.num_inference_steps not in steps:
        yield f"defaults.num_inference_steps is {defaults.num_inference_steps}; recipe: {steps}"
    scale = pinned.guidance_scale
    if scale is not None and defaults.guidance_scale != scale:
        yield f"defaults.guidance_scale is {defaults.guidance_scale}; recipe assumes {scale}"
    if pinned.flow_shift is not None and defaults.flow_shift != pinned.flow_shift:
        yield f"defaults.flow_shift is {defaults.flow_shift}; recipe assumes {pinned.flow_shift}"


def _parity_errors(card: ModelCard) -> Iterator[str]:
    parity, frames = card.parity, card.capabilities.num_frames
    if not parity.levels:
        yield "parity.levels is empty; a card declares what it is held to"
    yield from _duplicates((level.value for level in parity.levels), "parity level")
    for name, value in (("oracle", parity.oracle), ("reference", parity.reference)):
        if value is not None:
            yield from _import_string(value, f"parity.{name}")
    for dtype, tolerance in parity.fast_batch_tolerances.items():
        if dtype not in _DTYPES:
            yield f"parity.fast_batch_tolerances names {dtype!r}; expected one of {_DTYPES}"
        if tolerance < 0:
            yield f"parity.fast_batch_tolerances[{dtype!r}] is {tolerance}; expected at least 0"
    if _holds_a_size(frames) and not frames.accepts(parity.num_frames):
        yield f"parity.num_frames is {parity.num_frames}; capabilities allow {frames.describe()}"


def _attachment_errors(card: ModelCard) -> Iterator[str]:
    """Check the suites and files that the card names."""
    if card.cpu_threads is not None and card.cpu_threads < 1:
        yield f"cpu_threads is {card.cpu_threads}; expected at least 1, or nothing"
    for name, suite in card.suites.items():
        yield from _import_string(suite, f"suite {name!r}")
    yield from _duplicates((file.path for file in card.files), "file")
    for file in card.files:
        if not file.path or _leaves_folder(file.path):
            yield f"file {file.path!r} is no path below the model folder"
        if not _FILE_DIGEST.fullmatch(file.sha256):
            yield f"file {file.path!r}: sha256 {file.sha256!r}; expected 64 hex digits"


def _leaves_folder(path: str) -> bool:
    return ".." in path.split("/") or path.startswith("/")
