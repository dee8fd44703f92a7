"""`ostinato models` and `ostinato inspect`: what there is, and what one model promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ostinato.cli._arguments import Inspect
from ostinato.cli._result import CommandResult
from ostinato.models.registry import Family, families, open_model

if TYPE_CHECKING:
    from ostinato.card import ModelCard, ModelSource


def list_models() -> CommandResult:
    """List families and the models that ship with them."""
    known = families()
    rows = [("FAMILY", "MODEL", "SERVES")]
    rows += [(family.name, _opens(family), family.summary) for family in known]
    document = [
        {
            "family": family.name,
            "builtin": family.builtin,
            "pipelines": family.pipelines,
            "summary": family.summary,
        }
        for family in known
    ]
    return CommandResult(text=table(rows), document={"families": document})


def inspect_model(arguments: Inspect) -> CommandResult:
    """Show one card; no weight is loaded."""
    source = open_model(arguments.model)
    document = {
        "digest": source.card.digest(),
        "folder": str(source.folder),
        "card": source.card,
    }
    return CommandResult(text="\n".join(_card_lines(source)), document=document)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns by padding all but the last."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _opens(family: Family) -> str:
    if family.builtin is not None:
        return family.builtin
    return f"folder or hub id of a {' or '.join(family.pipelines)}"


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


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in values.items())


def _word(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, tuple) else str(value)
