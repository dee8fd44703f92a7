"""Denoisers of the small models that tell when a stack of requests runs, from the inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ostinato.backend.batch_rules import StackRules
from ostinato.card import ModelSource
from ostinato.models.builtin.components import BuiltinTransformer
from ostinato.models.wan.components import WanTransformer
from ostinato.runtime import ResidentModel

Stack = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, object]] | None]
"""Takes the inputs of many calls by name; each op states what it takes."""
_DENOISER = "transformer"


class Stacks:
    """Has something happen once, inside a stack that holds every request of a group."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._act: Callable[[], object] | None = None

    def arm(self, num_calls: int, act: Callable[[], object]) -> None:
        """Do this inside the next stack of so many calls, on the device worker."""
        self._num_calls, self._act = num_calls, act

    def disarm(self) -> bool:
        """Return whether it has happened; afterwards it cannot any more."""
        happened, self._act = self._act is None, None
        return happened

    def around(self, stack: Stack) -> Stack:
        """Return a stack within which the act happens."""

        def run(items: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, object]] | None:
            found = stack(items)
            # What the rules of this processor forbid is no stack, and nothing happened in it.
            if found is not None and self._act is not None and len(items) == self._num_calls:
                act, self._act = self._act, None
                act()
            return found

        return run


class WatchedBuiltinTransformer(BuiltinTransformer):
    """The built-in model's denoiser, watched."""

    stacks: Stacks | None = None

    def op_stacked(self, name: str, rules: StackRules) -> Stack:
        """Return what the denoiser does, watched."""
        stack = super().op_stacked(name, rules)
        return stack if self.stacks is None else self.stacks.around(stack)


class WatchedWanTransformer(WanTransformer):
    """Wan's denoiser, watched."""

    stacks: Stacks | None = None

    def op_stacked(self, name: str, rules: StackRules) -> Stack:
        """Return what the denoiser does, watched."""
        stack = super().op_stacked(name, rules)
        return stack if self.stacks is None else self.stacks.around(stack)


def with_denoiser(source: ModelSource, denoiser: type[object]) -> ModelSource:
    """Return the same model with another class for its denoiser."""
    adapter = f"{denoiser.__module__}:{denoiser.__qualname__}"
    components = tuple(
        replace(spec, adapter=adapter) if spec.name == _DENOISER else spec
        for spec in source.card.components
    )
    return replace(source, card=source.card.derive(components=components))


def watch(model: ResidentModel, stacks: Stacks) -> None:
    """Have a model tell of its stacks; it must have been made with one of the denoisers here."""
    found = model.component(_DENOISER)
    assert isinstance(found, WatchedBuiltinTransformer | WatchedWanTransformer)
    found.stacks = stacks
