"""`ostinato inspect`: what one model promises, and how its weights were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ostinato.cli._arguments import Inspect
from ostinato.cli._models import table
from ostinato.cli._result import CommandResult
from ostinato.models.registry import open_model
from ostinato.training.curve import Curve, exported_curve

if TYPE_CHECKING:
    from ostinato.card import ModelCard, ModelSource


def inspect_model(arguments: Inspect) -> CommandResult:
    """Show one card, and how its weights were made; no weight is loaded."""
    source = open_model(arguments.model)
    curve = exported_curve(source.folder)
    document = {
        "digest": source.card.digest(),
        "folder": str(source.folder),
        "card": source.card,
        "validation": curve,
    }
    lines = (*_card_lines(source), *_curve_lines(curve))
    return CommandResult(text="\n".join(lines), document=document)


def _card_lines(source: ModelSource) -> Iterator[str]:
    card = source.card
    yield table([("model", card.model_id), ("family", card.family), ("digest", card.digest())])
    yield table([("folder", str(source.folder))])
    if card.parent is not None:
        yield f"made from {card.parent.model_id} {card.parent.digest}"
    if card.provenance:
        yield f"provenance: {card.provenance}"
    yield ""
    yield table([*_capability_rows(card), *_recipe_rows(card)])
    yield "\ncomponents"
    rows = [(f"  {c.name}", c.class_name, c.subfolder, ", ".join(c.ops)) for c in card.components]
    yield table(rows)
    yield "\nloops"
    yield table([(f"  {spec.name}", spec.loop, _pairs(spec.binds)) for spec in card.loops])
    if card.files:
        yield "\nfiles"
        yield table([(f"  {file.path}", file.sha256) for file in card.files])


def _curve_lines(curve: Curve) -> Iterator[str]:
    if not curve:
        return
    names = list(curve[0])
    yield "\ntraining: losses on held-out scenes"
    yield table([names, *([_number(row.get(name)) for name in names] for row in curve)])


def _number(value: float | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _capability_rows(card: ModelCard) -> Iterator[tuple[str, str]]:
    caps, defaults = card.capabilities, card.defaults
    yield "tasks", ", ".join(caps.tasks)
    yield "inputs", ", ".join(caps.inputs)
    yield "outputs", ", ".join(caps.outputs)
    for name in ("height", "width", "num_frames", "num_inference_steps"):
        value = getattr(defaults, name)
        yield name, f"{getattr(caps, name).describe()} (default {value})"
    yield "fps", f"{defaults.fps:g} by default"
    yield "samplers", ", ".join(caps.samplers)
    negative = "with" if caps.negative_prompt else "without"
    yield "guidance", f"{caps.guidance}, {defaults.guidance_scale:g}, {negative} negative prompt"


def _recipe_rows(card: ModelCard) -> Iterator[tuple[str, str]]:
    recipe, parity = card.recipe, card.parity
    pinned = recipe.assumes_schedule
    assumed = {
        name: value
        for name in pinned.__dataclass_fields__
        if (value := getattr(pinned, name)) is not None
    }
    yield "recipe", recipe.method
    for parent in recipe.parents:
        yield "  parent", f"{parent.model_id} {parent.digest}"
    if recipe.data:
        yield "  data", recipe.data
    yield "  assumes", f"loop {recipe.assumes_loop}; {_pairs(assumed) or 'a free schedule'}"
    if recipe.consistency:
        yield "  consistency", recipe.consistency
    yield "precision", f"weights {card.precision.weights}, latents {card.precision.latents}"
    levels = ", ".join(parity.levels)
    yield "parity", f"{levels} against {parity.oracle or 'itself'}"
    yield "determinism", parity.output_determinism
    tolerance = card.fast_batch_tolerance
    offered = "not offered" if tolerance is None else f"within {tolerance:g} of each alone"
    yield "fast batching", offered


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in values.items())


def _word(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)
