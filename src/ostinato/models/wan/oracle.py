"""The implementation that Wan is held against: diffusers' WanPipeline over the same folder.

Invariant: the oracle loads weights of its own with the library alone, and then aligns them as the
served components are, so that equal bytes are a statement about the code and not about memory.
"""

# T frame, H W pixel

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from diffusers.pipelines.wan.pipeline_output import WanPipelineOutput
from diffusers.pipelines.wan.pipeline_wan import WanPipeline
from numpy.typing import NDArray
from torch import nn

from ostinato.backend.alignment import align_parameters
from ostinato.backend.loading import loading
from ostinato.card import ModelSource
from ostinato.errors import InvalidRequest
from ostinato.models.wan.layout import TEXT_ENCODER, TRANSFORMER, VAE
from ostinato.request import GenerationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleRun:
    """What the library made of a request.

    step_latents: [1,C,T,H,W] after each step; the last are the final ones.
    pixels: float32 [T,H,W,3] in [0,1]. frames: uint8 [T,H,W,3].
    calls: forwards of the text encoder and the transformer, by component.
    """

    step_latents: tuple[torch.Tensor, ...]
    pixels: NDArray[np.float32]
    frames: NDArray[np.uint8]
    calls: Mapping[str, int]

    @property
    def latents(self) -> torch.Tensor:
        """The final latents."""
        return self.step_latents[-1]


class WanOracle:
    """A live WanPipeline; not safe for two runs at a time, as the library is not."""

    def __init__(self, source: ModelSource) -> None:
        """Load the folder with the library at the card's precision."""
        weights = getattr(torch, source.card.precision.weights)
        with loading():
            self.pipeline = WanPipeline.from_pretrained(
                source.folder,
                dtype={"default": weights, VAE: torch.float32},
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
            )
        self.pipeline.set_progress_bar_config(disable=True)
        self._counted: Mapping[str, nn.Module] = {
            name: getattr(self.pipeline, name) for name in (TEXT_ENCODER, TRANSFORMER)
        }
        for module in (*self._counted.values(), self.pipeline.vae):
            align_parameters(module)
        self._scheduler = self.pipeline.scheduler

    @torch.no_grad()
    def run(self, spec: GenerationSpec) -> OracleRun:
        """Generate with the library; raises InvalidRequest for what WanPipeline cannot take."""
        self.use_flow_shift(spec.flow_shift)
        step_latents: list[torch.Tensor] = []

        def record(
            pipeline: WanPipeline,
            step: int,
            timestep: torch.Tensor,
            values: dict[str, torch.Tensor],
        ) -> dict[str, torch.Tensor]:
            step_latents.append(values["latents"])
            return {}

        with _count(self._counted) as calls:
            pixels = np.asarray(self.generate(spec, output_type="np", on_step_end=record)[0])
        return OracleRun(
            step_latents=tuple(step_latents),
            pixels=pixels,
            frames=(pixels * 255).round().astype(np.uint8),
            calls=calls,
        )

    def use_flow_shift(self, flow_shift: float | None) -> None:
        """Make the scheduler anew, as a user of the library does who overrides its shift."""
        config = self._scheduler.config
        name = "shift" if "shift" in config else "flow_shift"
        overrides = {} if flow_shift is None else {name: flow_shift}
        self.pipeline.scheduler = type(self._scheduler).from_config(config, **overrides)

    def generate(
        self,
        spec: GenerationSpec,
        *,
        output_type: Literal["np", "latent"],
        on_step_end: Callable[..., dict[str, torch.Tensor]] | None = None,
    ) -> NDArray[np.float32] | torch.Tensor:
        """Call the pipeline once, and nothing beside it; the flow shift is the scheduler's.

        Returns pixels float32 [1,T,H,W,3] in [0,1] ("np") or the final latents [1,C,T,H,W]
        ("latent"). Raises InvalidRequest for initial latents that are not a tensor.
        """
        if spec.initial_latents is not None and not isinstance(spec.initial_latents, torch.Tensor):
            raise InvalidRequest("initial latents must be a tensor")
        # The library annotates its call with older types than it takes.
        call = cast("Callable[..., WanPipelineOutput]", self.pipeline)
        output = call(
            prompt=spec.prompt,
            negative_prompt=spec.negative_prompt,
            height=spec.height,
            width=spec.width,
            num_frames=spec.num_frames,
            num_inference_steps=spec.num_inference_steps,
            guidance_scale=spec.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(spec.seed),
            latents=spec.initial_latents,
            output_type=output_type,
            callback_on_step_end=on_step_end,
        )
        return cast("NDArray[np.float32] | torch.Tensor", output.frames)


@contextmanager
def _count(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, int]]:
    """Count forwards while the context is open."""
    calls = dict.fromkeys(modules, 0)

    def hook(name: str) -> torch.utils.hooks.RemovableHandle:
        def count(module: nn.Module, inputs: object, output: object) -> None:
            calls[name] += 1

        return modules[name].register_forward_hook(count)

    handles = [hook(name) for name in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
