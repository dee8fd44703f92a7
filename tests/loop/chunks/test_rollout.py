"""The chunk rollout over a small causal network, against a rollout written out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.card import AttentionContext, LoopSpec, Scalar
from ostinato.errors import InvalidCard, PageViolation
from ostinato.loop.chunks.rollout import ChunkRollout, RolloutState
from ostinato.loop.chunks.visible import visible_blocks
from ostinato.loop.contract import Done
from ostinato.loop.driver import drive, drive_to_end, run_plan
from ostinato.loop.execute import execute
from ostinato.loop.noise import NoiseStream
from ostinato.memory import KVPool, LayerContext
from ostinato.request import GenerationSpec
from ostinato.work import CacheRef, PageRef, WorkPlan, WorkUnitKind
from support.kernels import kernels_of
from support.tiny_denoisers import FACTS, TinyCausal, TinyLayer, context_for, embeds, spec_of

OPTIONS: Mapping[str, Scalar] = {
    "frames_per_block": 2,
    "window_blocks": 3,
    "attention_context": "self_forcing",
    "guidance": "batched",
    "guidance_rule": "classifier_free",
}
BINDS = {"denoiser": "net", "latents": "codec"}


def loop_of(**changes: Scalar) -> ChunkRollout:
    options = {**OPTIONS, **changes}
    return ChunkRollout(LoopSpec(name="r", loop="x:R", binds=BINDS, options=options))


def begin(loop: ChunkRollout, spec: GenerationSpec, pool: KVPool) -> RolloutState:
    return loop.init(spec, embeds(), context_for(spec, pool.open_ring))


def generate(loop: ChunkRollout, spec: GenerationSpec, net: TinyCausal) -> torch.Tensor:
    pool = KVPool()
    with torch.no_grad():
        result = drive_to_end(loop, begin(loop, spec, pool), lambda _: net, pool)
    latents = result.slots["latents"]
    assert isinstance(latents, torch.Tensor)
    return latents


def plans(
    loop: ChunkRollout, spec: GenerationSpec, net: TinyCausal, pool: KVPool
) -> list[tuple[RolloutState, WorkPlan]]:
    """Drive to the end; return each state and the plan it gave."""
    state, seen = begin(loop, spec, pool), []
    while not isinstance(plan := loop.next(state), Done):
        seen.append((state, plan))
        state = loop.advance(state, run_plan(plan, lambda _: net, pool))
    return seen


def _joined(pages: list[TinyLayer]) -> LayerContext:
    keys, values = zip(*pages, strict=True)
    return LayerContext(torch.cat(keys, dim=1), torch.cat(values, dim=1))


@torch.no_grad()
def by_hand(spec: GenerationSpec, net: TinyCausal, *, frames: int, window: int) -> torch.Tensor:
    """Roll out with lists in place of pages: no ring, no plan, no state."""
    both = spec.guidance_scale > 1.0
    texts = [embeds()["prompt_embeds"], embeds()["negative_prompt_embeds"]][: 1 + both]
    text_kv = net.encode_text(tuple(texts))["text_kv"]  # type: ignore[arg-type]
    sigmas = torch.linspace(1, 0, spec.num_inference_steps + 1, dtype=torch.float64).float()
    stored, finished = [], []
    num_blocks = -(-spec.num_frames // frames)
    for block in range(num_blocks):
        seen = stored[max(0, block - window + 1) : block]
        context = None
        if seen:
            context = tuple(_joined([page[layer] for page in seen]) for layer in range(2))
        shared = (torch.tensor(block * frames), text_kv, context)
        x = NoiseStream(seed=spec.seed).normal((1, 4, frames, 2, 4), "initial", block)
        for sigma, sigma_next in pairwise(sigmas):
            velocity = net.predict(x, sigma * 1000, *shared)["prediction"]  # type: ignore[arg-type]
            assert isinstance(velocity, torch.Tensor)
            if both:
                cond, uncond = velocity.chunk(2)
                velocity = uncond + spec.guidance_scale * (cond - uncond)
            x = x + (float(sigma_next) - float(sigma)) * velocity
        finished.append(x)
        stored.append(net.store(x, *shared)["layers"])  # type: ignore[arg-type]
    return torch.cat(finished, dim=2)[:, :, : spec.num_frames]


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 13), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1.0, 3.0]))
def test_a_rollout_is_the_one_by_hand_to_the_bit(
    num_frames: int, frames: int, window: int, scale: float
) -> None:
    spec = spec_of(num_frames=num_frames, guidance_scale=scale, num_inference_steps=2)
    net = TinyCausal()
    loop = loop_of(frames_per_block=frames, window_blocks=window)
    found = generate(loop, spec, net)
    assert found.shape == (1, 4, num_frames, 2, 4)
    assert torch.equal(found, by_hand(spec, net, frames=frames, window=window))


def test_history_matters() -> None:
    """So equality above is not that of networks that look at nothing."""
    spec, net = spec_of(num_frames=8), TinyCausal()
    narrow, wide = (generate(loop_of(window_blocks=w), spec, net) for w in (1, 4))
    assert torch.equal(narrow[:, :, :2], wide[:, :, :2])
    assert not torch.allclose(narrow[:, :, 2:4], wide[:, :, 2:4])


@pytest.mark.parametrize("num_frames", [1, 2, 5, 8])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_steps_and_pieces_are_what_is_executed(num_frames: int, window: int) -> None:
    loop, net, pool = loop_of(window_blocks=window), TinyCausal(), KVPool()
    spec = spec_of(num_frames=num_frames)
    states = list(drive(loop, begin(loop, spec, pool), lambda _: net, pool))
    assert len(states) == loop.num_steps(spec, FACTS)
    emissions = [emission for state in states for emission in loop.emitted(state)]
    assert len(emissions) == loop.num_pieces(spec, FACTS)
    assert [emission.index for emission in emissions] == list(range(len(emissions)))
    pieces = [e.value for e in emissions if isinstance(e.value, torch.Tensor)]
    final = loop.finalize(states[-1]).slots["latents"]
    assert isinstance(final, torch.Tensor)
    assert torch.equal(torch.cat(pieces, dim=2), final)


@pytest.mark.parametrize(("window", "stores"), [(1, 0), (2, 3), (3, 3)])
def test_only_a_block_that_is_read_is_stored(window: int, stores: int) -> None:
    net = TinyCausal()
    generate(loop_of(window_blocks=window), spec_of(num_frames=8), net)
    calls = {"encode_text": 1, "predict": 4 * 3, "store": stores}
    assert dict(net.calls) == {name: count for name, count in calls.items() if count}


def test_guidance_one_is_one_branch() -> None:
    loop, net = loop_of(), TinyCausal()
    spec = spec_of(guidance_scale=1.0)
    assert loop.reads(spec) == {"prompt_embeds"}
    assert loop.reads(spec_of()) == {"prompt_embeds", "negative_prompt_embeds"}
    state = loop.init(spec, {"prompt_embeds": embeds()["prompt_embeds"]}, context_for(spec))
    assert len(state.prompt_embeds) == 1
    none = generate(loop_of(guidance="none"), spec_of(guidance_scale=1.0), net)
    assert torch.equal(generate(loop, spec, net), none)


def test_the_context_is_what_visible_blocks_says() -> None:
    loop, net, pool = loop_of(), TinyCausal(), KVPool()
    written: dict[PageRef, int] = {}
    blocks_seen: dict[int, tuple[int, ...]] = {}
    for state, plan in plans(loop, spec_of(num_frames=20), net, pool):
        reference = plan.calls[0].inputs.get("context", CacheRef(pages=()))
        assert isinstance(reference, CacheRef)
        seen = tuple(written[page] for page in reference.pages)
        if plan.kind is not WorkUnitKind.ENCODER_CHUNK:
            assert blocks_seen.setdefault(state.block, seen) == seen
        for commit in plan.commits:
            assert plan.kind is WorkUnitKind.CACHE_IO
            assert commit.target not in written
            written[commit.target] = state.block
    expected = {
        block: visible_blocks(AttentionContext.SELF_FORCING, block, window_blocks=3)
        for block in range(10)
    }
    assert blocks_seen == expected
    assert list(written.values()) == list(range(9))


def test_forty_blocks_keep_memory_bounded_and_pages_right() -> None:
    loop, net, pool = loop_of(), TinyCausal(), KVPool()
    spec = spec_of(num_frames=80, num_inference_steps=1)
    sizes: set[int] = set()
    held: list[int] = []
    state = begin(loop, spec, pool)
    for reached in drive(loop, state, lambda _: net, pool):
        state = reached
        sizes.add(pool.num_bytes)
        held.append(len(state.pages))
        assert pool.num_pages == 6
    assert max(held) <= 3
    page_bytes = 2 * 2 * 2 * (2 * 2 * 4) * 32 * 4  # layers, K and V, branches, tokens, width, fp32
    assert sizes == {0, 6 * page_bytes}
    final = loop.finalize(state).slots["latents"]
    assert isinstance(final, torch.Tensor)
    assert torch.equal(final, by_hand(spec, net, frames=2, window=3))


def test_next_runs_no_kernel_and_nothing_is_hidden() -> None:
    """A plan that is asked for and executed again gives the same state, while its pages live."""
    loop, net, pool = loop_of(), TinyCausal(), KVPool()
    state = begin(loop, spec_of(num_frames=7, sampler="renoise"), pool)
    while True:
        with kernels_of() as kernels:
            plan, again = loop.next(state), loop.next(state)
        assert kernels == []
        if isinstance(plan, Done) or isinstance(again, Done):
            assert plan == again
            break
        assert plan.commits == again.commits
        first, second = (execute(p, lambda _: net, pool) for p in (plan, again))
        following, repeated = (loop.advance(state, result) for result in (first, second))
        assert torch.equal(following.trajectory.latents, repeated.trajectory.latents)
        assert following.pages == repeated.pages
        assert (following.block, following.fresh) == (repeated.block, repeated.fresh)
        result = run_plan(plan, lambda _: net, pool)
        if plan.commits:
            with pytest.raises(PageViolation, match="cannot be written"):
                run_plan(plan, lambda _: net, pool)
        state = loop.advance(state, result)


def test_an_old_state_whose_pages_are_gone_is_refused() -> None:
    loop, net, pool = loop_of(), TinyCausal(), KVPool()
    seen = plans(loop, spec_of(num_frames=40), net, pool)
    old = next(plan for state, plan in seen if state.block == 2)
    with pytest.raises(PageViolation, match="cannot be read"):
        execute(old, lambda _: net, pool)


def test_a_result_with_grad_reaches_the_weights() -> None:
    """Self-forcing training drives the same loop: history is values, each block has gradients."""
    loop, net, pool = loop_of(), TinyCausal(), KVPool()
    spec = spec_of(num_frames=8)
    *_, last = drive(loop, begin(loop, spec, pool), lambda _: net, pool, with_grad=True)
    latents = loop.finalize(last).slots["latents"]
    assert isinstance(latents, torch.Tensor)
    assert torch.equal(latents.detach(), generate(loop, spec, net))
    latents.square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_noise_is_keyed_by_block() -> None:
    loop, net, pool = loop_of(), TinyCausal(), KVPool()
    spec = spec_of(num_frames=6, sampler="renoise")
    starts = [s for s, _ in plans(loop, spec, net, pool) if s.trajectory.step == 0 and not s.fresh]
    by_block = {state.block: state.trajectory for state in starts}
    for block, trajectory in by_block.items():
        expected = NoiseStream(seed=spec.seed).normal((1, 4, 2, 2, 4), "initial", block)
        assert torch.equal(trajectory.latents, expected)
        assert getattr(trajectory.memory, "block", None) == block
    assert sorted(by_block) == [0, 1, 2]


def test_check() -> None:
    loop = loop_of()
    assert loop.check(spec_of(), FACTS) == ()
    problems = loop.check(spec_of(sampler="dpm", initial_latents=torch.zeros(1)), FACTS)
    assert ["no sampler 'dpm'" in problems[0], "initial latents" in problems[1]] == [True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames_per_block": 0}, "frames_per_block is 0; expected a whole number of at least 1"),
        ({"frames_per_block": 2.5}, "frames_per_block is 2.5"),
        ({"window_blocks": 0}, "window_blocks is 0"),
        ({"window_blocks": True}, "window_blocks is True"),
        ({"window_blocks": "3"}, "window_blocks is '3'"),
        ({"attention_context": "bidirectional"}, "served: self_forcing"),
        ({"attention_context": "rolling"}, "served: self_forcing"),
        ({"guidance": "two_forward"}, "guidance is 'two_forward'; served: batched, none"),
        ({"guidance_rule": "apg"}, "no guidance rule 'apg'"),
        ({"windw_blocks": 3}, r"windw_blocks.*it takes"),
    ],
)
def test_options_are_validated(changes: Mapping[str, Scalar], message: str) -> None:
    with pytest.raises(InvalidCard, match=message):
        loop_of(**changes)


@pytest.mark.parametrize("name", OPTIONS)
def test_no_option_has_a_silent_default(name: str) -> None:
    options = {key: value for key, value in OPTIONS.items() if key != name}
    with pytest.raises(InvalidCard, match=rf"\['{name}'\] must be given"):
        ChunkRollout(LoopSpec(name="r", loop="x:R", binds=BINDS, options=options))


@pytest.mark.parametrize("binds", [{"denoiser": "net"}, {**BINDS, "sampler": "s"}])
def test_roles_are_validated(binds: Mapping[str, str]) -> None:
    with pytest.raises(InvalidCard, match=r"it needs \['denoiser', 'latents'\]"):
        ChunkRollout(LoopSpec(name="r", loop="x:R", binds=binds, options=OPTIONS))
