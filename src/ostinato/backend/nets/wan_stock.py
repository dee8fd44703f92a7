"""The library's own forward of a batch, which is what nobody should expect equal bytes of.

Its patch convolution and its one-row linears round a batch differently from its samples; gates run
it beside the stacked forward of `wan_stack` to show that equality is no accident.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers.models.transformers.transformer_wan import WanTransformer3DModel
from torch import nn

from ostinato.backend.nets.wan_stack import WanSample


def library_forward(module: nn.Module, samples: Sequence[WanSample]) -> torch.Tensor | None:
    """Return the velocity [B,C,T,H,W] of samples in one call; None for another kind of module.

    Latents and text are cast to the network's dtype, as a served call is.
    """
    if not isinstance(module, WanTransformer3DModel):
        return None
    dtype = module.dtype
    return module(
        hidden_states=torch.cat([sample.latents for sample in samples]).to(dtype),
        timestep=torch.cat([sample.timestep for sample in samples]),
        encoder_hidden_states=torch.cat([sample.prompt_embeds for sample in samples]).to(dtype),
        return_dict=False,
    )[0]
