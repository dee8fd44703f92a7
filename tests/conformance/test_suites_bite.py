"""Every test of the family suite fails on a family that breaks what it is about.

The loop, cache and connector suites have files of their own beside this one.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import pytest
import torch

from conformance import faulty_family as faulty
from conformance.biting import bites, suite_tests
from conformance.family import ModelFamilySuite
from conformance.serving import serving
from ostinato.backend.importing import load_object
from ostinato.card import ModelCard, ModelSource
from ostinato.loop.contract import Component
from ostinato.models.registry import open_model
from ostinato.request import CancelScope, Request
from ostinato.runtime import Handle, ResidentModel

CardChange = Callable[[ModelCard], ModelCard]


class Subject(ModelFamilySuite):
    """The built-in family, whose smallest request is smaller still."""

    small = MappingProxyType({"num_frames": 16, "num_inference_steps": 2})
    counter: ClassVar[Iterator[int]] = itertools.count()


class OpensAnother(Subject):
    @staticmethod
    def open(folder: Path) -> ModelSource:
        source = open_model(folder)
        card = source.card.derive(provenance=f"opening {next(Subject.counter)}")
        return ModelSource(card=card, folder=folder)


class ImportsAdapters(Subject):
    @staticmethod
    def open(folder: Path) -> ModelSource:
        source = open_model(folder)
        for spec in source.card.components:
            load_object(spec.adapter)
        return source


class MakesWeights(Subject):
    @staticmethod
    def open(folder: Path) -> ModelSource:
        torch.nn.Linear(2, 2)
        return open_model(folder)


class LooksAtNothing(Subject):
    known: ClassVar[ModelSource]

    @staticmethod
    def open(folder: Path) -> ModelSource:
        return LooksAtNothing.known


class DropsFields(Subject):
    """Bends a request to what it can do."""

    @classmethod
    def request(cls, card: ModelCard, **changes: object) -> Request:
        return super().request(card)


def adapter(component: str, kind: type) -> CardChange:
    return lambda card: faulty.with_adapter(card, component, kind)


def loop(kind: type) -> CardChange:
    return lambda card: faulty.with_loop(card, kind)


def default(card: ModelCard) -> ModelCard:
    return dataclasses.replace(card, defaults=dataclasses.replace(card.defaults, num_frames=0))


def unlisted(card: ModelCard) -> ModelCard:
    specs = tuple(dataclasses.replace(spec, ops=()) for spec in card.components)
    return dataclasses.replace(card, components=specs)


def oracle(card: ModelCard) -> ModelCard:
    named = "conformance.faulty_family:WrongOracle"
    return dataclasses.replace(card, parity=dataclasses.replace(card.parity, oracle=named))


def probed(card: ModelCard) -> ModelCard:
    broken = faulty.with_loop(card, faulty.PlanHoldsAFunction)
    return faulty.with_adapter(broken, "transformer", faulty.TakesAProbe)


def loads_all(patch: pytest.MonkeyPatch) -> None:
    component = ResidentModel.component

    def greedy(resident: ResidentModel, name: str) -> Component:
        for spec in resident.card.components:
            component(resident, spec.name)
        return component(resident, name)

    patch.setattr(ResidentModel, "component", greedy)


def skips_progress(patch: pytest.MonkeyPatch) -> None:
    tell = Handle.tell_progress

    def skipping(handle: Handle, node: str, step: int, total: int, device_s: float) -> None:
        if step != 2:
            tell(handle, node, step, total, device_s)

    patch.setattr(Handle, "tell_progress", skipping)


def shifts_chunks(patch: pytest.MonkeyPatch) -> None:
    tell = Handle.tell_chunk
    patch.setattr(Handle, "tell_chunk", lambda h, o, index, v: tell(h, o, index + 1, v))


def is_deaf_to_cancel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CancelScope, "cancelled", False)


def bends_the_recipe(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ostinato.runtime.resolve._recipe_mismatches", lambda card, request: ())


def has_one_digest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("conformance.family_card.digest", lambda card: "sha256:0")
    patch.setattr(ModelCard, "digest", lambda card: "sha256:0")


Fault = tuple[type[Subject], CardChange | None, Callable[[pytest.MonkeyPatch], None] | None]
FAULTS: dict[str, Fault] = {
    "test_card_holds_together_and_survives_json": (Subject, default, None),
    "test_digest_changes_with_everything_the_card_says": (Subject, None, has_one_digest),
    "test_opening_again_gives_the_same_card": (OpensAnother, None, None),
    "test_opening_imports_no_code_that_runs_weights": (ImportsAdapters, None, None),
    "test_opening_makes_no_weight": (MakesWeights, None, None),
    "test_damaged_weights_are_refused_at_opening": (LooksAtNothing, None, None),
    "test_damaged_configurations_are_refused_at_opening": (LooksAtNothing, None, None),
    "test_facts_come_without_weights": (
        Subject, adapter("codec", faulty.FactsFromWeights), None,
    ),
    "test_every_task_has_a_program_of_least_nodes": (Subject, loop(faulty.ReadsTheClip), None),
    "test_programs_name_listed_ops": (Subject, unlisted, None),
    "test_a_request_out_of_range_is_refused_with_nothing_loaded": (DropsFields, None, None),
    "test_what_the_recipe_assumes_is_not_bent": (Subject, None, bends_the_recipe),
    "test_components_have_the_listed_ops_and_refuse_others": (
        Subject, adapter("codec", faulty.AnyAttributeIsAnOp), None,
    ),
    "test_outputs_given_are_outputs_asked": (Subject, adapter("codec", faulty.DecodesAnew), None),
    "test_what_an_output_does_not_need_is_neither_loaded_nor_run": (Subject, None, loads_all),
    "test_steps_counted_are_plans_run": (Subject, loop(faulty.CountsAStepTooMany), None),
    "test_events_are_dense_and_progress_adds_up": (Subject, None, skips_progress),
    "test_chunks_join_to_the_clip": (Subject, None, shifts_chunks),
    "test_guidance_one_runs_one_branch": (
        Subject, adapter("transformer", faulty.Unguided), None,
    ),
    "test_cancel_at_any_step_frees_everything": (Subject, None, is_deaf_to_cancel),
    "test_a_nan_in_a_weight_fails_that_request_alone": (
        Subject, adapter("text_encoder", faulty.HidesNaN), None,
    ),
    "test_a_nan_in_any_network_is_found": (
        Subject, adapter("text_encoder", faulty.HidesNaN), None,
    ),
    "test_the_same_request_gives_the_same_bytes": (
        Subject, adapter("codec", faulty.DecodesAnew), None,
    ),
    "test_what_differs_matters": (Subject, adapter("text_encoder", faulty.Deaf), None),
    "test_interleaved_is_alone": (Subject, adapter("transformer", faulty.Stateful), None),
    "test_stacked_is_alone": (Subject, adapter("transformer", faulty.RoundsInStacks), None),
    "test_the_oracle_agrees_to_the_bit": (Subject, oracle, None),
    "test_a_plan_is_data": (Subject, probed, None),
    "test_a_plan_can_be_run_again": (Subject, adapter("codec", faulty.DecodesAnew), None),
    "test_a_loops_plan_with_grad_gives_the_same_bytes": (
        Subject, adapter("transformer", faulty.AnotherForwardWithGrad), None,
    ),
    "test_weights_are_aligned_and_at_rest": (
        Subject, adapter("transformer", faulty.Askew), None,
    ),
    "test_the_process_neither_matters_nor_changes": (
        Subject, adapter("codec", faulty.Reseeds), None,
    ),
}  # fmt: skip


def test_every_test_of_the_suite_has_a_fault() -> None:
    assert set(FAULTS) == suite_tests(ModelFamilySuite)


@contextmanager
def arguments(
    suite: Subject, test: Callable[..., object], source: ModelSource, tmp_path: Path
) -> Iterator[dict[str, object]]:
    """Make what pytest would give the test."""
    taken = inspect.signature(test).parameters
    with pytest.MonkeyPatch.context() as patch, serving(source, suite.requests(source.card)) as on:
        given = {"source": source, "served": on, "tmp_path": tmp_path, "monkeypatch": patch}
        yield {**{n: v for n, v in given.items() if n in taken}, **_damage(taken)}


def _damage(taken: object) -> dict[str, object]:
    return {"damage": "truncated"} if "damage" in taken else {}  # type: ignore[operator]


def _case(name: str) -> object:
    """Serving a broken family takes a second a test: those run with the slow ones, but for two."""
    served = "served" in inspect.signature(getattr(Subject, name)).parameters
    slow = served and name not in ("test_interleaved_is_alone", "test_stacked_is_alone")
    return pytest.param(name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("name", [_case(name) for name in FAULTS])
def test_it_bites(
    name: str, tiny_builtin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, change, patch = FAULTS[name]
    source = open_model(tiny_builtin_folder)
    monkeypatch.setattr(LooksAtNothing, "known", source, raising=False)
    monkeypatch.setattr(ResidentModel, "__init__", _unchecked(ResidentModel.__init__))
    card = change(source.card) if change else source.card
    suite, broken = kind(), ModelSource(card=card, folder=source.folder)
    test: Callable[..., object] = getattr(suite, name)
    if patch:
        patch(monkeypatch)
    with arguments(suite, test, broken, tmp_path) as given:
        bites(lambda: test(**given))


def _unchecked(init: Callable[[ResidentModel, ModelSource], None]) -> Callable[..., None]:
    """Let a card be resident that does not hold together: what is tested is the suite."""

    def made(resident: ResidentModel, source: ModelSource) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelCard, "require_valid", lambda card: card)
            init(resident, source)

    return made
