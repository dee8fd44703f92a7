"""The card of a Wan 2.1 text-to-video folder."""

from __future__ import annotations

from ostinato.card import (
    AttentionContext,
    Capabilities,
    ComponentSpec,
    Defaults,
    Determinism,
    GuidanceForm,
    LoopSpec,
    ModelCard,
    ParityLevel,
    ParitySpec,
    PrecisionSpec,
    ProgramSpec,
    RecipeSpec,
    ScheduleAssumption,
    SizeRange,
)
from ostinato.models.wan.layout import (
    SAMPLER_NAMES,
    SCHEDULER,
    TEXT_ENCODER,
    TRANSFORMER,
    VAE,
    WanFacts,
)
from ostinato.tasks import Modality, ModelId, OutputName, TaskType

_ADAPTERS = "ostinato.models.wan.components"

# Precision that the parity promise was measured at. A published 14B folder needs 56 GB so.
PRECISION = PrecisionSpec(weights="float32", latents="float32")
# Three latent frames: the decoder's first, its second, and one with the history of both.
_PARITY_FRAMES = 9
# Where every kernel rounds otherwise at every step, latents of 20 steps are off by at most 5.6e-7
# in float32 and 7.1e-3 in bfloat16 (tests/parity/measure_other_kernels.py): small, random weights.
# Trained ones grow errors a hundred times as much in float32, as the built-in model's do, so they
# get its bound; bfloat16 gets four times what was measured. `ostinato verify` measures a folder.
_FAST_BATCH_TOLERANCE, _FAST_BATCH_TOLERANCE_BFLOAT16 = 2e-4, 3e-2


def wan_card(model_id: str, facts: WanFacts) -> ModelCard:
    """Describe a folder that was inspected; raises InvalidCard.

    Weights are served in float32 whatever they are stored in; a variant with
    `precision=PrecisionSpec(weights="bfloat16", ...)` and the recipe's assumption changed alike
    loads the text encoder and the transformer in bfloat16. The VAE stays in float32 either way.
    """
    task = TaskType.TEXT_TO_VIDEO
    sampler = SAMPLER_NAMES[facts.scheduler]
    return ModelCard(
        model_id=ModelId(model_id),
        family="wan",
        components=_components(facts),
        loops=(
            LoopSpec(
                name="denoise",
                loop="ostinato.loop.denoise:Denoise",
                binds={"denoiser": TRANSFORMER, "latents": VAE, "sampler": SCHEDULER},
                options={
                    "guidance": GuidanceForm.TWO_FORWARD.value,
                    "noise": "oracle",
                    "attention_context": AttentionContext.BIDIRECTIONAL.value,
                },
            ),
        ),
        programs=(ProgramSpec(task=task, program="ostinato.models.wan.program:text_to_video"),),
        capabilities=_capabilities(facts, sampler),
        recipe=RecipeSpec(
            method="published",
            data="not disclosed by the publisher",
            assumes_loop="denoise",
            # The publisher changes steps, scale and flow shift by resolution: they stay free.
            assumes_schedule=ScheduleAssumption(
                sampler=sampler,
                guidance=GuidanceForm.TWO_FORWARD,
                attention_context=AttentionContext.BIDIRECTIONAL,
            ),
            assumes_precision=PRECISION.weights,
            consistency="the forward is the library's own; how the weights were trained is unknown",
        ),
        parity=_parity(),
        precision=PRECISION,
        defaults=_defaults(facts, task),
        provenance="a diffusers-layout folder; files checked by their headers, not by digest",
    ).require_valid()


def _parity() -> ParitySpec:
    return ParitySpec(
        levels=(ParityLevel.C0, ParityLevel.C1, ParityLevel.C2),
        oracle="ostinato.models.wan.oracle:WanOracle",
        reference="ostinato.models.wan.reference:reference_of",
        num_frames=_PARITY_FRAMES,
        output_determinism=Determinism.BITWISE,
        fast_batch_tolerances={
            "float32": _FAST_BATCH_TOLERANCE,
            "bfloat16": _FAST_BATCH_TOLERANCE_BFLOAT16,
        },
    )


def _components(facts: WanFacts) -> tuple[ComponentSpec, ...]:
    rows = (
        (TEXT_ENCODER, "WanTextEncoder", "UMT5EncoderModel", ("encode",)),
        (TRANSFORMER, "WanTransformer", "WanTransformer3DModel", ("predict",)),
        (VAE, "WanVae", "AutoencoderKLWan", ("decode",)),
        (SCHEDULER, "WanScheduler", facts.scheduler, ()),
    )
    return tuple(
        ComponentSpec(
            name=name,
            adapter=f"{_ADAPTERS}:{adapter}",
            subfolder=name,
            class_name=class_name,
            ops=ops,
        )
        for name, adapter, class_name, ops in rows
    )


def _capabilities(facts: WanFacts, sampler: str) -> Capabilities:
    positions, stride = facts.rope_max_seq_len, facts.latents.spatial_stride
    _, patch_height, patch_width = facts.denoiser.patch_size
    temporal = facts.latents.temporal_stride
    return Capabilities(
        tasks=(TaskType.TEXT_TO_VIDEO,),
        inputs=(Modality.TEXT, Modality.LATENT),
        outputs=(OutputName.VIDEO, OutputName.LATENTS),
        height=_whole_patches(stride * patch_height, positions),
        width=_whole_patches(stride * patch_width, positions),
        num_frames=SizeRange(
            minimum=1, maximum=(positions - 1) * temporal + 1, multiple=temporal, offset=1
        ),
        num_inference_steps=SizeRange(minimum=1, maximum=facts.num_train_timesteps),
        samplers=(sampler,),
        guidance=GuidanceForm.TWO_FORWARD,
        negative_prompt=True,
    )


def _whole_patches(patch_pixels: int, positions: int) -> SizeRange:
    return SizeRange(minimum=patch_pixels, maximum=patch_pixels * positions, multiple=patch_pixels)


def _defaults(facts: WanFacts, task: TaskType) -> Defaults:
    """Take WanPipeline's own defaults, cut to what a small rotary table holds."""
    caps = _capabilities(facts, SAMPLER_NAMES[facts.scheduler])
    return Defaults(
        task=task,
        height=min(480, caps.height.maximum),
        width=min(832, caps.width.maximum),
        num_frames=min(81, caps.num_frames.maximum),
        fps=16.0,  # the rate that the publisher's examples export at
        num_inference_steps=50,
        guidance_scale=5.0,
        flow_shift=None,
    )
