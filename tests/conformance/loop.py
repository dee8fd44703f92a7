"""The suite that every driven loop passes, over a small real network.

class TestMyLoop(LoopSuite):
    factory = MyLoop
    loop_spec = LoopSpec(name="my_loop", loop="x:MyLoop", binds=..., options=...)
    writes = frozenset({"latents"})
    ...
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from conformance.loop_driving import DrivenLoop, WatchedPages, WatchedSlots, page_ids, pages_read
from conformance.values import Snapshot, differences, leaves, mutable_parts, snapshot
from ostinato.errors import InvalidCard
from ostinato.loop.contract import Done, Emission, LoopContext
from ostinato.loop.driver import run_plan
from ostinato.loop.execute import execute
from ostinato.loop.noise import NoiseStream
from ostinato.work import WorkUnitKind
from support.kernels import kernels_of


class LoopSuite(DrivenLoop):
    """What is asked of a loop.

    factory, loop_spec: how the card makes it. reads, writes: the slots that its node declares.
    facts: by role. component: the network its plans call. slots: what a program would have
    written, made anew each time. specs: valid requests that differ in steps, guidance, sizes,
    sampler and seed, the first guided and with a seed that matters. refused: requests that `check`
    turns away.
    """

    def test_next_runs_no_kernel(self) -> None:
        loop = self.loop()
        for spec in self.specs():
            for turn in self.turns(loop, spec):
                with kernels_of() as kernels:
                    loop.next(turn.before)
                    loop.next(turn.after)
                assert kernels == []

    def test_next_is_pure(self) -> None:
        """Asked again, later and after other requests were asked, it describes the same step."""
        loop, spec = self.loop(), self.specs()[0]
        seen = [(t.before, snapshot(t.before), snapshot(t.plan)) for t in self.turns(loop, spec)]
        self.final(loop, self.specs()[-1])
        for state, before, plan in reversed(seen):
            assert differences(plan, loop.next(state)) == []
            assert differences(before, state) == []

    def test_advance_is_pure(self) -> None:
        """Folded in twice, a result gives two equal states; the old state and it do not change."""
        loop = self.loop()
        for spec in self.specs():
            for turn in self.turns(loop, spec):
                kept = snapshot(turn.before), snapshot(turn.result), snapshot(turn.after)
                again = loop.advance(turn.before, turn.result)
                assert differences(kept[2], again) == []
                assert differences(kept[0], turn.before) == []
                assert differences(kept[1], turn.result) == []
                assert differences(kept[2], turn.after) == []

    def test_the_old_state_is_left_as_it_was(self) -> None:
        """Looked at before the first `advance`, which `turns` has behind it."""
        loop, net, pages = self.loop(), self.component(), WatchedPages()
        state = self.begin(loop, self.specs()[0], pages)
        while not isinstance(plan := loop.next(state), Done):
            result = run_plan(plan, lambda _: net, pages)
            before, given = snapshot(state), snapshot(result)
            after = loop.advance(state, result)
            assert differences(before, state) == []
            assert differences(given, result) == []
            state = after

    def test_a_state_is_frozen(self) -> None:
        state = self.begin(self.loop(), self.specs()[0])
        assert dataclasses.is_dataclass(state)
        for field in dataclasses.fields(state):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(state, field.name, None)

    def test_steps_counted_are_plans_made(self) -> None:
        loop = self.loop()
        for spec in self.specs():
            counted = loop.num_steps(spec, self.facts)
            assert counted == sum(1 for _ in self.turns(loop, spec)) > 0

    def test_pieces_counted_are_emissions_made(self) -> None:
        """Indices are dense, slots are the loop's own, and a look emits nothing twice."""
        loop = self.loop()
        for spec in self.specs():
            assert loop.emitted(self.begin(loop, spec)) == ()
            emissions: list[Emission] = []
            for turn in self.turns(loop, spec):
                emitted = loop.emitted(turn.after)
                assert differences(emitted, loop.emitted(turn.after)) == []
                emissions += emitted
            assert [e.index for e in emissions] == list(range(loop.num_pieces(spec, self.facts)))
            assert {e.slot for e in emissions} <= self.writes

    def test_done_is_stable(self) -> None:
        loop = self.loop()
        *_, last = self.turns(loop, self.specs()[0])
        kept = snapshot(last.after)
        assert [type(loop.next(last.after)) for _ in range(3)] == [Done] * 3
        loop.finalize(last.after)
        assert isinstance(loop.next(last.after), Done)
        assert differences(kept, last.after) == []

    def test_finalize_writes_the_declared_slots(self) -> None:
        loop = self.loop()
        for spec in self.specs():
            *_, last = self.turns(loop, spec)
            one, other = loop.finalize(last.after), loop.finalize(last.after)
            assert frozenset(one.slots) == self.writes
            assert differences(one, other) == []
            for _, leaf in leaves(dict(one.slots)):
                assert isinstance(leaf, torch.Tensor)
                assert bool(torch.isfinite(leaf).all())

    def test_reads_are_declared_and_are_what_is_read(self) -> None:
        loop = self.loop()
        for spec in self.specs():
            asked = loop.reads(spec)
            assert asked <= self.reads
            slots = WatchedSlots({name: self.slots()[name] for name in asked})
            noise = NoiseStream(seed=spec.seed)
            rings = WatchedPages().open_ring
            loop.init(spec, slots, LoopContext(facts=self.facts, noise=noise, open_ring=rings))
            assert slots.read == asked

    def test_check_refuses_what_it_cannot_serve(self) -> None:
        """In words, all at once, without a change and without raising."""
        loop = self.loop()
        assert [loop.check(spec, self.facts) for spec in self.specs()] == [()] * len(self.specs())
        assert self.refused()
        for spec in self.refused():
            problems = loop.check(spec, self.facts)
            assert problems
            assert all(isinstance(problem, str) and len(problem) > 10 for problem in problems)
            assert loop.check(spec, self.facts) == problems

    def test_a_spec_that_is_not_served_is_an_invalid_card(self) -> None:
        spec, make = self.loop_spec, type(self).factory
        options = {**spec.options, "no_such_option": 1}
        binds = {**spec.binds, "no_such_role": "network"}
        few = dict(list(spec.binds.items())[1:])
        for changes in ({"options": options}, {"binds": binds}, {"binds": few}):
            with pytest.raises(InvalidCard):
                make(dataclasses.replace(spec, **changes))  # type: ignore[arg-type]

    def test_two_requests_share_nothing_that_changes(self) -> None:
        """Neither containers nor tensor memory; schedules and facts are nobody's to change."""
        loop, spec = self.loop(), self.specs()[0]
        common = mutable_parts((self.facts, spec))
        states = [[t.after for t in self.turns(loop, spec, WatchedPages())] for _ in range(2)]
        one, other = (mutable_parts(tuple(reached)) for reached in states)
        shared = {one[key] for key in (set(one) & set(other)) - set(common)}
        assert shared == set()

    def test_pages_are_committed_once_and_read_after(self) -> None:
        """Which `WatchedPages` sees to; and each request keeps to its own ring."""
        loop, pages = self.loop(), WatchedPages()
        for spec in self.specs():
            others = {page for ring in pages.rings for page in page_ids(ring)}
            written = len(pages.written)
            for turn in self.turns(loop, spec, pages):
                ids = {call.call_id for call in turn.plan.calls}
                assert {entry.output.call for entry in turn.plan.commits} <= ids
                refs = {ref for call in turn.plan.calls for ref in pages_read(dict(call.inputs))}
                assert not {ref.page for ref in refs} & others
            assert not {ref.page for ref in pages.written[written:]} & others

    def test_noise_depends_on_the_seed_alone(self) -> None:
        """Not on the process's generator, nor on who ran before; and it is not touched."""
        loop, spec = self.loop(), self.specs()[0]
        expected = snapshot(self.final(loop, spec))
        net = self.component()
        torch.manual_seed(1234)
        before = torch.get_rng_state()
        for index in (-1, 0):
            *_, last = self.turns(loop, self.specs()[index], net=net)
        assert torch.equal(before, torch.get_rng_state())
        assert differences(expected, loop.finalize(last.after)) == []
        other = dataclasses.replace(spec, seed=spec.seed + 1)
        assert differences(expected, self.final(loop, other)) != []

    def test_interleaved_is_alone(self) -> None:
        """One loop object; the turn goes to another request at each step, whichever."""
        loop, specs, draw = self.loop(), self.specs(), random.Random(0)
        alone = [snapshot(self.final(self.loop(), spec)) for spec in specs]
        runs = {index: self.turns(loop, spec) for index, spec in enumerate(specs)}
        last: dict[int, object] = {}
        index = -1
        while runs:
            index = draw.choice(sorted(set(runs) - {index}) or sorted(runs))
            turn = next(runs[index], None)
            if turn is None:
                del runs[index]
            else:
                last[index] = turn.after
        for index, expected in enumerate(alone):
            assert differences(expected, loop.finalize(last[index])) == [], index

    def test_a_plan_is_data(self) -> None:
        for turn in self.turns(self.loop(), self.specs()[0]):
            assert turn.plan.kind in WorkUnitKind
            assert turn.plan.ordered()
            for path, leaf in leaves([dict(call.inputs) for call in turn.plan.calls]):
                plain = isinstance(leaf, torch.Tensor | str | int | float | None)
                assert plain, f"{path} is a {type(leaf).__name__}"

    def test_what_changes_from_step_to_step_is_a_tensor(self) -> None:
        """Scalars are part of the key by which calls are batched and captured."""
        scalars: dict[tuple[str, str], Snapshot] = {}
        for turn in self.turns(self.loop(), self.specs()[0]):
            for call in turn.plan.calls:
                fixed = {n: v for n, v in call.inputs.items() if isinstance(v, int | float | str)}
                known = scalars.setdefault((call.call_id, call.op), snapshot(fixed))
                assert differences(known, fixed) == []

    def test_a_plan_with_grad_gives_the_same_bytes(self) -> None:
        loop, net, pages = self.loop(), self.component(), WatchedPages()
        followed = 0
        for turn in self.turns(loop, self.specs()[0], pages):
            trained = execute(turn.plan, lambda _: net, pages, with_grad=True)
            assert differences(turn.result, trained) == []
            tensors = [leaf for _, leaf in leaves(trained) if isinstance(leaf, torch.Tensor)]
            followed += any(tensor.requires_grad for tensor in tensors)
        assert followed > 0
