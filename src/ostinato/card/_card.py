"""ModelCard: the (recipe, runtime) pair as one versioned value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from ostinato.card._spec import (
    Capabilities,
    ComponentSpec,
    Defaults,
    FileDigest,
    LoopSpec,
    ParentRef,
    ParitySpec,
    PrecisionSpec,
    ProgramSpec,
    RecipeSpec,
)
from ostinato.card._validate import card_errors
from ostinato.errors import BadInput, InvalidCard, UnknownField
from ostinato.tasks import ModelId, TaskType
from ostinato.wire import canonical, decode, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Everything the runtime knows of a model before a weight is loaded.

    cpu_threads: threads that its kernels use on a CPU, None for the process's own number. Small
    networks lose more to waiting for each other than they gain, above all on a busy machine.
    suites: evaluation suites by name, each an import string of a function that runs it.
    provenance: one sentence on where the weights came from (command, seed, data, commit).
    files: shipped files whose digests are verified when the model is opened.
    parent: the card that `derive` started from.
    """

    model_id: ModelId
    family: str
    components: tuple[ComponentSpec, ...]
    loops: tuple[LoopSpec, ...]
    programs: tuple[ProgramSpec, ...]
    capabilities: Capabilities
    recipe: RecipeSpec
    parity: ParitySpec
    precision: PrecisionSpec
    defaults: Defaults
    cpu_threads: int | None = None
    suites: Mapping[str, str] = field(default_factory=dict[str, str])
    provenance: str = ""
    files: tuple[FileDigest, ...] = ()
    parent: ParentRef | None = None

    @property
    def fast_batch_tolerance(self) -> float | None:
        """What `Batching.FAST` may cost at the card's precision; None where it is not offered."""
        return self.parity.fast_batch_tolerances.get(self.precision.weights)

    def validate(self) -> tuple[str, ...]:
        """Return every inconsistency found; empty when the card holds together.

        A card with values of the wrong type has that one error: nothing else can be told of it.
        """
        try:
            canonical(self)
        except BadInput as error:
            return (str(error),)
        return card_errors(self)

    def require_valid(self) -> Self:
        """Return the card itself; raises InvalidCard that lists all errors at once."""
        errors = self.validate()
        if errors:
            lines = "\n  - ".join(errors)
            raise InvalidCard(f"card {self.model_id!r} has {len(errors)} errors:\n  - {lines}")
        return self

    def digest(self) -> str:
        """Return `sha256:<hex>` over every field; raises BadInput for values of wrong types."""
        return digest(self)

    def derive(self, **changes: object) -> ModelCard:
        """Make a variant that records this card as its parent.

        Raises UnknownField for a name that is no field of the card, InvalidCard when the
        variant does not hold together.
        """
        names = {f.name for f in dataclasses.fields(self)} - {"parent"}
        unknown = sorted(set(changes) - names)
        if unknown:
            raise UnknownField(f"{unknown} are not fields of a card; valid: {sorted(names)}")
        parent = ParentRef(model_id=self.model_id, digest=self.digest())
        variant = dataclasses.replace(self, **{**changes, "parent": parent})  # type: ignore[arg-type]
        return variant.require_valid()

    def to_json(self) -> bytes:
        """Encode as canonical JSON; raises BadInput for values of wrong types."""
        return canonical(self)

    @staticmethod
    def from_json(data: bytes | str) -> ModelCard:
        """Decode and validate; raises UnknownField, BadInput or InvalidCard."""
        return decode(data, ModelCard, what="model card").require_valid()

    def component(self, name: str) -> ComponentSpec:
        """Return a component's spec; raises InvalidCard with the valid names."""
        for spec in self.components:
            if spec.name == name:
                return spec
        raise InvalidCard(f"no component {name!r}; valid: {[c.name for c in self.components]}")

    def loop(self, name: str) -> LoopSpec:
        """Return a loop's spec; raises InvalidCard with the valid names."""
        for spec in self.loops:
            if spec.name == name:
                return spec
        raise InvalidCard(f"no loop {name!r}; valid: {[c.name for c in self.loops]}")

    def program(self, task: TaskType) -> ProgramSpec:
        """Return the program that serves a task; raises InvalidCard with the valid tasks."""
        for spec in self.programs:
            if spec.task == task:
                return spec
        raise InvalidCard(f"no program for {task!r}; valid: {[p.task for p in self.programs]}")
