"""Load the library's modules from checked folders.

Invariant: every parameter is moved to aligned memory, because float32 results depend on where
weights lie; and no weight is ever made up for one that a file lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar, cast

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ostinato.backend.alignment import align_parameters
from ostinato.backend.loading import loading
from ostinato.errors import InvalidCheckpoint

M = TypeVar("M", bound=nn.Module)


class _Pretrained(Protocol):
    """What diffusers and transformers have in common."""

    @classmethod
    def from_pretrained(
        cls,
        folder: Path,
        *,
        dtype: torch.dtype,
        use_safetensors: bool,
        local_files_only: bool,
        output_loading_info: bool,
        trust_remote_code: bool,
    ) -> tuple[nn.Module, Mapping[str, object]]: ...


def load_module(kind: type[M], folder: Path, dtype: str) -> M:
    """Load a module of the library, aligned, for inference.

    Raises InvalidCheckpoint for files that changed since they were checked, and for any weight
    that the library would have made up.
    """
    pretrained = cast("type[_Pretrained]", kind)
    try:
        with loading():
            module, info = pretrained.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=False,
            )
    except Exception as error:
        raise _unreadable(folder, error) from error
    faults = {kind: names for kind, names in info.items() if names}
    if faults:
        raise InvalidCheckpoint(f"{folder} did not load as its configuration declares: {faults}")
    assert isinstance(module, kind)
    align_parameters(module)
    return module.eval().requires_grad_(False)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load whatever tokenizer the folder configures; code from the folder is never run."""
    try:
        with loading():
            return AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"{folder} does not load: {type(error).__name__}: {error}")
