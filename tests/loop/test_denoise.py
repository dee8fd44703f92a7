"""The denoise loop over a small real network: calls, purity, forms, given latents."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

from ostinato.card import GuidanceForm, LoopSpec, Scalar
from ostinato.errors import InvalidCard
from ostinato.loop.contract import Done
from ostinato.loop.denoise import Denoise
from ostinato.loop.driver import drive, drive_to_end
from ostinato.loop.execute import execute
from ostinato.loop.facts import LatentFacts
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling import LibrarySampler, LibraryScheduler
from ostinato.memory import KVPool
from ostinato.request import ArrayLike, GenerationSpec
from support.tiny_denoisers import FACTS, TinyDenoiser, context_for, embeds, spec_of

BINDS = {"denoiser": "net", "latents": "codec"}
SHAPE = (1, 4, 4, 2, 4)
POOL = KVPool()


def loop_of(**options: Scalar) -> Denoise:
    return Denoise(LoopSpec(name="denoise", loop="x:Denoise", binds=BINDS, options=options))


def loop_bound_to(binds: Mapping[str, str]) -> Denoise:
    return Denoise(LoopSpec(name="denoise", loop="x:Denoise", binds=binds))


def _library(scheduler: object) -> LibrarySampler:
    return LibrarySampler(cast("LibraryScheduler", scheduler))


def generate(
    loop: Denoise, spec: GenerationSpec, net: TinyDenoiser, facts: Mapping[str, object] = FACTS
) -> torch.Tensor:
    state = loop.init(spec, embeds(), context_for(spec, facts=facts))
    with torch.no_grad():
        latents = drive_to_end(loop, state, lambda _: net, POOL).slots["latents"]
    assert isinstance(latents, torch.Tensor)
    return latents


@pytest.mark.parametrize(
    ("form", "scale", "calls"),
    [
        ("two_forward", 3.0, 6),
        ("two_forward", 1.0, 3),
        ("batched", 3.0, 3),
        ("batched", 1.0, 3),
        ("embedded", 3.0, 3),
        ("embedded", 1.0, 3),
        ("none", 1.0, 3),
    ],
)
def test_calls_of_each_form(form: str, scale: float, calls: int) -> None:
    net, spec = TinyDenoiser(), spec_of(guidance_scale=scale)
    assert generate(loop_of(guidance=form), spec, net).shape == SHAPE
    assert net.calls == {"predict": calls}


@pytest.mark.parametrize("form", GuidanceForm)
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_branch_that_does_not_run_is_not_read(form: GuidanceForm, scale: float) -> None:
    reads = loop_of(guidance=form.value).reads(spec_of(guidance_scale=scale))
    two = scale > 1.0 and form in (GuidanceForm.TWO_FORWARD, GuidanceForm.BATCHED)
    assert reads == {"prompt_embeds", "negative_prompt_embeds"} if two else {"prompt_embeds"}
    assert ("negative_prompt_embeds" in reads) == two


@pytest.mark.parametrize("sampler", ["euler", "renoise"])
def test_batched_is_two_forward_to_the_bit(sampler: str) -> None:
    """All of the network's linear layers see at least 4 rows, so batches give equal bits."""
    spec, net = spec_of(sampler=sampler), TinyDenoiser()
    apart = generate(loop_of(guidance="two_forward"), spec, net)
    assert torch.equal(apart, generate(loop_of(guidance="batched"), spec, net))


def test_guidance_matters_in_every_form_that_has_it() -> None:
    net = TinyDenoiser()
    for form in ("two_forward", "batched", "embedded"):
        low, high = (
            generate(loop_of(guidance=form), spec_of(guidance_scale=s), net) for s in (1.5, 4.0)
        )
        assert not torch.allclose(low, high), form


def test_the_loop_is_the_textbook_loop() -> None:
    """Written out: x <- x + (s' - s) (u + g (c - u))."""
    spec, net, slots = spec_of(flow_shift=3.0), TinyDenoiser(), embeds()
    x = NoiseStream(seed=spec.seed).normal(SHAPE, "initial", 0)
    sigmas = [3 * s / (1 + 2 * s) for s in (1, 2 / 3, 1 / 3, 0)]
    with torch.no_grad():
        for sigma, sigma_next in pairwise(sigmas):
            time = torch.tensor(1000 * sigma)
            cond, uncond = (
                net.predict(x, time, slots[name])["prediction"]  # type: ignore[arg-type]
                for name in ("prompt_embeds", "negative_prompt_embeds")
            )
            x = x + (sigma_next - sigma) * (uncond + 3.0 * (cond - uncond))  # type: ignore[operator]
    torch.testing.assert_close(generate(loop_of(), spec, net), x)


def test_training_re_enters_a_recorded_state() -> None:
    """The recorded plan with grad gives the served prediction to the bit, and gradients."""
    loop, spec, net = loop_of(), spec_of(), TinyDenoiser()
    start = loop.init(spec, embeds(), context_for(spec))
    middle = next(drive(loop, start, lambda _: net, POOL))
    plan = loop.next(middle)
    assert not isinstance(plan, Done)
    served = execute(plan, lambda _: net, POOL)
    trained = execute(plan, lambda _: net, POOL, with_grad=True)
    for branch in ("cond", "uncond"):
        one, other = served.get(branch, "prediction"), trained.get(branch, "prediction")
        assert isinstance(one, torch.Tensor)
        assert isinstance(other, torch.Tensor)
        assert torch.equal(one, other)
        assert not one.requires_grad
        assert other.requires_grad
    loop.advance(middle, trained).trajectory.latents.square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_given_latents_are_used_and_not_changed() -> None:
    loop, net = loop_of(), TinyDenoiser()
    keyed = generate(loop, spec_of(), net)
    noise = NoiseStream(seed=spec_of().seed).normal(SHAPE, "initial", 0)
    for given in (noise.clone(), noise.double(), noise.numpy().copy()):
        spec = spec_of(initial_latents=given, seed=99)
        assert loop.check(spec, FACTS) == ()
        state = loop.init(spec, embeds(), context_for(spec))
        assert torch.equal(generate(loop, spec, net), keyed)
        assert torch.equal(torch.as_tensor(given).float(), noise)
        given[:] = 0  # the caller's to change once the request has started
        assert torch.equal(state.trajectory.latents, noise)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(1, 4, 4, 4, 2), r"are \[1, 4, 4, 4, 2\]; this size needs \[1, 4, 4, 2, 4\]"),
        (torch.zeros(SHAPE, dtype=torch.int64), "expected finite floating-point"),
        (torch.full(SHAPE, torch.nan), "expected finite floating-point"),
        (np.zeros((1, 4)), r"are \[1, 4\]"),
        (memoryview(b"1234"), "are a memoryview; expected a tensor or an array"),
    ],
)
def test_latents_that_do_not_fit(given: ArrayLike, message: str) -> None:
    problems = loop_of().check(spec_of(initial_latents=given), FACTS)
    assert len(problems) == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(problems[0])


def test_the_oracle_draws_as_the_library_does() -> None:
    spec = spec_of(seed=42)
    state = loop_of(noise="oracle").init(spec, embeds(), context_for(spec))
    expected = torch.randn(SHAPE, generator=torch.Generator().manual_seed(42))
    assert torch.equal(state.trajectory.latents, expected)
    keyed = loop_of().init(spec, embeds(), context_for(spec))
    assert not torch.equal(keyed.trajectory.latents, expected)


def test_a_library_sampler_is_used_where_it_is_bound() -> None:
    sampler = _library(FlowMatchEulerDiscreteScheduler(shift=3.0))
    facts = {**FACTS, "sampler": sampler}
    loop, net = loop_bound_to({**BINDS, "sampler": "scheduler"}), TinyDenoiser()
    spec = spec_of(sampler="whatever the card calls it")
    state = loop.init(spec, embeds(), context_for(spec, facts=facts))
    assert torch.equal(state.trajectory.timestep, sampler.schedule(3, None).timesteps[0])
    steps = list(drive(loop, state, lambda _: net, POOL))
    assert len(steps) == loop.num_steps(spec, facts) == 3
    assert loop.check(spec, facts) == ()


def test_check_holds_the_sampler_against_the_request() -> None:
    (problem,) = loop_of().check(spec_of(sampler="dpm"), FACTS)
    assert "'dpm'; valid: ['euler', 'renoise']" in problem
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, use_karras_sigmas=True
    )
    facts = {**FACTS, "sampler": _library(scheduler)}
    (problem,) = loop_of().check(spec_of(flow_shift=2.0), facts)
    assert "takes no flow_shift" in problem


def test_sizes_come_from_facts() -> None:
    causal = {**FACTS, "latents": LatentFacts(temporal_stride=4, spatial_stride=16, causal=True)}
    spec = spec_of(num_frames=9, height=64, width=32)
    state = loop_of().init(spec, embeds(), context_for(spec, facts=causal))
    assert state.trajectory.latents.shape == (1, 4, 3, 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guidnace": "none"}, "guidnace"),
        ({"guidance": "cfg"}, "guidance is 'cfg'; served: two_forward, batched, embedded, none"),
        ({"guidance": True}, "guidance is True"),
        ({"guidance_rule": "apg"}, "no guidance rule 'apg'"),
        ({"noise": "random"}, "noise is 'random'; served: keyed, oracle"),
        ({"attention_context": "self_forcing"}, "served: bidirectional"),
    ],
)
def test_options_are_validated(options: Mapping[str, Scalar], message: str) -> None:
    with pytest.raises(InvalidCard, match=message):
        loop_of(**options)


@pytest.mark.parametrize("binds", [{"denoiser": "net"}, {**BINDS, "samplre": "scheduler"}])
def test_roles_are_validated(binds: Mapping[str, str]) -> None:
    with pytest.raises(InvalidCard, match=r"needs \['denoiser', 'latents'\].*takes \['sampler'\]"):
        loop_bound_to(binds)
