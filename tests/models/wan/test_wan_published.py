"""Folders with the published configurations of Wan 2.1 open by the same code.

The weight files here are headers over holes: names, dtypes, shapes and sizes of a download, no
data. The published weights themselves are not run by any test.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from torch import nn

from ostinato.errors import InvalidCheckpoint
from ostinato.models.wan.configs import declare_text_encoder, declare_transformer, declare_vae
from ostinato.models.wan.open import open_wan

# config.json of https://huggingface.co/Wan-AI/Wan2.1-T2V-{1.3B,14B}-Diffusers
TRANSFORMERS = {
    "1.3B": {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960},
    "14B": {"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824},
}
COMMON = {
    "_class_name": "WanTransformer3DModel",
    "_diffusers_version": "0.33.0.dev0",
    "added_kv_proj_dim": None,
    "attention_head_dim": 128,
    "cross_attn_norm": True,
    "eps": 1e-06,
    "freq_dim": 256,
    "image_dim": None,
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": [1, 2, 2],
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
    "text_dim": 4096,
}
TEXT_ENCODER = {
    "architectures": ["UMT5EncoderModel"],
    "classifier_dropout": 0.0,
    "d_ff": 10240,
    "d_kv": 64,
    "d_model": 4096,
    "decoder_start_token_id": 0,
    "dense_act_fn": "gelu_new",
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu",
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "is_gated_act": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "umt5",
    "num_decoder_layers": 24,
    "num_heads": 64,
    "num_layers": 24,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32,
    "scalable_attention": True,
    "tie_word_embeddings": False,
    "tokenizer_class": "T5Tokenizer",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.49.0.dev0",
    "use_cache": True,
    "vocab_size": 256384,
}
VAE = {
    "_class_name": "AutoencoderKLWan",
    "attn_scales": [],
    "base_dim": 96,
    "dim_mult": [1, 2, 4, 4],
    "dropout": 0.0,
    "num_res_blocks": 2,
    "temperal_downsample": [False, True, True],
    "z_dim": 16,
}
BYTES = {"F32": 4, "BF16": 2}
Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def write_hollow(path: Path, shapes: Shapes, dtype: str) -> None:
    """Write a whole safetensors file whose data are a hole in the file system."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + BYTES[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + end)


def write_sharded(folder: Path, stem: str, shapes: Shapes, dtype: str, num_shards: int) -> None:
    names = sorted(shapes)
    weight_map: dict[str, str] = {}
    for index in range(num_shards):
        shard = f"{stem}-{index + 1:05d}-of-{num_shards:05d}.safetensors"
        part = names[index::num_shards]
        write_hollow(folder / shard, {name: shapes[name] for name in part}, dtype)
        weight_map |= dict.fromkeys(part, shard)
    index_file = folder / f"{stem}.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def configured(folder: Path, config: Mapping[str, object]) -> Path:
    """Empty a component folder and write its configuration."""
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def published(tmp_path: Path, tiny_wan_folder: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return `folder(size)`: a download in all but its data and its vocabulary."""

    def build(size: str) -> Path:
        folder = Path(
            shutil.copytree(
                tiny_wan_folder("UniPCMultistepScheduler"),
                tmp_path / f"Wan2.1-T2V-{size}-Diffusers",
            )
        )
        part = configured(folder / "transformer", COMMON | TRANSFORMERS[size])
        shapes = shapes_of(declare_transformer(part))
        write_sharded(part, "diffusion_pytorch_model", shapes, "F32", 2 if size == "1.3B" else 12)
        part = configured(folder / "vae", VAE)
        write_hollow(
            part / "diffusion_pytorch_model.safetensors", shapes_of(declare_vae(part)), "F32"
        )
        part = configured(folder / "text_encoder", TEXT_ENCODER)
        shapes = shapes_of(declare_text_encoder(part))
        del shapes["encoder.embed_tokens.weight"]  # tied to shared.weight, so never stored
        write_sharded(part, "model", shapes, "BF16", 5)
        return folder

    return build


@pytest.mark.parametrize(("size", "num_parameters"), [("1.3B", 1.42e9), ("14B", 14.3e9)])
def test_a_published_folder_opens(
    published: Callable[[str], Path], size: str, num_parameters: float
) -> None:
    source = open_wan(published(size))
    declared = declare_transformer(source.folder / "transformer")
    assert sum(p.numel() for p in declared.parameters()) == pytest.approx(num_parameters, rel=0.01)
    card = source.card
    assert card.model_id == f"Wan2.1-T2V-{size}-Diffusers"
    defaults = card.defaults
    assert (defaults.height, defaults.width, defaults.num_frames) == (480, 832, 81)
    assert (defaults.num_inference_steps, defaults.guidance_scale) == (50, 5.0)
    assert card.capabilities.height.accepts(720)
    assert card.capabilities.width.accepts(1280)
    assert card.capabilities.num_frames.maximum == 4 * 1023 + 1


def test_a_download_that_stopped_is_found(published: Callable[[str], Path]) -> None:
    folder = published("1.3B")
    shard = folder / "transformer" / "diffusion_pytorch_model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(InvalidCheckpoint, match="truncated"):
        open_wan(folder)
    shard.unlink()
    with pytest.raises(InvalidCheckpoint, match="lacks shards"):
        open_wan(folder)
