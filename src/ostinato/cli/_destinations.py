"""Where outputs go: decided and checked before torch is imported, let alone a model loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ostinato.errors import BadInput
from ostinato.media import check_destination
from ostinato.tasks import OutputName

_LATENTS_SUFFIX = ".safetensors"
_TIMELINE_SUFFIX = ".json"
_SLUG_LENGTH = 60


def output_names(names: str) -> tuple[OutputName, ...]:
    """Parse `video,latents`; raises BadInput that lists the valid names."""
    valid = [name.value for name in OutputName]
    found = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in found if name not in valid]
    if unknown or not found:
        raise BadInput(f"--outputs is {names!r}; expected names among {', '.join(valid)}")
    return tuple(dict.fromkeys(OutputName(name) for name in found))


def destinations(
    output: Path | None, prompt: str, names: str, fps: float | None = None
) -> Mapping[OutputName, Path]:
    """Decide where each output goes, in the order of `names`; raises BadInput or InvalidOutput."""
    outputs = output_names(names)
    wants_video = OutputName.VIDEO in outputs
    suffixes = [".mp4" if name is OutputName.VIDEO else _LATENTS_SUFFIX for name in outputs]
    base = output if output is not None else _free_name(slug(prompt), suffixes)
    if output is None and wants_video:
        base = base.with_suffix(".mp4")
    checked = {
        OutputName.VIDEO: lambda: check_destination(base, fps=fps),
        OutputName.LATENTS: lambda: check_destination(
            base.with_suffix(_LATENTS_SUFFIX) if wants_video else base,
            suffixes=(_LATENTS_SUFFIX,),
        ),
    }
    return {name: checked[name]() for name in outputs}


def check_timeline(path: Path | None) -> None:
    """Raise InvalidOutput where a timeline that is wanted cannot be written."""
    if path is not None:
        check_destination(path, suffixes=(_TIMELINE_SUFFIX,))


def slug(prompt: str) -> str:
    """Make a file name out of a prompt: its words, joined by dashes."""
    words = re.findall(r"\w+", prompt.lower())
    name = ""
    for word in words:
        if len(name) + len(word) >= _SLUG_LENGTH:
            break
        name = f"{name}-{word}" if name else word
    return name or "clip"


def _free_name(stem: str, suffixes: Sequence[str]) -> Path:
    """Return the first of stem, stem-2, stem-3... under which no suffix names a file.

    Nobody asked to replace one. The path carries the first suffix.
    """
    name, number = stem, 1
    while any(os.path.lexists(name + suffix) for suffix in suffixes):
        number += 1
        name = f"{stem}-{number}"
    return Path(name + suffixes[0])
