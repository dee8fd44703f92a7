"""The built-in model's components behind the contracts that plans name.

Every op is a pure function of its inputs. Inputs that differ by guidance branch come as tuples in
branch order and are stacked here, on the batch axis.
"""

# B branch, C channel, T latent frame, H W latent, L token, D width

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple, Self

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from transformers import PreTrainedTokenizerFast

from ostinato.backend.batch_rules import StackRules
from ostinato.backend.checkpoint import DIFFUSERS_STEM
from ostinato.backend.estimate import WanWork, linear, shape_of, total
from ostinato.backend.estimate_conv import ConvWork
from ostinato.backend.finite import require_finite
from ostinato.backend.nets.causal_wan import EXACT_ROWS, CausalWan
from ostinato.backend.nets.kv import ContextKV, LayerKV, Segment, TextKV
from ostinato.backend.nets.umt5 import UMT5TextEncoder
from ostinato.backend.nets.wan_shapes import row_shapes
from ostinato.backend.operations import Inputs, Operations
from ostinato.backend.taps import Tap, TapPoint, module_taps
from ostinato.card import ComponentSpec, PrecisionSpec
from ostinato.errors import InvalidCard
from ostinato.loop.facts import (
    DenoiserFacts,
    LatentFacts,
    decode_bytes_per_pixel,
    forward_bytes_per_token,
)
from ostinato.models.builtin.codec import CODEC_STEM, PatchCodec, load_codec, read_codec_config
from ostinato.models.builtin.layout import (
    TOKENIZER,
    load_text_encoder,
    load_transformer,
    transformer_sizes,
)
from ostinato.models.builtin.prompt_words import unknown_words_advice
from ostinato.models.builtin.text import MAX_PROMPT_TOKENS, encode_prompts, load_tokenizer
from ostinato.work import CacheRef, OpWork

_CLEAN = torch.zeros((), dtype=torch.float32)  # the timestep of a finished block


class BuiltinTextEncoder(UMT5TextEncoder[PreTrainedTokenizerFast]):
    """Op `encode`: a prompt to embeddings, and advice on words that it does not know."""

    PROMPT_TOKENS = MAX_PROMPT_TOKENS

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Load the encoder and the sibling tokenizer; raises InvalidCard unless in float32."""
        _require_float32(spec, precision)
        tokenizer = load_tokenizer(folder / TOKENIZER)
        return cls(load_text_encoder(folder / spec.subfolder), tokenizer)

    def encode(self, text: str) -> Mapping[str, object]:
        """Return prompt_embeds [1,L,D], zero at the padding; notes on unknown words.

        The empty prompt is the unconditional branch.
        """
        prompt_embeds = encode_prompts(self.tokenizer, self.module, [text])
        return {
            "prompt_embeds": prompt_embeds,
            "notes": unknown_words_advice(self.tokenizer, text),
        }


class BuiltinTransformer(Operations):
    """The causal denoiser: ops `encode_text`, `predict`, `store`."""

    OPS = ("encode_text", "predict", "store")
    STEM = DIFFUSERS_STEM

    def __init__(self, transformer: WanTransformer3DModel) -> None:
        """Drive the library's live transformer causally; weights aligned."""
        self.module = transformer
        self.network = CausalWan(transformer)
        self._work = WanWork.of(transformer)

    @property
    def stacked_ops(self) -> Mapping[str, frozenset[str]]:
        """Ops that take many requests at once: only the block's shape must agree."""
        free = frozenset({"timestep", "first_frame", "text_kv", "context"})
        return {"predict": free, "store": free}

    def op_stacked(
        self, name: str, rules: StackRules
    ) -> Callable[[Sequence[Inputs]], Sequence[Mapping[str, object]] | None]:
        """Return a stackable op over the inputs of many calls; see `ostinato.loop.batch`."""
        self.op(name)  # raises for one that is not there
        geometry = self.network.geometry

        def run(items: Sequence[Inputs]) -> Sequence[Mapping[str, object]] | None:
            latents = items[0]["latents"]
            _, _, frames, height, width = latents.shape
            rows = frames * geometry.rows(height) * geometry.columns(width)
            shapes = row_shapes(self.module, tokens=rows, time_rows=EXACT_ROWS, dtype=latents.dtype)
            if not rules.stacks(shapes, sum(len(i["text_kv"][0].key) for i in items)):
                return None
            return self._stacked(name, items)

        return run

    def observe(self, tap: Tap) -> AbstractContextManager[None]:
        """Look into the network; see `ostinato.loop.observe`."""
        return self.network.observe(tap)

    def estimate(self, op: str, inputs: Inputs) -> OpWork:
        """Estimate a call from its shapes; see `ostinato.loop.cost`.

        A reference to pages counts as their tokens: a page holds one block of this very shape.
        """
        self.op(op)
        if op == "encode_text":
            shapes = [shape_of(embeds) for embeds in inputs["prompt_embeds"]]
            return self._work.encode_text(sum(shape[0] * shape[1] for shape in shapes))
        tokens, context = self._work.tokens(inputs["latents"]), inputs["context"]
        if isinstance(context, CacheRef):
            seen = len(context.pages) * tokens
        else:
            seen = 0 if context is None else context[0].keys_rotated.shape[1]
        samples, text, *_ = inputs["text_kv"][0].key.shape
        _, _, frames, *_ = shape_of(inputs["latents"])
        return self._work.forward(
            samples,
            tokens,
            context=seen,
            text=text,
            time_rows=max(samples * frames, EXACT_ROWS),
            with_head=op == "predict",
        )

    def _stacked(self, name: str, items: Sequence[Inputs]) -> Sequence[Mapping[str, object]]:
        stack = [_branch_inputs(**{"timestep": _CLEAN, **inputs}) for inputs in items]
        stops = list(accumulate(len(part.latents) for part in stack))
        rows = [slice(start, stop) for start, stop in pairwise((0, *stops))]
        segments = [
            Segment(place, part.text_kv, part.context)
            for place, part in zip(rows, stack, strict=True)
        ]
        latents = torch.cat([part.latents for part in stack])
        timesteps = torch.cat([part.timesteps for part in stack])
        positions = torch.cat([part.positions.expand_as(part.timesteps) for part in stack])
        if name == "predict":
            velocity, _ = self.network.forward_of(latents, timesteps, positions, segments)
            return [{"prediction": velocity[place]} for place in rows]
        layers = self.network.forward_kv_of(latents, timesteps, positions, segments)
        return [
            {"layers": tuple(LayerKV(*(tensor[place] for tensor in layer)) for layer in layers)}
            for place in rows
        ]

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> DenoiserFacts:
        """Read the channels, the patch size, and what a token takes."""
        sizes = transformer_sizes(folder / spec.subfolder)
        return DenoiserFacts(
            in_channels=sizes.in_channels,
            patch_size=sizes.patch_size,
            # Keys and values of every layer, in float32.
            kv_bytes_per_token=2 * 4 * sizes.num_layers * sizes.width,
            peak_bytes_per_token=forward_bytes_per_token(sizes.width, sizes.ffn_dim),
        )

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Load the network; raises InvalidCard unless in float32."""
        _require_float32(spec, precision)
        return cls(load_transformer(folder / spec.subfolder))

    def encode_text(self, prompt_embeds: tuple[torch.Tensor, ...]) -> Mapping[str, object]:
        """Compute every layer's cross-attention K/V of all branches, once per request."""
        return {"text_kv": self.network.encode_text(torch.cat(prompt_embeds))}

    def predict(
        self,
        latents: torch.Tensor,
        timestep: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[TextKV, ...],
        context: tuple[ContextKV, ...] | None,
    ) -> Mapping[str, object]:
        """Predict the flow velocity of every branch, [B, C, T, H, W] from latents [1, ...]."""
        part = _branch_inputs(latents, timestep, first_frame, text_kv, context)
        velocity, _ = self.network.forward(
            part.latents, part.timesteps, part.positions, text_kv, context
        )
        return {"prediction": velocity}

    def store(
        self,
        latents: torch.Tensor,
        first_frame: torch.Tensor,
        text_kv: tuple[TextKV, ...],
        context: tuple[ContextKV, ...] | None,
    ) -> Mapping[str, object]:
        """Compute a finished block's clean K/V: a pass at timestep 0 whose output is not used."""
        part = _branch_inputs(latents, _CLEAN, first_frame, text_kv, context)
        layers = self.network.forward_kv(
            part.latents, part.timesteps, part.positions, text_kv, context
        )
        return {"layers": layers}


class BuiltinCodec(Operations):
    """Op `decode`: latents to frames, each latent frame alone."""

    OPS = ("decode",)
    STEM = CODEC_STEM

    def __init__(self, codec: PatchCodec) -> None:
        """Take a loaded codec."""
        self.module = codec
        self._tap = TapPoint()
        self._convs = ConvWork.of(codec)

    @classmethod
    def read_facts(cls, folder: Path, spec: ComponentSpec) -> LatentFacts:
        """Read the strides."""
        config = read_codec_config(folder / spec.subfolder)
        return LatentFacts(
            temporal_stride=config.frames_per_latent,
            spatial_stride=config.patch_size,
            causal=False,
            # The codec works on one value a patch, so a pixel takes a part of its channels.
            peak_bytes_per_pixel=-(
                -decode_bytes_per_pixel(config.hidden_channels) // config.patch_size**2
            ),
        )

    @classmethod
    def load(cls, folder: Path, spec: ComponentSpec, precision: PrecisionSpec) -> Self:
        """Load the codec; raises InvalidCard unless in float32."""
        _require_float32(spec, precision)
        return cls(load_codec(folder / spec.subfolder))

    @contextmanager
    def observe(self, tap: Tap) -> Generator[None, None, None]:
        """Look into the decoder, then at the pixels before they become whole levels."""
        names = ("conv_in", *(f"convs.{i}" for i in range(len(self.module.convs))), "proj_out")
        with module_taps(self.module, names, tap), self._tap.observe(tap):
            yield

    def estimate(self, op: str, inputs: Inputs) -> OpWork:
        """Estimate a call from its shapes; see `ostinato.loop.cost`."""
        self.op(op)
        _, channels, *sizes = shape_of(inputs["latents"]) or (0, 0, 0)
        positions = torch.Size(sizes).numel()
        projected = linear(positions, channels, self.module.config.patch_values)
        return total((self._convs.over(positions), OpWork(flops=projected)))

    def decode(self, latents: torch.Tensor) -> Mapping[str, object]:
        """Decode latents [1, C, T, H, W] to frames uint8 [4 T, height, width, 3].

        Raises NonFinite when a pixel is NaN.
        """
        frames_BCFHW = require_finite(self.module.decode(latents), "frames")
        self._tap("pixels", frames_BCFHW)
        scaled = ((frames_BCFHW[0] + 1.0) * 127.5).round().clamp(0, 255)
        return {"frames": scaled.to(torch.uint8).permute(1, 2, 3, 0).contiguous().numpy()}


class _BranchInputs(NamedTuple):
    """A block repeated for each branch; timesteps [B,T], positions [T]."""

    latents: torch.Tensor
    timesteps: torch.Tensor
    positions: torch.Tensor
    text_kv: tuple[TextKV, ...]
    context: tuple[ContextKV, ...] | None


def _branch_inputs(
    latents: torch.Tensor,
    timestep: torch.Tensor,
    first_frame: torch.Tensor,
    text_kv: tuple[TextKV, ...],
    context: tuple[ContextKV, ...] | None,
) -> _BranchInputs:
    num_branches, num_frames = text_kv[0].key.shape[0], latents.shape[2]
    return _BranchInputs(
        latents.expand(num_branches, *latents.shape[1:]),
        timestep.float().expand(num_branches, num_frames),
        torch.arange(num_frames, dtype=torch.int64) + first_frame,
        text_kv,
        context,
    )


def _require_float32(spec: ComponentSpec, precision: PrecisionSpec) -> None:
    """Refuse before any weight is read: these components have one precision, and it is exact."""
    if (precision.weights, precision.latents) != ("float32", "float32"):
        raise InvalidCard(
            f"component {spec.name!r} serves weights and latents in float32 only; the card asks "
            f"for {precision.weights!r} and {precision.latents!r}"
        )
