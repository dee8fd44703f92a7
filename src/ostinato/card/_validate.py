"""Consistency of a card: all errors at once, so that a person mends it in one go."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ostinato.card._spec import GuidanceForm

if TYPE_CHECKING:
    from ostinato.card._card import ModelCard

_IMPORT_STRING = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def card_errors(card: ModelCard) -> tuple[str, ...]:
    """Return every inconsistency of `card`, in the order of its fields."""
    return (
        *_component_errors(card),
        *_loop_errors(card),
        *_program_errors(card),
        *_capability_errors(card),
        *_recipe_errors(card),
        *_default_errors(card),
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
        if ".." in spec.subfolder.split("/") or spec.subfolder.startswith("/"):
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
    for task in served - set(card.capabilities.tasks):
        yield f"a program serves {task.value!r}, but capabilities do not list it"


def _capability_errors(card: ModelCard) -> Iterator[str]:
    caps = card.capabilities
    if not caps.tasks:
        yield "capabilities.tasks is empty"
    if not caps.outputs:
        yield "capabilities.outputs is empty"
    if not caps.samplers:
        yield "capabilities.samplers is empty; the first is the default"
    for name in ("height", "width", "num_frames", "num_inference_steps"):
        size = getattr(caps, name)
        if size.multiple < 1 or size.minimum < 1 or size.maximum < size.minimum:
            yield f"capabilities.{name} is empty or not positive: {size.describe()}"
    if caps.negative_prompt and caps.guidance in (GuidanceForm.NONE, GuidanceForm.EMBEDDED):
        yield f"negative_prompt needs a second branch, but guidance is {caps.guidance.value!r}"


def _recipe_errors(card: ModelCard) -> Iterator[str]:
    recipe, pinned = card.recipe, card.recipe.assumes_schedule
    loops = {spec.name: spec for spec in card.loops}
    if recipe.assumes_loop not in loops:
        yield f"recipe assumes loop {recipe.assumes_loop!r}; declared: {sorted(loops)}"
    elif pinned.attention_context is not None:
        served = loops[recipe.assumes_loop].options.get("attention_context", "bidirectional")
        if served != pinned.attention_context.value:
            yield (
                f"recipe assumes attention context {pinned.attention_context.value!r}, but loop "
                f"{recipe.assumes_loop!r} serves {served!r}"
            )
    if pinned.sampler is not None and pinned.sampler not in card.capabilities.samplers:
        yield f"recipe assumes sampler {pinned.sampler!r}, which capabilities do not list"
    if pinned.guidance is not None and pinned.guidance is not card.capabilities.guidance:
        yield (
            f"recipe assumes guidance {pinned.guidance.value!r}, but capabilities say "
            f"{card.capabilities.guidance.value!r}"
        )
    if card.precision.weights not in _DTYPES or card.precision.latents not in _DTYPES:
        yield f"precision {card.precision} names a dtype outside {_DTYPES}"
    if recipe.assumes_precision != card.precision.weights:
        yield (
            f"recipe assumes precision {recipe.assumes_precision!r}, but the card keeps weights "
            f"in {card.precision.weights!r}"
        )
    if card.parity.oracle is not None:
        yield from _import_string(card.parity.oracle, "parity.oracle")
    if not card.parity.levels:
        yield "parity.levels is empty; a card declares what it is held to"


def _default_errors(card: ModelCard) -> Iterator[str]:
    for name, suite in card.suites.items():
        yield from _import_string(suite, f"suite {name!r}")
    caps, defaults, pinned = card.capabilities, card.defaults, card.recipe.assumes_schedule
    for name in ("height", "width", "num_frames", "num_inference_steps"):
        size, value = getattr(caps, name), getattr(defaults, name)
        if not size.accepts(value):
            yield f"defaults.{name} is {value}; capabilities allow {size.describe()}"
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
