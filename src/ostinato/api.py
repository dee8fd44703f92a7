"""The Python surface: load a model, generate, or submit and follow."""

from __future__ import annotations

import threading
from pathlib import Path

from ostinato.card import ModelCard, ModelSource
from ostinato.errors import UnknownField
from ostinato.models.registry import open_model
from ostinato.request import Request
from ostinato.runtime import Engine as RuntimeEngine
from ostinato.runtime import Handle, Output, ResidentModel


class Engine(RuntimeEngine):
    """One engine, many models; the command line and `Model.generate` use this very class."""

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
        self._engine_lock = threading.Lock()

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
        with self._engine_lock:
            engine = self._engine = self._engine or Engine()
        engine.add(self.source)
        return engine

    def request(self, prompt: str, **fields: object) -> Request:
        """Make a request to this model; raises UnknownField for a name that is not its to set."""
        if "model" in fields:
            raise UnknownField("the model of this request is the one it is asked of; leave it out")
        fields.setdefault("task", self.card.defaults.task)
        return Request.build(model=self.card.model_id, prompt=prompt, **fields)

    def submit(self, prompt: str, **fields: object) -> Handle:
        """Queue a request and return at once; raises typed errors for bad input."""
        return self.engine.submit(self.request(prompt, **fields))

    def generate(self, prompt: str, **fields: object) -> Output:
        """Generate and wait; raises typed errors. An interrupted wait cancels the request."""
        handle = self.submit(prompt, **fields)
        try:
            return handle.result()
        except BaseException:
            handle.cancel()
            raise

    def close(self) -> None:
        """Stop the engine that this model started, and free its weights."""
        with self._engine_lock:
            engine, self._engine = self._engine, None
        if self._owns_engine and engine is not None:
            engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load(reference: str | Path, engine: Engine | None = None) -> Model:
    """Open `builtin`, a diffusers-layout folder or a hub id; weights load on first use.

    Raises UnknownModel, InvalidCheckpoint, UnsafeCheckpoint or InvalidCard.
    """
    return Model(open_model(reference), engine)
