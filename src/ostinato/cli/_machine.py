"""What machine this is, and whether what a command needs is there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import av.error
import numpy as np
import torch

from ostinato.env import Environment
from ostinato.errors import OstinatoError
from ostinato.media import Video, decode
from ostinato.models.registry import families, open_model
from ostinato.report import describe_environment

_PACKAGES = ("torch", "diffusers", "transformers", "av")
_LIBRARIES = (
    ("MKL", r"Math Kernel Library Version ([\d.]+)"),
    ("oneDNN", r"MKL-DNN v([\d.]+)"),
)
_CLIP_FRAMES = 4
_COMPILER = "g++"  # what torch.compile calls


class Check(NamedTuple):
    """One thing that was tried. needed: whether a command fails without it."""

    name: str
    passed: bool
    needed: bool
    told: str


def machine_facts() -> tuple[tuple[str, str], ...]:
    """Return processor, memory and versions, as names and words."""
    environment = describe_environment(torch.get_num_threads())
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch sees"
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return (
        ("processor", environment["processor"]),
        ("vector instructions", torch.backends.cpu.get_cpu_capability()),
        ("threads", f"{environment['threads']} of {environment['cores']} cores"),
        ("memory", f"{pages * page_bytes / 2**30:.1f} GiB"),
        ("accelerator", cuda),
        ("python", platform.python_version()),
        *((name, version(name)) for name in _PACKAGES),
        *_libraries(torch.__config__.show()),
        ("ostinato", f"{environment['ostinato']}, commit {environment['commit']}"),
    )


def machine_checks() -> Iterator[Check]:
    """Try what commands need: shipped weights, encoders, folders, the compiler."""
    for family in families():
        if family.builtin is not None:
            yield _weights(family.builtin)
    yield _temporary()
    yield _writable("folder of training runs", Environment.read().runs_dir, needed=False)
    yield _clip(".mp4", needed=True)
    yield _clip(".webm", needed=False)
    found = shutil.which(_COMPILER)
    told = found or f"no {_COMPILER}: training runs eagerly"
    yield Check("C++ compiler", found is not None, False, told)


def _libraries(config: str) -> Iterator[tuple[str, str]]:
    for name, pattern in _LIBRARIES:
        found = re.search(pattern, config)
        yield name, found[1] if found else "not in this build of torch"


def _weights(model: str) -> Check:
    name = f"weights of {model}"
    try:
        card = open_model(model).card
    except OstinatoError as error:
        return Check(name, False, True, str(error))
    return Check(name, True, True, f"{len(card.files)} files have their digests")


def _temporary() -> Check:
    name = "temporary folder"
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        return Check(name, False, True, f"{error}; set TMPDIR to a folder that takes files")
    return _writable(name, Path(folder), needed=True)


def _writable(name: str, folder: Path, *, needed: bool) -> Check:
    """Write into the folder, or the one in which it would be made."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=there) as file:
            file.write(b"\0")
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Check(name, False, needed, f"{there} takes no file: {error}")
    return Check(name, True, needed, f"{folder}, {free / 2**30:.1f} GiB free")


def _clip(suffix: str, *, needed: bool) -> Check:
    """Write a short clip and read it again."""
    name = f"{suffix} clips"
    frames = np.zeros((_CLIP_FRAMES, 32, 32, 3), np.uint8)
    frames[1::2] = 255
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Video(frames=frames, fps=8.0).save(Path(folder) / f"clip{suffix}")
            found = len(decode(path).frames)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        return Check(name, False, needed, f"cannot be written: {error}")
    told = f"{found} of {_CLIP_FRAMES} frames came back"
    return Check(name, found == _CLIP_FRAMES, needed, told)
