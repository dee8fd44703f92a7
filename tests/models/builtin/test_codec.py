"""The codec: shapes, streaming, linear part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.codec import CodecConfig, PatchCodec, load_codec, save_codec


@pytest.fixture(scope="module")
def codec() -> PatchCodec:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    codec = PatchCodec()
    # Patches of a few latent factors, as natural ones are.
    factors = torch.randn(2000, 24, generator=generator)
    mixing = torch.randn(24, codec.config.patch_values, generator=generator) * 0.05
    codec.fit_linear(factors @ mixing + 0.1)
    torch.nn.init.normal_(codec.proj_out.weight, std=0.02)
    return codec.eval().requires_grad_(False)


def test_patches_round_trip(codec: PatchCodec) -> None:
    frames = torch.rand(2, 3, 8, 64, 64)
    patches = codec.to_patches(frames)
    assert patches.shape == (2, 2, 8, 8, 768)
    assert torch.equal(codec.from_patches(patches), frames)


def test_shapes_and_range(codec: PatchCodec) -> None:
    frames = torch.rand(2, 3, 12, 64, 64) * 2 - 1
    latents = codec.encode(frames)
    decoded = codec.decode(latents)
    assert latents.shape == (2, 16, 3, 8, 8)
    assert decoded.shape == frames.shape
    assert decoded.abs().max() <= 1.0


def test_frames_must_fill_latent_frames(codec: PatchCodec) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        codec.encode(torch.zeros(1, 3, 5, 64, 64))


def test_decoding_frame_by_frame_gives_the_same_bits(codec: PatchCodec) -> None:
    latents = torch.randn(2, 16, 6, 8, 8, generator=torch.Generator().manual_seed(1))
    whole = codec.decode(latents)
    pieces = [codec.decode(latents[:, :, t : t + 1]) for t in range(6)]
    assert torch.equal(torch.cat(pieces, dim=2), whole)
    alone = torch.cat([codec.decode(latents[b : b + 1]) for b in range(2)])
    assert torch.equal(alone, whole)


def test_encoding_in_pieces_gives_the_same_bits(codec: PatchCodec) -> None:
    frames = torch.rand(1, 3, 24, 64, 64, generator=torch.Generator().manual_seed(2))
    pieces = [codec.encode(frames[:, :, t : t + 4]) for t in range(0, 24, 4)]
    assert torch.equal(torch.cat(pieces, dim=2), codec.encode(frames))


def test_linear_part_is_centred_and_half_whitened() -> None:
    generator = torch.Generator().manual_seed(3)
    config = CodecConfig(latent_channels=4)
    codec = PatchCodec(config)
    directions = torch.linalg.qr(torch.randn(768, 4, generator=generator)).Q.T
    stds = torch.tensor([8.0, 4.0, 2.0, 1.0])
    patches = (torch.randn(6_000, 4, generator=generator) * stds) @ directions + 0.3
    codec.fit_linear(patches)
    latents = codec.encode_patches(patches)
    assert latents.mean(0).abs().max() < 1e-4
    variances = latents.var(0)
    assert float(variances.mean()) == pytest.approx(1.0, rel=1e-3)
    # Half whitening: the variance of a channel is proportional to the std of its component.
    assert torch.allclose(variances / variances[0], stds / stds[0], rtol=0.06)
    restored = latents @ codec.decode_weight.T + codec.patch_mean
    assert torch.allclose(restored, patches, atol=1e-3)


def test_weights_round_trip_in_half_precision(codec: PatchCodec, tmp_path: Path) -> None:
    save_codec(codec, tmp_path, torch.float16)
    loaded = load_codec(tmp_path)
    for name, value in codec.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.half().float())


def test_weights_of_another_size_are_refused(codec: PatchCodec, tmp_path: Path) -> None:
    save_codec(codec, tmp_path, torch.float16)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("96", "64"))
    with pytest.raises(InvalidCheckpoint, match="do not fit"):
        load_codec(tmp_path)
