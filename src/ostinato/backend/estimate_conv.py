"""Count what convolutional codecs take, from shapes alone; see `ostinato.backend.estimate`."""
# C channel, T latent frame, H W latent

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AutoencoderKLWan,
    WanAttentionBlock,
    WanResample,
)
from torch import nn

from ostinato.backend.estimate import attention, shape_of, total
from ostinato.work import OpWork


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvWork:
    """Convolutions and linears that run over the same number of output positions.

    flops, values: of one position; values are read and written. num_bytes: of the weights.
    """

    flops: float
    values: int
    element_bytes: int
    num_bytes: float

    @staticmethod
    def of(*modules: nn.Module, leave_out: Sequence[nn.Module] = ()) -> ConvWork:
        """Count what is inside of modules; leave_out: parts of them that run at another size."""
        others = {id(inner) for module in leave_out for inner in module.modules()}
        weights = [
            inner.weight
            for module in modules
            for inner in module.modules()
            if isinstance(inner, nn.Conv2d | nn.Conv3d | nn.Linear) and id(inner) not in others
        ]
        return ConvWork(
            flops=sum(2.0 * weight.numel() for weight in weights),
            values=sum(weight.shape[0] + weight.shape[1] for weight in weights),
            element_bytes=weights[0].element_size() if weights else 0,
            num_bytes=float(sum(w.numel() * w.element_size() for w in weights)),
        )

    def over(self, positions: float) -> OpWork:
        """Return the work over so many output positions."""
        return OpWork(
            flops=positions * self.flops,
            weight_bytes=self.num_bytes,
            activation_bytes=positions * self.values * self.element_bytes,
        )


class _Stage(NamedTuple):
    """One up block of a Wan decoder: at its size, then over later frames, then at twice the size.

    doubles: how many times the size doubles; doubles_time: how many times later frames do.
    """

    here: ConvWork
    over_later: ConvWork
    larger: ConvWork
    doubles: int
    doubles_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WanVaeWork:
    """The sizes of a Wan decoder by which its operations are counted.

    attention_widths: of the attentions in the middle, each over the positions of one frame.
    """

    entry: ConvWork
    attention_widths: tuple[int, ...]
    stages: tuple[_Stage, ...]
    exit: ConvWork

    @staticmethod
    def of(vae: AutoencoderKLWan) -> WanVaeWork:
        """Read the sizes of a codec."""
        decoder = vae.decoder
        middle = cast("nn.Module", decoder.mid_block)
        return WanVaeWork(
            entry=ConvWork.of(vae.post_quant_conv, decoder.conv_in, middle),
            attention_widths=tuple(
                block.dim for block in middle.modules() if isinstance(block, WanAttentionBlock)
            ),
            stages=tuple(_stage(block) for block in decoder.up_blocks),
            exit=ConvWork.of(decoder.conv_out),
        )

    def decode(self, latents: object) -> OpWork:
        """Return the work of decoding latents [1,C,T,H,W] frame by frame."""
        shape = shape_of(latents)
        frames, height, width = shape[2:] if len(shape) == 5 else (0, 0, 0)
        return total(self._parts(frames, height * width))

    def _parts(self, frames: int, area: int) -> Iterator[OpWork]:
        """Yield stage by stage: the first frame stays one, those after it double."""
        yield self.entry.over(frames * area)
        for width in self.attention_widths:
            yield OpWork(flops=frames * attention(area, area, width))
        for stage in self.stages:
            yield stage.here.over(frames * area)
            later = max(frames - 1, 0)
            yield stage.over_later.over(later * area)
            frames += later * (2**stage.doubles_time - 1)
            area *= 4**stage.doubles
            yield stage.larger.over(frames * area)
        yield self.exit.over(frames * area)


def _stage(block: nn.Module) -> _Stage:
    resamples = [inner for inner in block.modules() if isinstance(inner, WanResample)]
    in_time = [inner.time_conv for inner in resamples if inner.mode == "upsample3d"]
    return _Stage(
        here=ConvWork.of(block, leave_out=resamples),
        over_later=ConvWork.of(*in_time),
        larger=ConvWork.of(*(inner.resample for inner in resamples)),
        doubles=len(resamples),
        doubles_time=len(in_time),
    )
