"""What a family's bytes may depend on: the request and the weights, and nothing else."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from conformance.serving import (
    TIMEOUT_S,
    Served,
    same_output,
    serving,
    steps,
)
from conformance.values import differences, leaves, modules_of, snapshot
from ostinato.backend.alignment import is_aligned
from ostinato.backend.batch_rules import probe_batch_rules
from ostinato.backend.importing import load_object
from ostinato.card import ModelCard
from ostinato.loop.batch import Stackable
from ostinato.loop.execute import execute
from ostinato.media import Video
from ostinato.program import LoopNode
from ostinato.request import Request
from ostinato.runtime.threads import cpu_turn
from ostinato.work import WorkUnitKind
from support.turns import RandomTurns

ORDERS = 2
# What processors need at most on which stacks are exact (docs/numerics.md).
USUAL_ROWS, USUAL_MULTIPLE = 16, 32
PLAIN = (torch.Tensor, np.ndarray, str, int, float, bool, type(None))


class NumericsTests:
    """Tests over a served model."""

    @classmethod
    def alike(cls, card: ModelCard) -> tuple[Request, ...]:
        """Make requests of one shape that contrast in steps, guidance, prompt and seed."""
        raise NotImplementedError

    def test_the_same_request_gives_the_same_bytes(self, served: Served) -> None:
        """On an engine that ran nothing before, and one after the other on one that did."""
        for index in (*range(len(served.requests)), 0):
            assert same_output(served.run(served.requests[index]), served.alone(index)), index

    def test_what_differs_matters(self, served: Served) -> None:
        """So equality is not that of constant clips, nor of fields that nobody reads."""
        base = served.requests[0]
        caps = served.source.card.capabilities
        others = [dataclasses.replace(base, seed=base.seed + 1)]
        others += [dataclasses.replace(base, prompt=served.requests[1].prompt)]
        if base.guidance_scale is not None:
            others += [dataclasses.replace(base, guidance_scale=base.guidance_scale + 4.0)]
        if caps.negative_prompt:
            others += [dataclasses.replace(base, negative_prompt="blurry")]
        for other in others:
            assert not same_output(served.run(other), served.alone(0)), other
        for name, value in served.alone(0).values.items():
            array = value.frames if isinstance(value, Video) else value.numpy()
            assert array.std() > 0, name

    def test_interleaved_is_alone(self, served: Served) -> None:
        """All requests at once, in random order, the turn going to any of them at each step."""
        expected = [served.alone(index) for index in range(len(served.requests))]
        switches = 0
        for seed in range(ORDERS):
            order = random.Random(seed).sample(range(len(expected)), len(expected))
            turns = RandomTurns(seed)
            with serving(served.source, (), turns) as busy:
                handles = [busy.engine.submit(served.requests[index]) for index in order]
                for index, handle in zip(order, handles, strict=True):
                    assert same_output(handle.result(TIMEOUT_S), expected[index]), index
                assert busy.resident.pages.num_pages == 0
            switches += turns.num_switches
        assert switches > 4 * ORDERS, "too few turns changed hands to prove anything"

    def test_stacked_is_alone(self, served: Served) -> None:
        """Requests that share forwards, each at a step and a guidance of its own."""
        if not _stacks(served):
            pytest.skip("no component takes several requests at once")
        asked = self.alike(served.source.card)
        expected = [served.run(request) for request in asked]
        shared = 0
        for seed in range(ORDERS):
            turns = RandomTurns(seed)
            with serving(served.source, (), turns, max_batch=len(asked)) as busy:
                outputs = busy.engine.run(asked)
            for index, (output, alone) in enumerate(zip(outputs, expected, strict=True)):
                assert same_output(output, alone), index
                shared += output.provenance.stacked_steps
        if shared == 0 and _forbids(served):
            pytest.skip("the batch rules of this processor forbid stacks of these")
        assert shared > 0, "no forward was shared, although this processor's rules allow it"

    def test_the_oracle_agrees_to_the_bit(self, served: Served) -> None:
        oracle = served.source.card.parity.oracle
        if oracle is None:
            pytest.skip("the card names no oracle: it promises to equal itself alone")
        reference = load_object(oracle)(served.source)  # type: ignore[operator]
        for index in range(len(served.requests)):
            output = served.alone(index)
            expected = reference.run(output.provenance.spec)
            assert output.latents.dtype == expected.latents.dtype
            assert torch.equal(output.latents, expected.latents), index
            np.testing.assert_array_equal(output.video.frames, expected.frames)

    def test_a_plan_is_data(self, served: Served) -> None:
        """Tensors, scalars, texts and references: no callable, no live object."""
        seen = 0
        for index in range(len(served.requests)):
            for _, plan, _ in served.walked(index):
                assert plan.kind in WorkUnitKind
                for call in plan.ordered():
                    assert call.op in served.source.card.component(call.component).ops
                    for path, leaf in leaves(dict(call.inputs)):
                        assert isinstance(leaf, PLAIN), f"{call.component}.{call.op}{path}"
                        seen += isinstance(leaf, torch.Tensor)
        assert seen > 0

    def test_a_plan_can_be_run_again(self, served: Served) -> None:
        """The same result, and no run changes what the plan holds."""
        for _, plan, pages in steps(served.resident, served.spec(served.requests[0])):
            inputs = [dict(call.inputs) for call in plan.calls]
            before = snapshot(inputs)
            one, other = (execute(plan, served.resident.component, pages) for _ in range(2))
            assert differences(one, other) == []
            assert differences(before, inputs) == []

    def test_a_loops_plan_with_grad_gives_the_same_bytes(self, served: Served) -> None:
        """Training runs the served forward: equal to the bit, with gradients to follow."""
        resident, followed = served.resident, 0
        for node, plan, pages in steps(resident, served.spec(served.requests[0])):
            if not isinstance(node, LoopNode):
                continue
            plain = execute(plan, resident.component, pages)
            with _requiring_grad(served, {call.component for call in plan.calls}):
                trained = execute(plan, resident.component, pages, with_grad=True)
            assert differences(plain, trained) == []
            assert any(_requires_grad(leaf) for _, leaf in leaves(trained))
            assert not any(_requires_grad(leaf) for _, leaf in leaves(plain))
            followed += 1
        assert followed > 0

    def test_weights_are_aligned_and_at_rest(self, served: Served) -> None:
        """Float32 results depend on where weights lie; dropout must be off."""
        found = 0
        for spec in served.source.card.components:
            for module in modules_of(served.resident.component(spec.name)):
                tensors = (*module.named_parameters(), *module.named_buffers())
                assert [name for name, tensor in tensors if not is_aligned(tensor)] == []
                assert not any(part.training for part in module.modules())
                assert not any(p.requires_grad for p in module.parameters())
                found += len(tensors)
        assert found > 0

    def test_the_process_neither_matters_nor_changes(self, served: Served) -> None:
        """Another default dtype, precision and seed - and thread count, where the card has one."""
        pinned = served.source.card.cpu_threads is not None
        own = torch.get_num_threads()
        for dtype, threads in ((torch.float64, own + 1), (torch.bfloat16, own)):
            with _odd_process(dtype, threads if pinned else own):
                before = _process()
                with serving(served.source, ()) as fresh:
                    assert same_output(fresh.run(served.requests[0]), served.alone(0))
                assert _process() == before


def _stacks(served: Served) -> bool:
    names = [spec.name for spec in served.source.card.components]
    return any(isinstance(served.resident.component(name), Stackable) for name in names)


def _forbids(served: Served) -> bool:
    """Tell whether a stack needs more here than a family can be asked to bring."""
    with cpu_turn(served.source.card.cpu_threads):
        rules = probe_batch_rules()
    usual = rules.linear_rows <= USUAL_ROWS and rules.activation_multiple <= USUAL_MULTIPLE
    return not (usual and rules.attention and rules.norms)


def _requires_grad(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


@contextmanager
def _requiring_grad(served: Served, components: set[str]) -> Iterator[None]:
    """Let the networks of these components take gradients while the context is open."""
    modules = [m for name in components for m in modules_of(served.resident.component(name))]
    for module in modules:
        module.requires_grad_(True)
    try:
        yield
    finally:
        for module in modules:
            module.requires_grad_(False)


def _process() -> tuple[object, ...]:
    """Return what torch keeps for a whole process and a result could depend on."""
    return (
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().numpy().tobytes(),
    )


@contextmanager
def _odd_process(dtype: torch.dtype, num_threads: int) -> Iterator[None]:
    """Set what a caller's program might have set; put it back afterwards."""
    kept = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision("medium")
    torch.set_num_threads(num_threads)
    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(num_threads)
            yield
    finally:
        torch.set_default_dtype(kept[0])
        torch.set_float32_matmul_precision(kept[1])
        torch.set_num_threads(kept[2])
