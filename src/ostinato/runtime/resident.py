"""One resident set a model: components are loaded once and shared by all loops that bind them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from ostinato.backend.importing import load_object
from ostinato.card import ComponentSpec, ModelSource
from ostinato.errors import InvalidCard
from ostinato.loop.contract import Component, ComponentAdapter, Loop
from ostinato.memory import KVPool
from ostinato.program import Program
from ostinato.tasks import TaskType


class ResidentModel:
    """The live side of a card. Used on the device worker only, but for facts and programs."""

    def __init__(self, source: ModelSource) -> None:
        """Take a source; nothing is loaded before a plan names it."""
        self.card = source.card.require_valid()
        self.folder = source.folder
        self.pages = KVPool()
        self._components: dict[str, Component] = {}
        self._facts: dict[str, object] = {}
        self._weight_bytes: dict[str, int] = {}
        self._loops: dict[str, Loop[object]] = {}

    @property
    def loaded(self) -> tuple[str, ...]:
        """Names of the components that are in memory."""
        return tuple(self._components)

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all of these components are in memory."""
        return all(name in self._components for name in names)

    def component(self, name: str) -> Component:
        """Return a component, loading it on first use; raises InvalidCheckpoint."""
        if name not in self._components:
            spec = self.card.component(name)
            adapter = self._adapter(spec)
            self._components[name] = adapter.load(self.folder, spec, self.card.precision)
        return self._components[name]

    def weight_bytes(self, name: str) -> int:
        """Return the bytes of a component's weight files; 0 for one that has none of its own."""
        if name not in self._weight_bytes:
            folder = self.folder / self.card.component(name).subfolder
            files = folder.glob("*.safetensors")
            self._weight_bytes[name] = sum(file.stat().st_size for file in files)
        return self._weight_bytes[name]

    def unload(self, name: str) -> None:
        """Forget a component's weights; the next plan that names it loads them again."""
        self._components.pop(name, None)

    def load_s(self, names: tuple[str, ...]) -> float:
        """Make sure that components are in memory; returns the seconds that loading took."""
        missing = [name for name in names if name not in self._components]
        if not missing:
            return 0.0
        started = time.perf_counter()
        for name in missing:
            self.component(name)
        return time.perf_counter() - started

    def loop(self, name: str) -> Loop[object]:
        """Return the loop object that all requests share."""
        if name not in self._loops:
            spec = self.card.loop(name)
            factory = cast("Callable[..., Loop[object]]", load_object(spec.loop))
            self._loops[name] = factory(spec)
        return self._loops[name]

    def loop_facts(self, name: str) -> Mapping[str, object]:
        """Return, by role of a loop, what the bound component says of itself."""
        return {role: self.facts(bound) for role, bound in self.card.loop(name).binds.items()}

    def facts(self, component: str) -> object:
        """Return what a component says of itself, from configuration alone."""
        if component not in self._facts:
            spec = self.card.component(component)
            self._facts[component] = self._adapter(spec).read_facts(self.folder, spec)
        return self._facts[component]

    def program(self, task: TaskType) -> Program:
        """Return the validated program of a task; raises InvalidProgram."""
        build = cast("Callable[[], Program]", load_object(self.card.program(task).program))
        return build().require_valid(
            components=[c.name for c in self.card.components],
            loops=[spec.name for spec in self.card.loops],
        )

    def _adapter(self, spec: ComponentSpec) -> ComponentAdapter:
        adapter = load_object(spec.adapter)
        if not (hasattr(adapter, "load") and hasattr(adapter, "read_facts")):
            raise InvalidCard(
                f"component {spec.name!r}: {spec.adapter} has no `load` and `read_facts`"
            )
        return cast("ComponentAdapter", adapter)
