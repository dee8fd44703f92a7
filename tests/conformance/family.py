"""The suite that every model family passes; a family subclasses it in its own tests folder.

    class TestMyConformance(ModelFamilySuite):
        small = {"height": 16, "width": 32, "num_frames": 5, "num_inference_steps": 2}

        @pytest.fixture(scope="class")
        @classmethod
        def folder(cls, tmp_path_factory): ...

The folder holds the family's real classes at tiny size, seeded; it is opened through the registry,
like any user's. Everything else - contrasting requests, ranges, contradictions - is made from what
the card says. Override `open`, `request` or `requests` where a family needs more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import pytest

from conformance.card_requests import contrasting
from conformance.family_card import CardTests
from conformance.family_numerics import NumericsTests
from conformance.family_serving import ServingTests
from conformance.serving import Served, serving
from ostinato.card import ModelCard, ModelSource
from ostinato.models.registry import open_model
from ostinato.request import Request


class ModelFamilySuite(CardTests, ServingTests, NumericsTests):
    """What is asked of a family.

    small: fields of the smallest request that runs every node and a loop of two steps or more.
    stackable: fields that give the smallest enough tokens to be stacked.
    prompts: two that differ in words, all of which the model tells apart.
    """

    small: ClassVar[Mapping[str, object]] = MappingProxyType({})
    stackable: ClassVar[Mapping[str, object]] = MappingProxyType({})
    prompts: ClassVar[tuple[str, str]] = (
        "a red circle bouncing on a navy background",
        "a blue square",
    )

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls) -> Path:
        """Return a tiny model folder, which is left as it is."""
        raise NotImplementedError

    @staticmethod
    def open(folder: Path) -> ModelSource:
        """Open a folder as a user does."""
        return open_model(folder)

    @classmethod
    def request(cls, card: ModelCard, **changes: object) -> Request:
        """Make the smallest request, with these fields in place of its own."""
        base = {"model": card.model_id, "task": card.defaults.task, "prompt": cls.prompts[0]}
        return Request.build(**{**base, **cls.small, **changes})

    @classmethod
    def requests(cls, card: ModelCard) -> tuple[Request, ...]:
        """Make requests that contrast in steps, guidance, sizes, sampler, prompt and seed.

        The first is guided where the family has guidance; the second has the second prompt.
        """
        outputs = card.capabilities.outputs
        made = [{"outputs": outputs, **fields} for fields in contrasting(card, cls.small)]
        made[1]["prompt"] = cls.prompts[1]
        return tuple(cls.request(card, **fields) for fields in made)

    @classmethod
    def alike(cls, card: ModelCard) -> tuple[Request, ...]:
        """Make requests of one shape that contrast in steps, guidance, prompt and seed."""
        plain, other, *_ = contrasting(card, {**cls.small, **cls.stackable})
        fields = (plain, {**other, "prompt": cls.prompts[1]}, {**plain, "seed": 5}, other)
        # All outputs: the whole levels of a clip would hide a last bit.
        outputs = card.capabilities.outputs
        return tuple(cls.request(card, **{**each, "outputs": outputs}) for each in fields)

    @pytest.fixture(scope="class")
    @classmethod
    def source(cls, folder: Path) -> ModelSource:
        """Return the opened folder."""
        return cls.open(folder)

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, source: ModelSource) -> Iterator[Served]:
        """Serve the model on one engine for all tests of the class."""
        with serving(source, cls.requests(source.card)) as served:
            yield served
