"""Look at a plan while it runs, and change nothing.

An observer is told of every call: its resolved inputs, its outputs, and the values inside the
component at named taps. A tap's name is the path of a module; its value is what that module gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, runtime_checkable

from ostinato.backend.taps import Tap as Tap
from ostinato.loop.contract import Component
from ostinato.tasks import RequestId
from ostinato.work import ComponentCall


class Unit(NamedTuple):
    """Which work unit of which request: the node's name, and the unit's number, 1 first."""

    request_id: RequestId
    node: str
    step: int


class PlanWatch(Protocol):
    """Witness of the calls of one plan, in the order in which they run."""

    def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> Tap | None:
        """See a call with its references resolved; return a tap to see inside the component."""
        ...

    def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
        """See what the call gave."""
        ...


class Observer(Protocol):
    """Witness of an engine's work units; called on the device worker."""

    def watch(self, unit: Unit) -> PlanWatch | None:
        """Return a witness of a unit that is about to run, or None to let it pass unseen.

        A unit that is witnessed runs alone: inside a stacked call there is no saying whose a
        value is.
        """
        ...


@runtime_checkable
class Observable(Protocol):
    """A component that can be looked into."""

    def observe(self, tap: Tap) -> AbstractContextManager[None]:
        """Call `tap` from every op that runs while the context is open."""
        ...


def observing(component: Component, tap: Tap | None) -> AbstractContextManager[None]:
    """Open a component to a tap; nothing without a tap, or where there is nothing to see."""
    if tap is None or not isinstance(component, Observable):
        return nullcontext()
    return component.observe(tap)
