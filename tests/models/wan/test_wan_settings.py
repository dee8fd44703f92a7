"""A setting of a wrong type, or one that no schedule or layer can have, is refused at opening."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.errors import InvalidCheckpoint
from ostinato.models.wan.open import open_wan

UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"


@pytest.fixture
def folder(tmp_path: Path, tiny_wan_folder: Callable[[str], Path]) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(tiny_wan_folder(UNIPC), tmp_path / "wan"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("path", "changes", "word"),
    [
        ("transformer", {"patch_size": None}, "patch_size is None"),
        ("transformer", {"patch_size": "122"}, "patch_size"),
        ("transformer", {"patch_size": [1, 0, 2]}, "patch_size"),
        ("transformer", {"patch_size": [1, 2]}, "patch_size"),
        ("transformer", {"in_channels": "16"}, "in_channels"),
        ("transformer", {"in_channels": True}, "in_channels"),
        ("transformer", {"in_channels": -16}, "in_channels"),
        ("transformer", {"rope_max_seq_len": 32.0}, "rope_max_seq_len"),
        ("transformer", {"eps": "small"}, "eps"),
        ("transformer", {"eps": float("nan")}, "eps"),
        ("transformer", {"text_dim": 10**30}, "text_dim"),
        ("transformer", {"num_layers": 10**9}, "num_layers"),
        ("vae", {"scale_factor_spatial": "8"}, "scale_factor_spatial"),
        ("vae", {"scale_factor_spatial": 4}, "the layers have a stride of 8"),
        ("vae", {"scale_factor_temporal": 2}, "the layers have a stride of 4"),
        ("vae", {"scale_factor_temporal": None}, "scale_factor_temporal"),
        ("vae", {"temperal_downsample": [True]}, "temperal_downsample"),
        ("vae", {"temperal_downsample": [1, 1, 0]}, "temperal_downsample"),
        ("vae", {"latents_mean": "x"}, "latents_mean"),
        ("vae", {"latents_std": [0.0] * 16}, "latents_std"),
        ("vae", {"latents_std": [float("nan")] * 16}, "latents_std"),
        ("text_encoder", {"num_layers": 10**9}, "num_layers"),
        ("text_encoder", {"d_model": "32"}, "d_model"),
        ("scheduler", {"flow_shift": 0}, "flow shift"),
        ("scheduler", {"flow_shift": -3}, "flow shift"),
        ("scheduler", {"flow_shift": float("nan")}, "flow_shift"),
        ("scheduler", {"final_sigmas_type": "zz"}, "final_sigmas_type"),
        ("scheduler", {"timestep_spacing": "zz"}, "timestep_spacing"),
        ("scheduler", {"num_train_timesteps": "x"}, "num_train_timesteps"),
        ("scheduler", {"num_train_timesteps": 0}, "scheduler"),
    ],
)
def test_a_setting_of_a_wrong_type_or_size_is_refused(
    folder: Path, path: str, changes: dict[str, object], word: str
) -> None:
    name = "scheduler_config.json" if path == "scheduler" else "config.json"
    edit(folder / path / name, **changes)
    with pytest.raises(InvalidCheckpoint, match=word):
        open_wan(folder)


@pytest.mark.parametrize("shift", [0, -3, float("nan"), "3"])
def test_a_shift_of_the_euler_scheduler_is_checked(
    tmp_path: Path, tiny_wan_folder: Callable[[str], Path], shift: object
) -> None:
    folder = Path(shutil.copytree(tiny_wan_folder(EULER), tmp_path / "wan"))
    edit(folder / "scheduler" / "scheduler_config.json", shift=shift)
    with pytest.raises(InvalidCheckpoint, match="scheduler"):
        open_wan(folder)
