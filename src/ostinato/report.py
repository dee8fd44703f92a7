"""A report: figures with stable names, held against targets; its last line is one JSON document.

`bench`, `eval` and `verify` all end with one, so that a machine can read any of them.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

from ostinato.wire import encode

# The instruction sets by which libraries choose their kernels, and so their rounding, as Linux
# names them: arch/x86/include/asm/cpufeatures.h, arch/arm64/kernel/cpuinfo.c.
_VECTOR_UNITS = (
    *("avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"),
    *("asimd", "asimdhp", "asimdfhm", "asimddp", "bf16", "i8mm"),
    *("sve", "sve2", "svebf16", "svei8mm", "sme", "sme2"),  # codespell:ignore sme
)
# What /proc/cpuinfo calls the numbers that tell one kind of processor from another: x86, then ARM.
_KIND_FIELDS = (
    ("cpu family", "model", "stepping"),
    ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)
_FLAG_FIELDS = ("flags", "Features")
_COMMIT_DIGITS = 12


class Comparison(StrEnum):
    """How a figure is held against its target."""

    AT_LEAST = ">="
    AT_MOST = "<="


Target = tuple[Comparison, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures of one run. detail: whatever explains them (intervals, rows); any JSON value."""

    name: str
    figures: Mapping[str, float]
    targets: Mapping[str, Target]
    environment: Mapping[str, str]
    detail: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def passed(self) -> bool:
        """Whether every target is met; a target without a figure, or with NaN, is not."""
        return all(self.meets(name) for name in self.targets)

    def meets(self, name: str) -> bool:
        """Whether one target is met."""
        comparison, bound = self.targets[name]
        figure = self.figures.get(name, math.nan)
        return figure >= bound if comparison is Comparison.AT_LEAST else figure <= bound

    def to_json(self) -> str:
        """Return the stable one-line form."""
        document = {
            "name": self.name,
            "figures": self.figures,
            "targets": self.targets,
            "passed": self.passed,
            "environment": self.environment,
            "detail": self.detail,
        }
        return encode(document).decode()


def describe_environment(threads: int) -> dict[str, str]:
    """Return what a figure depends on: processor, threads, torch, source commit."""
    return {
        **describe_device(threads),
        "ostinato": version("ostinato"),
        "commit": source_commit(digits=_COMMIT_DIGITS),
    }


def describe_device(threads: int) -> dict[str, str]:
    """Return what the time of a kernel depends on: processor, threads, cores, torch."""
    return {
        "processor": _processor(),
        "threads": str(threads),
        "cores": str(os.cpu_count()),
        "torch": version("torch"),
    }


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion; (0, 1) without a trial.

    Source: E. B. Wilson, JASA 22 (1927); 1.959964 is the normal quantile of 0.975.
    """
    if trials == 0:
        return 0.0, 1.0
    z, rate = 1.959964, successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return (centre - spread) / scale, (centre + spread) / scale


def source_commit(file: Path = Path(__file__), *, digits: int = 40) -> str:
    """Return the git commit of the repository that tracks a file, `-dirty` if anything changed.

    `unknown` where none does: an installed package may lie below a repository of something else.
    """
    if _git(file.parent, "ls-files", "--error-unmatch", "--", file.name) is None:
        return "unknown"
    describe = ("describe", "--always", "--dirty", f"--abbrev={digits}", "--exclude=*")
    return _git(file.parent, *describe) or "unknown"


def _processor(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor so that two of one name are of one kind.

    A virtual machine may call any of a maker's processors by one name, and an ARM kernel tells no
    name at all, so the numbers of its kind and the vector units that it shows are part of it; all
    kinds, where cores differ.
    """
    if not cpu_info.is_file():
        return platform.processor() or platform.machine()
    cores = [_fields(block) for block in cpu_info.read_text().split("\n\n")]
    names = (core["model name"] for core in cores if "model name" in core)
    kinds = dict.fromkeys(kind for core in cores if (kind := _kind(core)))
    shown = {
        unit for core in cores for field in _FLAG_FIELDS for unit in core.get(field, "").split()
    }
    units = [unit for unit in _VECTOR_UNITS if unit in shown]
    return (
        f"{next(names, platform.machine())} "
        f"({' + '.join(kinds) or 'unknown kind'}; {' '.join(units) or 'no known vector units'})"
    )


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _kind(core: Mapping[str, str]) -> str:
    return "/".join(core[key] for keys in _KIND_FIELDS for key in keys if key in core)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git says of a folder, None when it fails or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
