"""What serving a family must be: outputs, counts, events, cancellation, faults."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from conformance.card_requests import TWO_BRANCHES
from conformance.family_card import subsets
from conformance.serving import (
    TIMEOUT_S,
    Call,
    Served,
    record,
    same_output,
    same_value,
    spied,
    steps,
)
from conformance.values import modules_of
from ostinato.card import GuidanceForm
from ostinato.errors import InvalidPlan, NonFinite, OutputMissing
from ostinato.program import ComponentNode, LoopNode
from ostinato.request import Cancelled, ChunkReady, Finished, Progress, Request, Started
from ostinato.runtime import Handle

NEGATIVE = "blurry"


class ServingTests:
    """Tests over a served model."""

    def test_components_have_the_listed_ops_and_refuse_others(self, served: Served) -> None:
        for spec in served.source.card.components:
            component = served.resident.component(spec.name)
            assert all(callable(component.op(name)) for name in spec.ops)
            for name in ("no_such_op", "load", "__init__", ""):
                with pytest.raises(InvalidPlan):
                    component.op(name)

    def test_outputs_given_are_outputs_asked(self, served: Served) -> None:
        offered = served.source.card.capabilities.outputs
        whole = served.alone(0)
        for outputs in subsets(offered):
            output = served.run(_changed(served.requests[0], outputs=outputs))
            assert tuple(output.values) == outputs
            for name in outputs:
                assert same_value(output.values[name], whole.values[name])
            for name in set(offered) - set(outputs):
                with pytest.raises(OutputMissing):
                    _ = getattr(output, name.value)

    def test_what_an_output_does_not_need_is_neither_loaded_nor_run(self, served: Served) -> None:
        """Of an output alone, the calls are those of its nodes, and so are the components."""
        for name in served.source.card.capabilities.outputs:
            request = _changed(served.requests[0], outputs=(name,))
            walked = steps(served.resident, served.spec(request))
            planned = Counter(f"{c.component}.{c.op}" for s in walked for c in s.plan.calls)
            found = record(served.source, request)
            assert found.output.provenance.calls == planned
            assert set(found.loaded) == {call.partition(".")[0] for call in planned}

    def test_steps_counted_are_plans_run(self, served: Served) -> None:
        """The total that a caller is told before the first step is what is run."""
        for index in range(len(served.requests)):
            progress, plans = served.record(index).progress, len(served.walked(index))
            assert len(progress) == plans
            assert {event.total for event in progress} == {plans}

    def test_events_are_dense_and_progress_adds_up(self, served: Served) -> None:
        for index in range(len(served.requests)):
            events, progress = served.record(index).events, served.record(index).progress
            assert [event.sequence for event in events] == list(range(len(events)))
            assert isinstance(events[0], Started)
            assert isinstance(events[-1], Finished)
            assert [event.step for event in progress] == list(range(1, len(progress) + 1))
            assert progress[-1].step == progress[-1].total
            assert all(a.device_s < b.device_s for a, b in itertools.pairwise(progress))
            nodes = [step.node.name for step in served.walked(index)]
            assert [event.node for event in progress] == nodes

    def test_chunks_join_to_the_clip(self, served: Served) -> None:
        """As many as the loops promise, in order; none where nothing streams."""
        for index in range(len(served.requests)):
            chunks = [e for e in served.record(index).events if isinstance(e, ChunkReady)]
            nodes = [step.node for step in served.walked(index)]
            streamed = [n for n in nodes if isinstance(n, ComponentNode) and n.streams]
            assert [chunk.index for chunk in chunks] == list(range(len(streamed)))
            if chunks:
                joined = np.concatenate([np.asarray(chunk.value) for chunk in chunks])
                np.testing.assert_array_equal(joined, served.alone(index).video.frames)

    def test_guidance_one_runs_one_branch(self, served: Served) -> None:
        """It costs what one branch costs, and no encoder ever sees the negative prompt."""
        card = served.source.card
        words = {"negative_prompt": NEGATIVE} if card.capabilities.negative_prompt else {}
        two = card.capabilities.guidance in TWO_BRANCHES
        scales = (1.0,) if card.capabilities.guidance is GuidanceForm.NONE else (1.0, 3.0)
        looped = {
            (call.component, call.op)
            for step in served.walked(0)
            for call in step.plan.calls
            if isinstance(step.node, LoopNode)
        }
        flops: list[int] = []
        for scale in scales:
            calls: list[Call] = []
            with spied(served.resident, calls.append, counting=True):
                served.run(_changed(served.requests[0], guidance_scale=scale, **words))
            flops.append(sum(call.flops for call in calls if (call.component, call.op) in looped))
            read = any(NEGATIVE in call.texts for call in calls)
            assert read == (two and scale > 1.0 and bool(words))
        assert min(flops) > 0
        # Both branches share some small work, such as embedding a time; nothing else.
        assert not two or flops[0] <= 0.6 * flops[1]

    def test_cancel_at_any_step_frees_everything(self, served: Served) -> None:
        """A cancel during any call but the last plan's stops the request at the next boundary."""
        request, resident = served.requests[0], served.resident
        sizes = [len(step.plan.calls) for step in served.walked(0)]
        for index in range(sum(sizes[:-1])):
            handle = _cancelled_during(served, request, index)
            events = list(handle.events(TIMEOUT_S))
            assert isinstance(events[-1], Cancelled)
            # Calls of the plan that ran are not cut short: the boundary is the plan's end.
            reached = sum(1 for end in itertools.accumulate(sizes) if end <= index) + 1
            assert sum(isinstance(event, Progress) for event in events) == reached
            assert handle._scope.closed
            assert handle._scope.num_held == 0
            assert (resident.pages.num_pages, resident.pages.num_bytes) == (0, 0)
        assert same_output(served.run(request), served.alone(0))

    def test_a_nan_in_a_weight_fails_that_request_alone(self, served: Served) -> None:
        """One word of one prompt is poisoned; the other prompt does not hold it."""
        poisoned, healthy = served.requests[0], served.requests[1]
        expected = served.alone(0), served.alone(1)
        rows = [_embedding_rows(served, request) for request in (poisoned, healthy)]
        only = sorted(rows[0] - rows[1])
        assert only, "the prompts of the first two requests differ in no word"
        embedding, row = _embeddings(served)[only[0][0]], only[0][1]
        with torch.no_grad():
            kept = embedding.weight[row].clone()
            embedding.weight[row] = float("nan")
            try:
                handles = [served.engine.submit(r) for r in (poisoned, healthy)]
                with pytest.raises(NonFinite):
                    handles[0].result(TIMEOUT_S)
                assert same_output(handles[1].result(TIMEOUT_S), expected[1])
            finally:
                embedding.weight[row] = kept
        assert served.resident.pages.num_pages == 0
        assert same_output(served.run(poisoned), expected[0])

    def test_a_nan_in_any_network_is_found(self, served: Served) -> None:
        """Whichever component makes it, nothing is delivered."""
        poisoned = 0
        for name in served.record(0).loaded:
            weights = _floating_weights(served, name)
            kept = [weight.clone() for weight in weights]
            with torch.no_grad():
                for weight in weights:
                    weight.fill_(float("nan"))
                try:
                    if weights:
                        with pytest.raises(NonFinite):
                            served.run(served.requests[0])
                finally:
                    for weight, before in zip(weights, kept, strict=True):
                        weight.copy_(before)
            poisoned += bool(weights)
        assert poisoned > 0
        assert same_output(served.run(served.requests[0]), served.alone(0))


def _changed(request: Request, **changes: object) -> Request:
    fields = {name: getattr(request, name) for name in request.__dataclass_fields__}
    return Request.build(**{**fields, **changes})


def _cancelled_during(served: Served, request: Request, index: int) -> Handle:
    """Submit a request and cancel it while its call `index` runs, on the device worker."""
    count, known, handles = itertools.count(), threading.Event(), list[Handle]()

    def tell(call: Call) -> None:
        if next(count) == index:
            assert known.wait(TIMEOUT_S)
            handles[0].cancel()

    with spied(served.resident, tell):
        handles.append(served.engine.submit(request))
        known.set()
        handles[0].wait(TIMEOUT_S)
    return handles[0]


def _embeddings(served: Served) -> list[nn.Embedding]:
    return [
        found
        for spec in served.source.card.components
        for module in modules_of(served.resident.component(spec.name))
        for found in module.modules()
        if isinstance(found, nn.Embedding)
    ]


def _embedding_rows(served: Served, request: Request) -> set[tuple[int, int]]:
    """Return which rows of which embedding a request looks up."""
    rows: set[tuple[int, int]] = set()
    with contextlib.ExitStack() as hooks:
        for index, embedding in enumerate(_embeddings(served)):

            def record(_: nn.Module, inputs: tuple[torch.Tensor], index: int = index) -> None:
                rows.update((index, int(row)) for row in inputs[0].unique())

            handle = embedding.register_forward_pre_hook(record)
            hooks.callback(handle.remove)
        served.run(request)
    return rows


def _floating_weights(served: Served, component: str) -> list[torch.Tensor]:
    def found() -> Iterator[torch.Tensor]:
        for module in modules_of(served.resident.component(component)):
            yield from (p for p in module.parameters() if p.is_floating_point())

    return list(found())
