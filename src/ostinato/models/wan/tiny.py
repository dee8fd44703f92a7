"""Writes small seeded Wan folders of the real classes, by WanPipeline itself.

Every weight is random, so a fault in any part changes the output: folders for gates, tests and
benchmarks, not for pictures. Widths are multiples of 32, so that batching can be exact. Weights
have the same bits wherever a folder is written, so that its goldens can be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import WanPipeline
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

from ostinato.backend.loading import loading
from ostinato.backend.seeded import fill

WORDS = ("a", "red", "circle", "bouncing", "on", "navy", "background", "blurry", "cat")
ROPE_POSITIONS = 32
UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
_FLOW_SHIFT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WanSizes:
    """Sizes of the transformer; heads are 32 wide."""

    num_layers: int = 2
    num_attention_heads: int = 2
    ffn_dim: int = 64
    text_dim: int = 32


def write_tiny_wan(
    folder: Path, scheduler: str = UNIPC, sizes: WanSizes | None = None, seed: int = 0
) -> Path:
    """Write a pipeline folder as diffusers lays it out; returns it."""
    sizes = sizes or WanSizes()
    with loading():
        torch.manual_seed(seed)
        text_encoder, transformer = _text_encoder(sizes), _transformer(sizes)
        vae = AutoencoderKLWan(base_dim=8, num_res_blocks=1).eval()
        for name, module in (("text", text_encoder), ("transformer", transformer), ("vae", vae)):
            fill(module, f"{seed}/{name}")
        pipeline = WanPipeline(
            tokenizer=_tokenizer(),  # pyright: ignore[reportArgumentType]
            text_encoder=text_encoder,
            vae=vae,
            scheduler=_scheduler(scheduler),  # pyright: ignore[reportArgumentType]
            transformer=transformer,
        )
        pipeline.save_pretrained(folder)
    return folder


def _tokenizer() -> T5Tokenizer:
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *("\u2581" + word for word in WORDS)]
    pieces += [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0)


def _text_encoder(sizes: WanSizes) -> UMT5EncoderModel:
    width = sizes.text_dim
    config = UMT5Config(
        vocab_size=64,
        d_model=width,
        d_kv=32,
        d_ff=2 * width,
        num_layers=1,
        num_heads=1,
        dropout_rate=0.1,
    )
    return UMT5EncoderModel(config).eval()


def _transformer(sizes: WanSizes) -> WanTransformer3DModel:
    transformer = WanTransformer3DModel(
        num_attention_heads=sizes.num_attention_heads,
        attention_head_dim=32,
        text_dim=sizes.text_dim,
        freq_dim=64,
        ffn_dim=sizes.ffn_dim,
        num_layers=sizes.num_layers,
        rope_max_seq_len=ROPE_POSITIONS,
    )
    return transformer.eval()


def _scheduler(name: str) -> UniPCMultistepScheduler | FlowMatchEulerDiscreteScheduler:
    if name == UNIPC:
        return UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=_FLOW_SHIFT
        )
    return FlowMatchEulerDiscreteScheduler(shift=_FLOW_SHIFT)
