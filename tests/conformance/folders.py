"""Damage done to a model folder, and what a folder looks like without its weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "*.safetensors"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the weight files below a folder, by path."""
    return tuple(sorted(folder.rglob(WEIGHTS)))


def config_files(folder: Path) -> tuple[Path, ...]:
    """Return the pipeline's index and the components' configurations."""
    return (*sorted(folder.glob("*index.json")), *sorted(folder.glob("*/*config.json")))


def without_weights(folder: Path, target: Path) -> Path:
    """Copy a folder and leave every weight out."""
    return Path(shutil.copytree(folder, target, ignore=shutil.ignore_patterns(WEIGHTS)))


def _rewritten(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def _missing(file: Path) -> None:
    file.unlink()


def _truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _foreign(file: Path) -> None:
    file.write_bytes(b"not a safetensors header at all")


def _wrong_shape(file: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = min(tensors)
        tensors[name] = torch.zeros(*tensors[name].shape, 2, dtype=tensors[name].dtype)

    _rewritten(file, change)


def _extra_key(file: Path) -> None:
    _rewritten(file, lambda tensors: tensors.update(surplus=torch.zeros(1)))


def _missing_key(file: Path) -> None:
    _rewritten(file, lambda tensors: tensors.__delitem__(min(tensors)))


def _pickled(file: Path) -> None:
    """Leave a pickle in the weights' place that makes a folder `ran` if it is ever loaded."""
    file.unlink()
    mark = ran(file.parent)
    file.with_suffix(".bin").write_bytes(f"cos\nmkdir\n(S'{mark}'\ntR.".encode())


def ran(folder: Path) -> Path:
    """Return what a pickle in `folder` would make if its code ran."""
    return folder / "ran"


DAMAGES: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {
        "missing": _missing,
        "truncated": _truncated,
        "foreign": _foreign,
        "wrong shape": _wrong_shape,
        "extra key": _extra_key,
        "missing key": _missing_key,
        "pickled": _pickled,
    }
)
