"""`ostinato train`: find a recipe by name and run it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import cast

import ostinato_recipes
from ostinato.cli._arguments import Train
from ostinato.cli._models import table
from ostinato.cli._result import CommandResult
from ostinato.env import Environment
from ostinato.errors import BadInput, InvalidOutput
from ostinato.training import export_weights, run
from ostinato.training.config import TrainingConfig
from ostinato.training.metrics import Metrics

Recipe = Callable[[], TrainingConfig]


def train(arguments: Train) -> CommandResult:
    """Run or list recipes."""
    known = recipes()
    if arguments.list:
        rows = [(name, _summary(recipe)) for name, recipe in known.items()]
        return CommandResult(text=table(rows), document={"recipes": dict(rows)})
    name = arguments.recipe
    if name is None or name not in known:
        raise BadInput(_unknown(name, known))
    if arguments.export_to is not None and arguments.export_to.exists():
        raise InvalidOutput(f"--export-to is {str(arguments.export_to)!r}, which exists already")
    output_dir = arguments.output_dir or Environment.read().runs_dir / name
    run_dir = run(
        known[name](),
        output_dir=output_dir,
        parent=arguments.parent,
        resume=not arguments.no_resume,
        on_metrics=None if arguments.quiet else _show,
    )
    written = run_dir if arguments.export_to is None else arguments.export_to
    if arguments.export_to is not None:
        export_weights(run_dir, arguments.export_to)
    document = {"recipe": name, "output_dir": str(run_dir), "weights": str(written)}
    return CommandResult(text=str(written), document=document)


def recipes() -> Mapping[str, Recipe]:
    """Return the public functions of `ostinato_recipes` by their name with dashes."""
    found: dict[str, Recipe] = {}
    for info in pkgutil.iter_modules(ostinato_recipes.__path__, "ostinato_recipes."):
        module = importlib.import_module(info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == info.name and not name.startswith("_"):
                found[name.replace("_", "-")] = cast("Recipe", function)
    return found


def _summary(recipe: Recipe) -> str:
    return (recipe.__doc__ or "").strip().split("\n")[0]


def _unknown(name: str | None, known: Mapping[str, Recipe]) -> str:
    valid = f"expected one of {', '.join(known)}"
    if name is None:
        return f"no recipe is named; {valid}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"recipe is {name!r}; {valid}" + (f"; did you mean {close[0]!r}?" if close else "")


def _show(metrics: Metrics) -> None:
    words = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    ]
    print("  ".join(words), file=sys.stderr, flush=True)
