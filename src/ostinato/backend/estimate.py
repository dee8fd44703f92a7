"""Count what the networks' operations take, from shapes alone: operations and bytes, no kernel.

A multiplication and the addition that follows it are two operations. Only what grows with the
input is counted; constant factors are the cost model's to learn, so counts of bytes are rough: each
value that a layer makes is written once and read once.
"""
# B sample, L token, D width, F feed-forward width

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import nn
from transformers import UMT5EncoderModel

from ostinato.work import OpWork

# Values of width D that a Wan layer makes for a token: three normed, two of them modulated, query,
# key, value, two rotated, attended, projected, summed, then query, attended, projected, summed of
# the text, and the feed-forward's output and sum.
_LAYER_VALUES = 19


def linear(rows: float, inputs: int, outputs: int) -> float:
    """Return the operations of a linear map of `rows` vectors."""
    return 2.0 * rows * inputs * outputs


def attention(queries: float, keys: float, width: int) -> float:
    """Return the operations of attention over all heads together: scores, then their sums."""
    return 4.0 * queries * keys * width


def shape_of(value: object) -> tuple[int, ...]:
    """Return a tensor's or an array's shape; () for what has none yet, such as a reference."""
    return tuple(cast("Sequence[int]", getattr(value, "shape", ())))


def module_bytes(*modules: nn.Module) -> float:
    """Return the bytes of the parameters of modules; tables that they keep are read in part."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return float(sum(each.numel() * each.element_size() for each in parameters))


def total(parts: Iterable[OpWork]) -> OpWork:
    """Return the work of parts that run one after the other."""
    works = list(parts)
    return OpWork(
        flops=sum(work.flops for work in works),
        weight_bytes=sum(work.weight_bytes for work in works),
        activation_bytes=sum(work.activation_bytes for work in works),
    )


def encode_work(encoder: UMT5EncoderModel, tokens: int) -> OpWork:
    """Return the work of encoding one prompt that is padded to `tokens`."""
    config = encoder.config
    stack = encoder.encoder
    weights = [m.weight for m in stack.modules() if isinstance(m, nn.Linear)]
    width = config.num_heads * config.d_kv
    values = sum(weight.shape[0] + weight.shape[1] for weight in weights)
    return OpWork(
        flops=sum(2.0 * tokens * w.numel() for w in weights)
        + config.num_layers * attention(tokens, tokens, width),
        weight_bytes=module_bytes(*stack.block, stack.final_layer_norm),
        activation_bytes=float(tokens * values * weights[0].element_size()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WanWork:
    """The sizes of a Wan transformer by which its operations are counted.

    patch_volume: latent positions in a token. bytes are those of weights: head, of the output
    projection; text, of the prompt's embedding; text_kv, of the layers' projections of it.
    """

    width: int
    ffn_dim: int
    num_layers: int
    patch_volume: int
    in_channels: int
    out_channels: int
    text_dim: int
    freq_dim: int
    element_bytes: int
    all_bytes: float
    head_bytes: float
    text_bytes: float
    text_kv_bytes: float

    @staticmethod
    def of(transformer: WanTransformer3DModel) -> WanWork:
        """Read the sizes of a network."""
        config = transformer.config
        frames, height, width = config["patch_size"]
        projections = [
            linear
            for block in transformer.blocks
            for name, linear in cast("nn.Module", block.attn2).named_children()
            if name in ("to_k", "to_v")
        ]
        return WanWork(
            width=config["num_attention_heads"] * config["attention_head_dim"],
            ffn_dim=config["ffn_dim"],
            num_layers=config["num_layers"],
            patch_volume=frames * height * width,
            in_channels=config["in_channels"],
            out_channels=config["out_channels"],
            text_dim=config["text_dim"],
            freq_dim=config["freq_dim"],
            element_bytes=transformer.dtype.itemsize,
            all_bytes=module_bytes(transformer),
            head_bytes=module_bytes(transformer.proj_out),
            text_bytes=module_bytes(transformer.condition_embedder.text_embedder),
            text_kv_bytes=module_bytes(*projections),
        )

    def tokens(self, latents: object) -> int:
        """Return the tokens of one sample of latents [B,C,T,H,W]; 0 for what has no shape yet."""
        shape = shape_of(latents)
        return torch.Size(shape[2:]).numel() // self.patch_volume if len(shape) == 5 else 0

    def predict(self, samples: int, tokens: int, text: int) -> OpWork:
        """Return the work of the library's forward: text embedded anew, every token sees all."""
        embedded = self.encode_text(samples * text)
        passed = self.forward(samples, tokens, context=0, text=text, time_rows=samples)
        return OpWork(
            flops=embedded.flops + passed.flops,
            weight_bytes=self.all_bytes,
            activation_bytes=embedded.activation_bytes + passed.activation_bytes,
        )

    def encode_text(self, rows: int) -> OpWork:
        """Return the work of embedding `rows` text tokens and of every layer's K/V of them."""
        width = self.width
        return OpWork(
            flops=linear(rows, self.text_dim + width, width)
            + self.num_layers * linear(rows, width, 2 * width),
            weight_bytes=self.text_bytes + self.text_kv_bytes,
            activation_bytes=2.0 * rows * width * (2 + 2 * self.num_layers) * self.element_bytes,
        )

    def forward(
        self,
        samples: int,
        tokens: int,
        *,
        context: int,
        text: int,
        time_rows: int,
        with_head: bool = True,
    ) -> OpWork:
        """Return the work of one pass over tokens whose text K/V are there already.

        context: tokens of history that each sample attends to besides its own. time_rows: rows of
        the time embedding. with_head: whether the output is asked for, not only new K/V.
        """
        rows, width = samples * tokens, self.width
        patch = self.patch_volume
        layer = (
            linear(rows, width, 6 * width + 2 * self.ffn_dim)
            + attention(rows, tokens + context, width)
            + attention(rows, text, width)
        )
        seen = samples * (tokens + context + text)
        values = rows * (_LAYER_VALUES * width + 2 * self.ffn_dim) + 2 * seen * width
        time = linear(time_rows, self.freq_dim + 7 * width, width)
        ends = linear(rows, self.in_channels * patch, width)
        if with_head:
            ends += linear(rows, width, self.out_channels * patch)
        unused = self.text_bytes + self.text_kv_bytes
        return OpWork(
            flops=self.num_layers * layer + time + ends,
            weight_bytes=self.all_bytes - unused - (0.0 if with_head else self.head_bytes),
            activation_bytes=2.0 * self.num_layers * values * self.element_bytes,
        )
