"""The Python surface: load a model, generate, or submit and follow."""

from __future__ import annotations

from pathlib import Path

from ostinato.card import ModelCard, ModelSource
from ostinato.models.registry import open_model
from ostinato.request import Request
from ostinato.runtime import Engine as RuntimeEngine
from ostinato.runtime import Handle, Output, ResidentModel, TurnPolicy


class Engine(RuntimeEngine):
    """One engine, many models; the command line and `Model.generate` use this very class."""

    def __init__(self, policy: TurnPolicy | None = None) -> None:
        """Start the device worker; `policy` decides whose step is next."""
        super().__init__(policy)

    def add(self, source: Model | ModelSource | str | Path) -> ResidentModel:
        """Make a model known: a loaded Model, or whatever `load` takes."""
        if isinstance(source, Model):
            return super().add(source.source)
        return super().add(source if isinstance(source, ModelSource) else open_model(source))


class Model:
    """A model whose card and files have been checked; its weights load on first use."""

    def __init__(self, source: ModelSource, engine: Engine | None = None) -> None:
        """Take an opened source; without an engine the model starts its own on first use."""
        self.source = source
        self._engine = engine
        self._owns_engine = engine is None

    @property
    def card(self) -> ModelCard:
        """The model's card."""
        return self.source.card

    @property
    def folder(self) -> Path:
        """Where the model's files lie."""
        return self.source.folder

    @property
    def engine(self) -> Engine:
        """The engine that serves this model."""
        if self._engine is None:
            self._engine = Engine()
        self._engine.add(self.source)
        return self._engine

    def request(self, prompt: str, **fields: object) -> Request:
        """Make a request to this model; raises UnknownField for a misspelt name."""
        fields.setdefault("task", self.card.defaults.task)
        return Request.build(model=self.card.model_id, prompt=prompt, **fields)

    def submit(self, prompt: str, **fields: object) -> Handle:
        """Queue a request and return at once; raises typed errors for bad input."""
        return self.engine.submit(self.request(prompt, **fields))

    def generate(self, prompt: str, **fields: object) -> Output:
        """Generate and wait; raises typed errors."""
        return self.submit(prompt, **fields).result()

    def close(self) -> None:
        """Stop the engine that this model started, and free its weights."""
        if self._owns_engine and self._engine is not None:
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load(reference: str | Path, engine: Engine | None = None) -> Model:
    """Open `builtin`, a diffusers-layout folder or a hub id; weights load on first use.

    Raises UnknownModel, InvalidCheckpoint, UnsafeCheckpoint or InvalidCard.
    """
    return Model(open_model(reference), engine)
