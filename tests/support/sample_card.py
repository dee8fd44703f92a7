"""A valid card in which every field of every part holds something, for tests of the contract."""

from __future__ import annotations

from ostinato.card import (
    AttentionContext,
    Capabilities,
    ComponentSpec,
    Defaults,
    Determinism,
    FileDigest,
    GuidanceForm,
    LoopSpec,
    ModelCard,
    ParentRef,
    ParityLevel,
    ParitySpec,
    PrecisionSpec,
    ProgramSpec,
    RecipeSpec,
    ScheduleAssumption,
    SizeRange,
)
from ostinato.tasks import Modality, ModelId, OutputName, TaskType


def sample_card() -> ModelCard:
    """Return a distilled streaming model that never existed."""
    return ModelCard(
        model_id=ModelId("sample"),
        family="sample",
        components=(
            ComponentSpec(
                name="transformer",
                adapter="sample.components:Transformer",
                subfolder="transformer",
                class_name="SampleTransformer",
                ops=("encode_text", "predict", "store"),
            ),
            ComponentSpec(
                name="codec",
                adapter="sample.components:Codec",
                subfolder="codec",
                class_name="SampleCodec",
                ops=("decode",),
            ),
        ),
        loops=(
            LoopSpec(
                name="rollout",
                loop="sample.loop:Rollout",
                binds={"denoiser": "transformer", "latents": "codec"},
                options={
                    "window_blocks": 3,
                    "attention_context": "self_forcing",
                    "guidance": "batched",
                    "strength": 0.5,
                    "anchored": True,
                },
            ),
        ),
        programs=(ProgramSpec(task=TaskType.TEXT_TO_VIDEO, program="sample.program:video"),),
        capabilities=_capabilities(),
        recipe=RecipeSpec(
            method="consistency",
            parents=(ParentRef(model_id="teacher", digest="sha256:" + "a" * 64),),
            data="clips, digest 1234",
            assumes_loop="rollout",
            assumes_schedule=ScheduleAssumption(
                sampler="renoise",
                num_inference_steps=(4,),
                guidance=GuidanceForm.BATCHED,
                guidance_scale=2.0,
                flow_shift=3.0,
                attention_context=AttentionContext.SELF_FORCING,
            ),
            assumes_precision="float32",
            consistency="the training forward is the served one",
        ),
        parity=ParitySpec(
            levels=(ParityLevel.C0, ParityLevel.C1),
            oracle="sample.oracle:Oracle",
            reference="sample.reference:reference_of",
            num_frames=9,
            output_determinism=Determinism.BITWISE,
            fast_batch_tolerances={"float32": 1e-4, "bfloat16": 0.05},
        ),
        precision=PrecisionSpec(weights="float32", latents="float32"),
        defaults=Defaults(
            task=TaskType.TEXT_TO_VIDEO,
            height=64,
            width=96,
            num_frames=17,
            fps=8.0,
            num_inference_steps=4,
            guidance_scale=2.0,
            flow_shift=3.0,
            negative_prompt="blurred",
        ),
        cpu_threads=2,
        suites={"world": "sample.evaluation:world"},
        provenance="made by hand",
        files=(FileDigest(path="transformer/config.json", sha256="b" * 64),),
        parent=ParentRef(model_id="before", digest="sha256:" + "c" * 64),
    )


def _capabilities() -> Capabilities:
    return Capabilities(
        tasks=(TaskType.TEXT_TO_VIDEO,),
        inputs=(Modality.TEXT,),
        outputs=(OutputName.VIDEO, OutputName.LATENTS),
        height=SizeRange(minimum=32, maximum=128, multiple=32),
        width=SizeRange(minimum=32, maximum=128, multiple=32),
        num_frames=SizeRange(minimum=1, maximum=81, multiple=4, offset=1),
        num_inference_steps=SizeRange(minimum=1, maximum=50),
        samplers=("renoise", "euler"),
        guidance=GuidanceForm.BATCHED,
        negative_prompt=True,
    )
