"""The card of the model that ships with the package, and how its folder is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePath

from ostinato.backend.checkpoint import read_config, read_headers
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
    ModelSource,
    ParityLevel,
    ParitySpec,
    PrecisionSpec,
    ProgramSpec,
    RecipeSpec,
    ScheduleAssumption,
    SizeRange,
)
from ostinato.errors import InvalidCheckpoint
from ostinato.models.builtin.architecture import (
    CHUNK_LATENT_FRAMES,
    FLOW_SHIFT,
    FPS,
    WINDOW_CHUNKS,
)
from ostinato.models.builtin.codec import read_codec_config
from ostinato.models.builtin.layout import (
    CODEC,
    FILES,
    PROVENANCE,
    TEXT_ENCODER,
    TOKENIZER,
    TRANSFORMER,
    WEIGHTS_FOLDER,
    transformer_sizes,
)
from ostinato.models.builtin.text import load_tokenizer
from ostinato.tasks import Modality, ModelId, OutputName, TaskType

MODEL_ID = ModelId("builtin")
_HERE = "ostinato.models.builtin"
# An hour of video: positions are computed, not looked up, and memory does not grow with length
# but for the frames themselves.
_MAX_FRAMES = 3600 * FPS
# Three blocks, the last cut short: history is read, kept and grown.
_PARITY_FRAMES = 30
# Where every kernel rounds otherwise at every step, latents of 20 steps are off by at most 4.2e-5
# (tests/parity/measure_other_kernels.py); a stack does so in some of them. Five times that.
_FAST_BATCH_TOLERANCE = 2e-4


def shipped_folder() -> Path:
    """Return the folder of the weights that ship."""
    return WEIGHTS_FOLDER


def open_builtin(folder: Path) -> ModelSource:
    """Check the folder's files against their digests and make the card; loads no weight.

    Raises InvalidCheckpoint when a file is missing or is not the one that was exported.
    """
    provenance = read_config(folder, PROVENANCE)
    files = _file_digests(provenance)
    _require_listed(folder, files)
    for file in files:
        _verify(folder, file)
    for component in (TRANSFORMER, TEXT_ENCODER, CODEC):
        read_headers(folder / component)
    transformer_sizes(folder / TRANSFORMER)
    read_codec_config(folder / CODEC)
    load_tokenizer(folder / TOKENIZER)
    model_id = MODEL_ID if folder == WEIGHTS_FOLDER else ModelId(folder.resolve().name)
    card = builtin_card(model_id, provenance, files)
    return ModelSource(card=card.require_valid(), folder=folder)


def builtin_card(
    model_id: ModelId, provenance: Mapping[str, object], files: tuple[FileDigest, ...]
) -> ModelCard:
    """Make the card of weights with this provenance."""
    return ModelCard(
        model_id=model_id,
        family="builtin",
        components=(
            _component(TEXT_ENCODER, "BuiltinTextEncoder", "UMT5EncoderModel", ("encode",)),
            _component(
                TRANSFORMER,
                "BuiltinTransformer",
                "WanTransformer3DModel",
                ("encode_text", "predict", "store"),
            ),
            _component(CODEC, "BuiltinCodec", "PatchCodec", ("decode",)),
        ),
        loops=(
            LoopSpec(
                name="rollout",
                loop="ostinato.loop.chunks.rollout:ChunkRollout",
                binds={"denoiser": TRANSFORMER, "latents": CODEC},
                options={
                    "frames_per_block": CHUNK_LATENT_FRAMES,
                    "window_blocks": WINDOW_CHUNKS,
                    "attention_context": AttentionContext.SELF_FORCING.value,
                    "guidance": GuidanceForm.BATCHED.value,
                    "guidance_rule": "classifier_free",
                },
            ),
        ),
        programs=(
            ProgramSpec(task=TaskType.TEXT_TO_VIDEO, program=f"{_HERE}.program:text_to_video"),
        ),
        capabilities=Capabilities(
            tasks=(TaskType.TEXT_TO_VIDEO,),
            inputs=(Modality.TEXT,),
            outputs=(OutputName.VIDEO, OutputName.LATENTS),
            height=SizeRange(minimum=64, maximum=64),
            width=SizeRange(minimum=64, maximum=64),
            num_frames=SizeRange(minimum=1, maximum=_MAX_FRAMES),
            num_inference_steps=SizeRange(minimum=1, maximum=200),
            samplers=("euler", "renoise"),
            guidance=GuidanceForm.BATCHED,
            negative_prompt=True,
        ),
        recipe=_recipe(provenance),
        parity=ParitySpec(
            levels=(ParityLevel.C0, ParityLevel.C1, ParityLevel.C2),
            oracle=None,
            reference=f"{_HERE}.reference:reference_of",
            num_frames=_PARITY_FRAMES,
            output_determinism=Determinism.BITWISE,
            fast_batch_tolerances={"float32": _FAST_BATCH_TOLERANCE},
        ),
        precision=PrecisionSpec(weights="float32", latents="float32"),
        defaults=Defaults(
            task=TaskType.TEXT_TO_VIDEO,
            height=64,
            width=64,
            num_frames=96,
            fps=float(FPS),
            num_inference_steps=20,
            guidance_scale=2.0,
            flow_shift=FLOW_SHIFT,
        ),
        cpu_threads=1,
        suites={"world": f"{_HERE}.evaluation:run_world_suite"},
        provenance=_sentence(provenance),
        files=files,
    )


def _recipe(provenance: Mapping[str, object]) -> RecipeSpec:
    return RecipeSpec(
        method="flow_matching",
        data=f"procedural world, digest {provenance.get('data_digest')}",
        assumes_loop="rollout",
        assumes_schedule=ScheduleAssumption(
            guidance=GuidanceForm.BATCHED,
            attention_context=AttentionContext.SELF_FORCING,
        ),
        assumes_precision="float32",
        consistency="trained in bfloat16 autocast with a dense masked forward over the same "
        "modules; served in float32 block by block",
    )


def _component(name: str, adapter: str, class_name: str, ops: tuple[str, ...]) -> ComponentSpec:
    return ComponentSpec(
        name=name,
        adapter=f"{_HERE}.components:{adapter}",
        subfolder=name,
        class_name=class_name,
        ops=ops,
    )


def _sentence(provenance: Mapping[str, object]) -> str:
    return (
        f"`{provenance.get('command')}`, seed {provenance.get('seed')}, "
        f"{provenance.get('steps')} steps in {provenance.get('train_cpu_s')} CPU-seconds, "
        f"data {provenance.get('data_digest')}, source commit {provenance.get('source_commit')}"
    )


def _file_digests(provenance: Mapping[str, object]) -> tuple[FileDigest, ...]:
    digests = provenance.get("sha256")
    if not isinstance(digests, dict) or not digests:
        raise InvalidCheckpoint(f"{PROVENANCE} lists no file digests; export the weights again")
    return tuple(FileDigest(path=str(p), sha256=str(d)) for p, d in sorted(digests.items()))


def _require_listed(folder: Path, files: tuple[FileDigest, ...]) -> None:
    """Let no file be read unverified, of those always there and of those a library would find."""
    listed = {file.path for file in files}
    stray = {
        path.relative_to(folder).as_posix()
        for component in (TRANSFORMER, TEXT_ENCODER, TOKENIZER, CODEC)
        for path in (folder / component).rglob("*")
        if path.is_file()
    }
    if unlisted := sorted((set(FILES) | stray) - listed):
        raise InvalidCheckpoint(
            f"{folder / PROVENANCE} lists no digest for {', '.join(unlisted)}; export the weights "
            "again"
        )
    if foreign := sorted(
        p for p in listed if PurePath(p).is_absolute() or ".." in PurePath(p).parts
    ):
        raise InvalidCheckpoint(f"{folder / PROVENANCE} lists files outside its folder: {foreign}")


def _verify(folder: Path, file: FileDigest) -> None:
    path = folder / file.path
    if not path.is_file():
        raise InvalidCheckpoint(f"{path} is missing; install the package or export again")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != file.sha256:
        raise InvalidCheckpoint(
            f"{path} has sha256 {found}, but {PROVENANCE} says {file.sha256}; the file changed "
            "after it was exported: install the package or export again"
        )
