"""Tiny seeded Wan folders of the real classes, written by WanPipeline itself.

Widths are multiples of 32 where batching must be exact. Every weight is random, so a fault in
any part changes the output.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

WORDS = ("a", "red", "circle", "bouncing", "on", "navy", "background", "blurry", "cat")
ROPE_POSITIONS = 32


def build_tiny_wan(folder: Path, scheduler: str = "UniPCMultistepScheduler") -> Path:
    """Write a pipeline folder as diffusers lays it out; returns it."""
    torch.manual_seed(0)
    pipeline = WanPipeline(
        tokenizer=_tokenizer(),
        text_encoder=_text_encoder(),
        vae=_vae(),
        scheduler=_scheduler(scheduler),
        transformer=_transformer(),
    )
    pipeline.save_pretrained(folder)
    return folder


def _tokenizer() -> T5Tokenizer:
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *("\u2581" + word for word in WORDS)]
    pieces += [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0)


def _text_encoder() -> UMT5EncoderModel:
    config = UMT5Config(
        vocab_size=64, d_model=32, d_kv=32, d_ff=64, num_layers=1, num_heads=1, dropout_rate=0.1
    )
    return UMT5EncoderModel(config).eval()


def _transformer() -> WanTransformer3DModel:
    transformer = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        text_dim=32,
        freq_dim=64,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=ROPE_POSITIONS,
    )
    return transformer.eval()


def _vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(base_dim=8, num_res_blocks=1).eval()


def _scheduler(name: str) -> UniPCMultistepScheduler | FlowMatchEulerDiscreteScheduler:
    if name == "UniPCMultistepScheduler":
        return UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        )
    return FlowMatchEulerDiscreteScheduler(shift=3.0)
