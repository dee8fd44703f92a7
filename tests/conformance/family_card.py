"""What a family's card and folder must be, before any weight is loaded."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path

import pytest
from torch import nn

from conformance.card_requests import contradictions, out_of_range, pinned_variants
from conformance.folders import DAMAGES, config_files, ran, weight_files, without_weights
from ostinato.card import ModelCard, ModelSource
from ostinato.errors import BadInput, InvalidCheckpoint, RecipeMismatch, UnsupportedTask
from ostinato.program import ComponentNode, LoopNode, Node
from ostinato.request import GenerationSpec, Request
from ostinato.runtime import Engine, ResidentModel
from ostinato.runtime.resolve import resolve
from ostinato.tasks import OutputName, RequestId, TaskType
from ostinato.wire import digest
from support.mutations import mutations


class CardTests:
    """Tests over a `ModelSource`, its folder and copies of it."""

    @staticmethod
    def open(folder: Path) -> ModelSource:
        raise NotImplementedError

    @classmethod
    def request(cls, card: ModelCard, **changes: object) -> Request:
        raise NotImplementedError

    def test_card_holds_together_and_survives_json(self, source: ModelSource) -> None:
        assert source.card.validate() == ()
        again = ModelCard.from_json(source.card.to_json())
        assert again == source.card
        assert again.digest() == source.card.digest()
        assert again.to_json() == source.card.to_json()

    def test_digest_changes_with_everything_the_card_says(self, source: ModelSource) -> None:
        changed = {path: digest(card) for path, card in mutations(source.card)}
        assert {path[0] for path in changed} > {"components", "loops", "recipe", "defaults"}
        assert [path for path, found in changed.items() if found == source.card.digest()] == []

    def test_opening_again_gives_the_same_card(self, source: ModelSource) -> None:
        again = self.open(source.folder)
        assert again.card.digest() == source.card.digest()
        assert again.folder == source.folder

    def test_opening_imports_no_code_that_runs_weights(
        self, source: ModelSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Adapters and oracle cannot be imported, and the folder opens all the same."""
        card = source.card
        names = [spec.adapter for spec in card.components]
        names += [card.parity.oracle] if card.parity.oracle is not None else []
        modules = {name.partition(":")[0] for name in names}
        for package in {name.rpartition(".")[0] for name in modules} - {""}:
            _forget(package, monkeypatch)
        for name in modules:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError):
            importlib.import_module(min(modules))
        assert self.open(source.folder).card.digest() == card.digest()

    def test_opening_makes_no_weight(
        self, source: ModelSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Parameters that opening declares have shapes and no memory, and nothing fills them."""
        register = nn.Module.register_parameter

        def only_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            assert parameter is None or parameter.is_meta, f"{name} of {type(module).__name__}"
            register(module, name, parameter)

        def refuse(module: nn.Module, *args: object, **options: object) -> None:
            raise AssertionError(f"weights of {type(module).__name__} were loaded")

        monkeypatch.setattr(nn.Module, "register_parameter", only_meta)
        monkeypatch.setattr(nn.Module, "load_state_dict", refuse)
        self.open(source.folder)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damaged_weights_are_refused_at_opening(
        self, source: ModelSource, tmp_path: Path, damage: str
    ) -> None:
        names = [file.relative_to(source.folder) for file in weight_files(source.folder)]
        assert names, "no weights to damage"
        for index, name in enumerate(names):
            copy = Path(shutil.copytree(source.folder, tmp_path / str(index)))
            DAMAGES[damage](copy / name)
            with pytest.raises(InvalidCheckpoint):
                self.open(copy)
            assert not ran((copy / name).parent).exists()

    def test_damaged_configurations_are_refused_at_opening(
        self, source: ModelSource, tmp_path: Path
    ) -> None:
        names = [file.relative_to(source.folder) for file in config_files(source.folder)]
        assert len(names) > 1, "expected an index and the components' configurations"
        copy = Path(shutil.copytree(source.folder, tmp_path / "copy"))
        for name in names:
            if name.parts[0] == "tokenizer":
                continue  # a library's file, which libraries read when they load it
            kept = (copy / name).read_bytes()
            for damaged in (None, b"{", b"[]", b"\xff"):
                (copy / name).unlink()
                if damaged is not None:
                    (copy / name).write_bytes(damaged)
                with pytest.raises(InvalidCheckpoint):
                    self.open(copy)
                (copy / name).write_bytes(kept)
        assert self.open(copy).card.components == source.card.components

    def test_facts_come_without_weights(self, source: ModelSource, tmp_path: Path) -> None:
        """Steps and pieces are counted, and a request is checked, where no weight exists."""
        bare = without_weights(source.folder, tmp_path / "bare")
        assert weight_files(bare) == ()
        spec = resolve(source.card, self.request(source.card), RequestId("r"))
        for loop in source.card.loops:
            counts: list[tuple[int, int]] = []
            for folder in (source.folder, bare):
                resident = ResidentModel(ModelSource(card=source.card, folder=folder))
                live, facts = resident.loop(loop.name), resident.loop_facts(loop.name)
                assert live.check(spec, facts) == ()
                counts.append((live.num_steps(spec, facts), live.num_pieces(spec, facts)))
                assert resident.loaded == ()
            assert counts[0] == counts[1]
            assert counts[0][0] > 0

    def test_every_task_has_a_program_of_least_nodes(self, source: ModelSource) -> None:
        resident = ResidentModel(source)
        for task in source.card.capabilities.tasks:
            program = resident.program(task)
            assert set(source.card.capabilities.outputs) <= set(program.outputs)
            for outputs in subsets(source.card.capabilities.outputs):
                request = self.request(source.card, task=task, outputs=outputs)
                spec = resolve(source.card, request, RequestId("r"))
                reads = {node.name: _needs(resident, node, spec) for node in program.nodes}
                assert all(reads[node.name] <= node.reads for node in program.nodes)
                chosen = program.select(outputs, lambda node, reads=reads: reads[node.name])
                used = {program.outputs[name] for name in outputs}
                for node in reversed(chosen):
                    assert node.writes & used, f"{node.name!r} runs for {outputs} and serves none"
                    used |= reads[node.name]
        assert resident.loaded == ()

    def test_programs_name_listed_ops(self, source: ModelSource) -> None:
        for task in source.card.capabilities.tasks:
            nodes = ResidentModel(source).program(task).nodes
            named = [node for node in nodes if isinstance(node, ComponentNode)]
            assert named
            for node in named:
                assert node.op in source.card.component(node.component).ops

    def test_a_request_out_of_range_is_refused_with_nothing_loaded(
        self, source: ModelSource
    ) -> None:
        with Engine(max_batch=1) as engine:
            resident = engine.add(source)
            for changes in out_of_range(source.card):
                with pytest.raises(BadInput):
                    engine.submit(self.request(source.card, **changes))
            for task in set(TaskType) - set(source.card.capabilities.tasks):
                with pytest.raises(UnsupportedTask):
                    engine.submit(self.request(source.card, task=task))
            assert resident.loaded == ()
            assert resident.pages.num_pages == 0

    def test_what_the_recipe_assumes_is_not_bent(self, source: ModelSource) -> None:
        """On the card as it is, and on variants that pin each point of the schedule."""
        cards = (source.card, *pinned_variants(source.card))
        told = 0
        for card in cards:
            agreed = resolve(card, self.request(card, **_defaults(card)), RequestId("r"))
            assert agreed.num_inference_steps == card.defaults.num_inference_steps
            with Engine(max_batch=1) as engine:
                resident = engine.add(ModelSource(card=card, folder=source.folder))
                for changes in contradictions(card):
                    with pytest.raises(RecipeMismatch):
                        engine.submit(self.request(card, **changes))
                    told += 1
                assert resident.loaded == ()
        assert told >= len(cards) - 1


def _needs(resident: ResidentModel, node: Node, spec: GenerationSpec) -> frozenset[str]:
    """Return the slots that a node needs for this request."""
    return resident.loop(node.loop).reads(spec) if isinstance(node, LoopNode) else node.reads


def _defaults(card: ModelCard) -> Mapping[str, object]:
    return {"num_inference_steps": card.defaults.num_inference_steps, "guidance_scale": None}


def subsets(outputs: tuple[OutputName, ...]) -> Iterator[tuple[OutputName, ...]]:
    """Yield every choice of outputs that a request could make, in both orders."""
    for size in range(1, len(outputs) + 1):
        for chosen in combinations(outputs, size):
            yield from {chosen, tuple(reversed(chosen))}


def _forget(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package's modules be imported afresh, for the length of one test."""
    parent, _, name = package.rpartition(".")
    if parent:
        monkeypatch.setattr(sys.modules[parent], name, sys.modules[package])
    for module in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
