"""The causal forward against the library's, in blocks, in batches and in parts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

from ostinato.backend.nets.causal_wan import EXACT_ROWS, CausalWan
from ostinato.backend.nets.dense_wan import block_causal_mask, dense_forward
from ostinato.backend.nets.kv import ContextKV, LayerKV, Projected
from ostinato.backend.nets.rotary import rotate
from ostinato.errors import InvalidCheckpoint, InvalidPlan

pytestmark = pytest.mark.usefixtures("_no_grad")

MakeWan = Callable[..., WanTransformer3DModel]
FRAMES = 3


@pytest.fixture
def _no_grad():
    with torch.no_grad():
        yield


def _inputs(batch: int, frames: int, height: int = 8, width: int = 8):
    generator = torch.Generator().manual_seed(batch * 100 + frames)
    latents = torch.randn(batch, 4, frames, height, width, generator=generator)
    prompt_embeds = torch.randn(batch, 16, 32, generator=generator)
    timesteps = torch.rand(batch, generator=generator)[:, None].expand(batch, frames) * 1000
    return latents, timesteps, prompt_embeds


def _stock(
    transformer: WanTransformer3DModel,
    latents: torch.Tensor,
    timesteps_BT: torch.Tensor,
    prompt_embeds: torch.Tensor,
) -> torch.Tensor:
    """Run the library one sample at a time, with a timestep for every token.

    A batched library call rounds differently in its patch convolution, and one timestep a sample
    differently in its time embedding (a linear of one row): 1e-6, measured.
    """
    tokens = latents.shape[-2] * latents.shape[-1] // 4
    samples = [
        transformer(
            latents[i : i + 1],
            timesteps_BT[i : i + 1].repeat_interleave(tokens, dim=1),
            prompt_embeds[i : i + 1],
            return_dict=False,
        )[0]
        for i in range(len(latents))
    ]
    return torch.cat(samples)


def _grow(context: list[ContextKV], new_kv: tuple[LayerKV, ...]) -> list[ContextKV]:
    if not context:
        return [ContextKV(kv.key_rotated, kv.value) for kv in new_kv]
    return [
        ContextKV(torch.cat((seen[0], kv.key_rotated), 1), torch.cat((seen[1], kv.value), 1))
        for seen, kv in zip(context, new_kv, strict=True)
    ]


def _run_blocks(net: CausalWan, latents, timesteps, prompt_embeds, *, offset: int = 0):
    text_kv, context, velocities = net.encode_text(prompt_embeds), [], []
    for start in range(0, latents.shape[2], FRAMES):
        frames = slice(start, start + FRAMES)
        positions = torch.arange(start, start + FRAMES) + offset
        velocity, new_kv = net.forward(
            latents[:, :, frames], timesteps[:, frames], positions, text_kv, context or None
        )
        context = _grow(context, new_kv)
        velocities.append(velocity)
    return torch.cat(velocities, dim=2), context


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("grid", [(1, 8, 8), (3, 8, 12), (5, 12, 8)])
@pytest.mark.parametrize(
    "config",
    [{}, {"num_attention_heads": 4, "freq_dim": 256}, {"cross_attn_norm": False, "num_layers": 2}],
)
def test_one_block_equals_the_library_bit_for_bit(make_wan: MakeWan, batch, grid, config) -> None:
    transformer = make_wan(**config)
    net = CausalWan(transformer)
    latents, timesteps, prompt_embeds = _inputs(batch, *grid)
    velocity, _ = net.forward(
        latents, timesteps, torch.arange(grid[0]), net.encode_text(prompt_embeds)
    )
    assert torch.equal(velocity, _stock(transformer, latents, timesteps, prompt_embeds))
    per_sample = transformer(latents, timesteps[:, 0], prompt_embeds, return_dict=False)[0]
    torch.testing.assert_close(velocity, per_sample, rtol=0, atol=5e-6)


def test_frames_may_stand_at_different_timesteps(wan: WanTransformer3DModel) -> None:
    net = CausalWan(wan)
    latents, _, prompt_embeds = _inputs(2, FRAMES)
    timesteps = torch.tensor([[0, 500, 999], [1, 2, 3]])
    velocity, _ = net.forward(
        latents, timesteps, torch.arange(FRAMES), net.encode_text(prompt_embeds)
    )
    assert torch.equal(velocity, _stock(wan, latents, timesteps, prompt_embeds))


def test_bfloat16_weights_as_the_library_loads_them(
    wan: WanTransformer3DModel, tmp_path: Path
) -> None:
    """The library keeps norms, tables and the time embedder in float32; so do we, to the bit."""
    wan.save_pretrained(tmp_path)
    half = WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    net = CausalWan(half)
    latents, timesteps, prompt_embeds = _inputs(1, FRAMES)
    latents, prompt_embeds = latents.bfloat16(), prompt_embeds.bfloat16()
    velocity, new_kv = net.forward(
        latents, timesteps, torch.arange(FRAMES), net.encode_text(prompt_embeds)
    )
    assert velocity.dtype == torch.bfloat16
    assert new_kv[0].key_rotated.dtype == torch.bfloat16
    assert torch.equal(velocity, _stock(half, latents, timesteps, prompt_embeds))


@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
def test_blocks_in_turn_equal_the_dense_masked_forward(wan, attention) -> None:
    latents, timesteps, prompt_embeds = _inputs(2, 4 * FRAMES)
    timesteps = timesteps - torch.arange(4 * FRAMES) // FRAMES * 40.0
    velocity, _ = _run_blocks(CausalWan(wan), latents, timesteps, prompt_embeds)
    dense = dense_forward(
        wan,
        latents,
        timesteps,
        prompt_embeds,
        torch.arange(4 * FRAMES),
        block_causal_mask(4 * FRAMES, FRAMES),
        attention=attention,
    )
    # Measured 6e-7: a masked softmax over all keys and one over the visible keys round differently.
    torch.testing.assert_close(velocity, dense, rtol=0, atol=5e-6)


@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
def test_a_later_block_never_moves_an_earlier_one(wan, attention) -> None:
    latents, timesteps, prompt_embeds = _inputs(2, 3 * FRAMES)
    changed = latents.clone()
    changed[:, :, 2 * FRAMES :] += 10
    mask, positions = block_causal_mask(3 * FRAMES, FRAMES), torch.arange(3 * FRAMES)
    first, second = (
        dense_forward(wan, x, timesteps, prompt_embeds, positions, mask, attention=attention)
        for x in (latents, changed)
    )
    assert torch.equal(first[:, :, : 2 * FRAMES], second[:, :, : 2 * FRAMES])
    assert not torch.equal(first[:, :, 2 * FRAMES :], second[:, :, 2 * FRAMES :])


def test_context_matters_and_is_read_in_the_given_order(wan: WanTransformer3DModel) -> None:
    latents, timesteps, prompt_embeds = _inputs(1, 2 * FRAMES)
    net = CausalWan(wan)
    text_kv = net.encode_text(prompt_embeds)
    positions = torch.arange(FRAMES)
    _, kv = net.forward(latents[:, :, :FRAMES], timesteps[:, :FRAMES], positions, text_kv)
    context = _grow([], kv)
    last = latents[:, :, FRAMES:], timesteps[:, FRAMES:], positions + FRAMES, text_kv
    seen, _ = net.forward(*last, context)
    blind, _ = net.forward(*last)
    assert not torch.allclose(seen, blind, atol=1e-3)
    swapped = [ContextKV(c.keys_rotated.flip(1), c.values.flip(1)) for c in context]
    torch.testing.assert_close(net.forward(*last, swapped)[0], seen, rtol=0, atol=5e-6)


def test_own_keys_come_last(wan: WanTransformer3DModel) -> None:
    """The one order of keys everywhere; equality is exact because order changes bits."""
    net = CausalWan(wan)
    latents, timesteps, prompt_embeds = _inputs(2, FRAMES)
    text_kv = net.encode_text(prompt_embeds)
    embedded, rotary = net.embed(latents, timesteps), net.rotary(torch.arange(FRAMES) + 9, 8, 8)
    seen = _grow([], net.forward_kv(latents, timesteps, torch.arange(FRAMES), text_kv))[0]
    hidden_states, modulation = embedded.hidden_states, embedded.modulation
    projected = net.project(0, hidden_states, modulation, rotary)
    own = projected.kv
    joined = LayerKV(
        torch.cat((seen.keys_rotated, own.key_rotated), 1),
        own.key_raw,
        torch.cat((seen.values, own.value), 1),
    )
    everything = slice(None)
    expected = net.complete(
        0,
        hidden_states,
        modulation,
        Projected(projected[0], joined),
        [(everything, text_kv[0], None)],
    )
    actual = net.complete(0, hidden_states, modulation, projected, [(everything, text_kv[0], seen)])
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3), (0, 0, 3)])
def test_parts_compose_to_the_whole(wan: WanTransformer3DModel, cuts: tuple[int, ...]) -> None:
    net = CausalWan(wan)
    latents, timesteps, prompt_embeds = _inputs(2, 2 * FRAMES)
    text_kv = net.encode_text(prompt_embeds)
    positions = torch.arange(FRAMES)
    context = _grow(
        [],
        net.forward_kv(latents[:, :, :FRAMES], timesteps[:, :FRAMES], positions, text_kv),
    )
    latents, timesteps, positions = latents[:, :, FRAMES:], timesteps[:, FRAMES:], positions + 3
    whole, whole_kv = net.forward(latents, timesteps, positions, text_kv, context)

    embedded, rotary = net.embed(latents, timesteps), net.rotary(positions, 8, 8)
    hidden_states, parts_kv = embedded.hidden_states, []
    for start, stop in pairwise(cuts):
        hidden_states, new_kv = net.blocks(
            start,
            stop,
            hidden_states,
            embedded.modulation,
            rotary,
            text_kv[start:stop],
            context[start:stop],
        )
        parts_kv.extend(new_kv)
    assert torch.equal(net.head(hidden_states, embedded.temb, embedded.grid), whole)
    _assert_same_kv(tuple(parts_kv), whole_kv)


def test_layers_refuse_a_context_of_another_length(wan: WanTransformer3DModel) -> None:
    net = CausalWan(wan)
    latents, timesteps, prompt_embeds = _inputs(1, FRAMES)
    with pytest.raises(InvalidPlan, match="layers are run"):
        net.forward(latents, timesteps, torch.arange(FRAMES), net.encode_text(prompt_embeds)[:-1])


def test_raw_keys_rotated_at_their_positions_are_the_rotated_keys(wan) -> None:
    """An anchor is kept raw and shown at another position by rotating it there."""
    net = CausalWan(wan)
    latents, timesteps, prompt_embeds = _inputs(1, FRAMES)
    text_kv = net.encode_text(prompt_embeds)
    here, there = torch.arange(FRAMES), torch.arange(FRAMES) + 40
    first = net.forward_kv(latents, timesteps, here, text_kv)[0]
    moved = net.forward_kv(latents, timesteps, there, text_kv)[0]
    assert torch.equal(first.key_raw, moved.key_raw)
    assert not torch.equal(first.key_rotated, moved.key_rotated)
    assert torch.equal(rotate(first.key_raw, *net.rotary(there, 8, 8)), moved.key_rotated)


def test_a_shift_of_all_positions_changes_only_rounding(wan: WanTransformer3DModel) -> None:
    latents, timesteps, prompt_embeds = _inputs(1, 3 * FRAMES)
    net = CausalWan(wan)
    start, _ = _run_blocks(net, latents, timesteps, prompt_embeds)
    # Measured 7e-7 at both: float64 angles lose nothing with distance.
    for offset in (5000, 10**6):
        far, _ = _run_blocks(net, latents, timesteps, prompt_embeds, offset=offset)
        torch.testing.assert_close(far, start, rtol=0, atol=1e-5)


def test_a_call_leaves_no_trace(wan: WanTransformer3DModel) -> None:
    before = {name: tensor.clone() for name, tensor in wan.state_dict().items()}
    latents, timesteps, prompt_embeds = _inputs(2, 2 * FRAMES)
    first, first_context = _run_blocks(CausalWan(wan), latents, timesteps, prompt_embeds)
    second, second_context = _run_blocks(CausalWan(wan), latents, timesteps, prompt_embeds)
    assert torch.equal(first, second)
    for one, two in zip(first_context, second_context, strict=True):
        assert torch.equal(one.keys_rotated, two.keys_rotated)
        assert torch.equal(one.values, two.values)
    after = wan.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("batch", [2, 3, 8])
@pytest.mark.parametrize(
    "config", [{}, {"num_attention_heads": 4, "freq_dim": 256, "ffn_dim": 512}]
)
def test_a_batch_equals_its_samples_byte_for_byte(make_wan: MakeWan, batch, config) -> None:
    """Samples of different requests: other timesteps, prompts, positions and histories."""
    net = CausalWan(make_wan(**config))
    latents, timesteps, prompt_embeds = _inputs(batch, 2 * FRAMES)
    timesteps = timesteps + torch.arange(2 * FRAMES)
    positions = torch.arange(FRAMES) + torch.arange(batch)[:, None] * 7
    old, new = slice(0, FRAMES), slice(FRAMES, 2 * FRAMES)

    def run(rows: slice):
        text_kv = net.encode_text(prompt_embeds[rows])
        kv = net.forward_kv(latents[rows, :, old], timesteps[rows, old], positions[rows], text_kv)
        later = latents[rows, :, new], timesteps[rows, new], positions[rows] + FRAMES
        return net.forward(*later, text_kv, _grow([], kv))

    together, together_kv = run(slice(0, batch))
    for i in range(batch):
        alone, alone_kv = run(slice(i, i + 1))
        assert torch.equal(alone[0], together[i])
        for one, many in zip(alone_kv, together_kv, strict=True):
            assert all(torch.equal(x[0], y[i]) for x, y in zip(one, many, strict=True))


@pytest.mark.parametrize("width", [32, 64, 128, 256, 512])
def test_rows_of_a_linear_do_not_depend_on_how_many_there_are(width: int) -> None:
    """The rule behind batching, on the processor at hand."""
    torch.manual_seed(0)
    linear, rows = torch.nn.Linear(width, 96), torch.randn(200, width)
    reference = linear(rows)
    for count in range(EXACT_ROWS, 200):
        assert torch.equal(linear(rows[:count]), reference[:count]), count


def test_text_is_encoded_once(wan: WanTransformer3DModel) -> None:
    net = CausalWan(wan)
    latents, timesteps, prompt_embeds = _inputs(3, FRAMES)
    reused = net.encode_text(prompt_embeds)
    for index in range(3):
        alone = net.encode_text(prompt_embeds[index : index + 1])
        for one, many in zip(alone, reused, strict=True):
            assert torch.equal(one.key[0], many.key[index])
            assert torch.equal(one.value[0], many.value[index])
    call = latents, timesteps, torch.arange(FRAMES)
    first, second = net.forward(*call, reused)[0], net.forward(*call, reused)[0]
    assert torch.equal(first, second)
    assert torch.equal(first, net.forward(*call, net.encode_text(prompt_embeds))[0])


def test_the_store_pass_gives_the_same_kv(wan: WanTransformer3DModel) -> None:
    net = CausalWan(wan)
    latents, timesteps, prompt_embeds = _inputs(1, FRAMES)
    call = latents, timesteps, torch.arange(FRAMES), net.encode_text(prompt_embeds)
    _assert_same_kv(net.forward_kv(*call), net.forward(*call)[1])


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ({"image_dim": 32}, "image_dim"),
        ({"added_kv_proj_dim": 64}, "added_kv_proj_dim"),
        ({"patch_size": (2, 2, 2)}, "patch_size"),
    ],
)
def test_other_variants_are_refused(make_wan: MakeWan, override, name: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=name):
        CausalWan(make_wan(num_layers=1, **override))


def _assert_same_kv(first: tuple[LayerKV, ...], second: tuple[LayerKV, ...]) -> None:
    for one, two in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
