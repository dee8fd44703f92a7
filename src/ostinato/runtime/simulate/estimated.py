"""Profiles from estimates: what a trace would take before anything was measured.

Operations are counted by the formulas of the cost model's estimates and turned into seconds at
assumed rates, so the proportions between classes are right and the seconds are not to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors import BadInput
from ostinato.runtime.simulate.profile import ClassProfile, Profiles, Stage
from ostinato.runtime.simulate.trace import Trace, TraceClass
from ostinato.work import DeviceRates, OpWork

_TEXT_TOKENS = 512  # WanPipeline's max_sequence_length
_VAE_SPATIAL, _VAE_TEMPORAL, _PATCH = 8, 4, 2  # Wan 2.1: pixels a latent, frames a latent, patch
_LATENT_CHANNELS = 16
_MAX_STACK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoiserSize:
    """Sizes of a Wan transformer and of what goes with it.

    encoder_parameters: of the text encoder. decode_flops: operations for each pixel that the VAE
    decodes. element_bytes: of a weight and of an activation.
    """

    width: int
    ffn_dim: int
    num_layers: int
    encoder_parameters: float
    decode_flops: float
    element_bytes: int

    @property
    def parameters(self) -> float:
        """Weights of the layers: self- and cross-attention of four maps each, the feed-forward."""
        return self.num_layers * (8.0 * self.width**2 + 2.0 * self.width * self.ffn_dim)

    def step(self, tokens: int) -> OpWork:
        """Return the work of one forward of one sample; two operations a weight and a row."""
        w, ffn, layers = self.width, self.ffn_dim, self.num_layers
        rows = tokens * (6.0 * w**2 + 2.0 * w * ffn) + _TEXT_TOKENS * 2.0 * w**2
        attended = 4.0 * tokens * (tokens + _TEXT_TOKENS) * w
        values = tokens * (19.0 * w + 2.0 * ffn)
        return OpWork(
            flops=layers * (2.0 * rows + attended),
            weight_bytes=self.parameters * self.element_bytes,
            activation_bytes=2.0 * layers * values * self.element_bytes,
        )


def denoiser_sizes(model: str) -> tuple[DenoiserSize, DeviceRates]:
    """Return the sizes of a model of the stored traces, and the rates of a device that suits it.

    Sources: configurations of Wan-AI/Wan2.1-T2V-1.3B and -14B and of google/umt5-xxl's encoder;
    the H200's peak is 9.9e14 dense bfloat16 operations and 4.8e12 bytes a second, of which well
    tuned kernels sustain about a half and two thirds.
    """
    umt5_xxl, wan_vae = 5.7e9, 6e5
    h200 = DeviceRates(flops_per_s=5e14, bytes_per_s=3.2e12, overhead_s=5e-4)
    core = DeviceRates(flops_per_s=5e10, bytes_per_s=1e10, overhead_s=3e-3)
    known = {
        "small-wan": (_size(256, 1024, 8, 5e4, 2e4, 4), core),
        "wan2.1-t2v-1.3b": (_size(1536, 8960, 30, umt5_xxl, wan_vae, 2), h200),
        "wan2.1-t2v-14b": (_size(5120, 13824, 40, umt5_xxl, wan_vae, 2), h200),
    }
    if model not in known:
        raise BadInput(f"no sizes of model {model!r}; expected one of: {', '.join(known)}")
    return known[model]


def estimate_profiles(trace: Trace) -> Profiles:
    """Estimate every class of a trace; raises BadInput for a model without sizes."""
    classes: dict[str, ClassProfile] = {}
    stacks: dict[str, tuple[float, ...]] = {}
    for name, asked in trace.classes.items():
        size, rates = denoiser_sizes(asked.model)
        tokens = _num_tokens(asked)
        branches = 2 if _shape(asked.guidance_scale, "guidance_scale") != 1.0 else 1
        step = size.step(tokens)
        key = f"{asked.model}/{tokens}"
        stacks[key] = tuple(rates.seconds(step.times(n)) for n in range(1, _MAX_STACK + 1))
        classes[name] = ClassProfile(
            stages=(
                Stage(name="encode", count=1, unit_s=branches * rates.seconds(_encode(size))),
                Stage(
                    name="denoise",
                    count=int(_shape(asked.num_inference_steps, "num_inference_steps")),
                    unit_s=stacks[key][branches - 1],
                    stack=key,
                    items=branches,
                ),
                Stage(name="decode", count=1, unit_s=rates.seconds(_decode(size, asked))),
            ),
            move_s=_move_s(tokens, size, rates),
        )
    return Profiles(source="estimated", classes=classes, stack_s=stacks)


def _size(
    width: int, ffn_dim: int, num_layers: int, encoder: float, decode: float, element_bytes: int
) -> DenoiserSize:
    return DenoiserSize(
        width=width,
        ffn_dim=ffn_dim,
        num_layers=num_layers,
        encoder_parameters=encoder,
        decode_flops=decode,
        element_bytes=element_bytes,
    )


def _encode(size: DenoiserSize) -> OpWork:
    return OpWork(
        flops=2.0 * _TEXT_TOKENS * size.encoder_parameters,
        weight_bytes=size.encoder_parameters * size.element_bytes,
    )


def _decode(size: DenoiserSize, asked: TraceClass) -> OpWork:
    pixels = _shape(asked.height, "height") * _shape(asked.width, "width")
    return OpWork(flops=pixels * _shape(asked.num_frames, "num_frames") * size.decode_flops)


def _move_s(tokens: int, size: DenoiserSize, rates: DeviceRates) -> float:
    """Return what moving latents and prompt takes: read once here, written once there."""
    values = tokens * _PATCH**2 * _LATENT_CHANNELS + _TEXT_TOKENS * size.width
    return rates.overhead_s + 2.0 * values * size.element_bytes / rates.bytes_per_s


def _num_tokens(asked: TraceClass) -> int:
    side = _VAE_SPATIAL * _PATCH
    rows = int(_shape(asked.height, "height")) // side
    columns = int(_shape(asked.width, "width")) // side
    frames = 1 + (int(_shape(asked.num_frames, "num_frames")) - 1) // _VAE_TEMPORAL
    return frames * rows * columns


def _shape(value: float | None, name: str) -> float:
    if value is None:
        raise BadInput(f"a class without {name} cannot be estimated; give it, or measured profiles")
    return value
