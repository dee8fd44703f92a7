"""What a Wan folder must be: every fault is a typed error, before any weight is read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ostinato.card import ModelCard
from ostinato.errors import InvalidCard, InvalidCheckpoint, OstinatoError, UnsafeCheckpoint
from ostinato.models.wan.card import PRECISION
from ostinato.models.wan.components import WanTextEncoder, WanTransformer, WanVae
from ostinato.models.wan.configs import latent_facts
from ostinato.models.wan.open import open_wan
from ostinato.models.wan.tiny import ROPE_POSITIONS
from ostinato.tasks import OutputName

ADAPTERS = {"text_encoder": WanTextEncoder, "transformer": WanTransformer, "vae": WanVae}
UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def folder(tmp_path: Path, tiny_wan_folder: Callable[[str], Path]) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_wan_folder(UNIPC), tmp_path / "wan"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def refused(folder: Path, kind: type[OstinatoError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        open_wan(folder)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("scheduler", "sampler"), [(UNIPC, "unipc"), (EULER, "flow_match_euler")])
def test_the_card_says_what_the_folder_can_do(
    tiny_wan_folder: Callable[[str], Path], scheduler: str, sampler: str
) -> None:
    card = open_wan(tiny_wan_folder(scheduler)).card
    assert card.model_id == f"tiny-wan-{scheduler}"
    assert card.capabilities.samplers == (sampler,)
    assert card.capabilities.outputs == (OutputName.VIDEO, OutputName.LATENTS)
    frames = card.capabilities.num_frames
    assert frames.accepts(1 + 4 * (ROPE_POSITIONS - 1))
    assert not frames.accepts(1 + 4 * ROPE_POSITIONS)
    assert not frames.accepts(4)
    assert not card.capabilities.height.accepts(24)
    assert card.defaults.flow_shift is None
    assert ModelCard.from_json(card.to_json()) == card


def test_a_folder_of_the_hubs_cache_is_named_after_its_repository(
    tmp_path: Path, tiny_wan_folder: Callable[[str], Path]
) -> None:
    snapshot = tmp_path / "models--Wan-AI--Wan2.1-T2V-1.3B-Diffusers" / "snapshots" / "0fad78"
    shutil.copytree(tiny_wan_folder(UNIPC), snapshot)
    assert open_wan(snapshot).card.model_id == "Wan2.1-T2V-1.3B-Diffusers"


def test_damaged_data_is_not_looked_at(folder: Path) -> None:
    path = folder / "transformer" / WEIGHTS
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size - 4096)
        file.write(b"\xff" * 4096)
    open_wan(folder)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"transformer_2": ["diffusers", "WanTransformer3DModel"]}, "Wan 2.2 A14B"),
        ({"boundary_ratio": 0.875}, "Wan 2.2 A14B"),
        ({"expand_timesteps": True}, "Wan 2.2 5B"),
        ({"image_encoder": ["transformers", "CLIPVisionModel"]}, "image to video"),
        ({"_class_name": "WanImageToVideoPipeline"}, "WanImageToVideoPipeline"),
        ({"scheduler": ["diffusers", "EulerDiscreteScheduler"]}, "UniPCMultistepScheduler"),
        ({"scheduler": None}, "scheduler"),
        ({"vae": ["diffusers", "AutoencoderKL"]}, "AutoencoderKLWan"),
        ({"text_encoder": None}, "UMT5EncoderModel"),
    ],
)
def test_other_pipelines_are_refused_by_name(
    folder: Path, changes: dict[str, object], word: str
) -> None:
    edit(folder / "model_index.json", **changes)
    refused(folder, InvalidCheckpoint, word)


@pytest.mark.parametrize(
    ("path", "changes", "word"),
    [
        ("scheduler/scheduler_config.json", {"prediction_type": "epsilon"}, "flow_prediction"),
        ("scheduler/scheduler_config.json", {"use_flow_sigmas": False}, "use_flow_sigmas"),
        ("scheduler/scheduler_config.json", {"use_dynamic_shifting": True}, "mu"),
        ("scheduler/scheduler_config.json", {"solver_type": "none"}, "does not build"),
        ("transformer/config.json", {"_class_name": "UNet"}, "WanTransformer3DModel"),
        ("transformer/config.json", {"num_layers": "many"}, "does not build"),
        ("transformer/config.json", {"patch_size": [2, 2, 2]}, "patch_size"),
        ("transformer/config.json", {"image_dim": 32}, "image to video"),
        ("transformer/config.json", {"in_channels": 36}, "latent channels"),
        ("transformer/config.json", {"text_dim": 64}, "width 64"),
        ("transformer/config.json", {"ffn_dim": 96}, "wrong shape"),
        ("transformer/config.json", {"num_layers": 3}, "missing: blocks.2."),
        ("transformer/config.json", {"num_layers": 1}, "unexpected: blocks.1."),
        ("vae/config.json", {"latents_std": [1.0]}, "latents_std"),
        ("text_encoder/config.json", {"model_type": "bert"}, "umt5"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    folder: Path, path: str, changes: dict[str, object], word: str
) -> None:
    edit(folder / path, **changes)
    refused(folder, InvalidCheckpoint, word)


def test_strides_are_those_of_the_layers(folder: Path) -> None:
    path = folder / "vae" / "config.json"
    config = json.loads(path.read_text())
    del config["scale_factor_spatial"], config["scale_factor_temporal"]
    path.write_text(json.dumps(config))
    facts = latent_facts(folder / "vae")
    assert (facts.spatial_stride, facts.temporal_stride) == (8, 4)
    vae = WanVae.load(folder, open_wan(folder).card.component("vae"), PRECISION)
    latents = torch.zeros(1, vae.module.config["z_dim"], 3, 2, 3)
    assert vae.decode(latents)["frames"].shape == (1 + 2 * 4, 2 * 8, 3 * 8, 3)


def test_code_in_the_tokenizers_folder_is_never_run(folder: Path) -> None:
    mark = folder / "ran"
    (folder / "tokenizer" / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass T: pass\n")
    path = folder / "tokenizer" / "tokenizer_config.json"
    edit(path, tokenizer_class="T", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    card = open_wan(folder).card
    with contextlib.suppress(InvalidCheckpoint):
        WanTextEncoder.load(folder, card.component("text_encoder"), card.precision)
    assert not mark.exists()


@pytest.mark.parametrize(
    "path",
    [
        "model_index.json",
        "transformer/config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer.json",
        f"vae/{WEIGHTS}",
        "text_encoder/model.safetensors",
    ],
)
def test_a_missing_file_is_named(folder: Path, path: str) -> None:
    (folder / path).unlink()
    refused(folder, InvalidCheckpoint, Path(path).name.removesuffix(".safetensors"))


def test_pickle_weights_are_refused_unread(folder: Path) -> None:
    (folder / "vae" / WEIGHTS).unlink()
    (folder / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"not even a pickle")
    refused(folder, UnsafeCheckpoint, "diffusion_pytorch_model.bin")


def test_wrong_tensors_are_listed(folder: Path) -> None:
    path = folder / "transformer" / WEIGHTS

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["surplus"] = torch.zeros(1)
        tensors["proj_out.bias"] = torch.zeros(3)
        del tensors["patch_embedding.bias"]

    edit_weights(path, change)
    wrong = "proj_out.bias is [3], expected [64]"
    refused(
        folder, InvalidCheckpoint, "unexpected: surplus", wrong, "missing: patch_embedding.bias"
    )


def test_what_the_library_skips_or_ties_may_be_there_or_not(folder: Path) -> None:
    ignored = {"blocks.0.attn2.norm_added_q.weight": torch.ones(64)}
    edit_weights(folder / "transformer" / WEIGHTS, lambda tensors: tensors.update(ignored))
    text = folder / "text_encoder" / "model.safetensors"
    tied = "encoder.embed_tokens.weight"
    edit_weights(text, lambda tensors: tensors.update({tied: tensors["shared.weight"].clone()}))
    source = open_wan(folder)
    card = source.card
    encoder = WanTextEncoder.load(source.folder, card.component("text_encoder"), card.precision)
    assert encoder.module.encoder.embed_tokens.weight is encoder.module.shared.weight
    WanTransformer.load(source.folder, card.component("transformer"), card.precision)


def test_weights_that_change_after_opening_fail_typed(folder: Path) -> None:
    source = open_wan(folder)
    card = source.card
    path = folder / "transformer" / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidCheckpoint, match="does not load"):
        WanTransformer.load(source.folder, card.component("transformer"), card.precision)


def test_precision_is_the_cards(tiny_wan_folder: Callable[[str], Path]) -> None:
    source = open_wan(tiny_wan_folder(UNIPC))
    card = source.card
    half = dataclasses.replace(card.precision, weights="bfloat16")
    with pytest.raises(InvalidCard, match="assumes precision"):
        card.derive(precision=half)
    recipe = dataclasses.replace(card.recipe, assumes_precision="bfloat16")
    variant = card.derive(precision=half, recipe=recipe)
    expected = {"text_encoder": "bfloat16", "transformer": "bfloat16", "vae": "float32"}
    for name, adapter in ADAPTERS.items():
        loaded = adapter.load(source.folder, variant.component(name), variant.precision)
        assert loaded.module.dtype is getattr(torch, expected[name])
        assert not loaded.module.training


def test_a_tokenizer_that_cannot_be_read_fails_typed(folder: Path) -> None:
    (folder / "tokenizer" / "tokenizer.json").write_text("{")
    card = open_wan(folder).card
    with pytest.raises(InvalidCheckpoint, match="tokenizer"):
        WanTextEncoder.load(folder, card.component("text_encoder"), card.precision)
