"""Traces and profiles as files: those that ship, by name, and anybody's, by path.

`python -m ostinato.runtime.simulate [FOLDER]` writes those that ship.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ostinato.errors import BadInput
from ostinato.runtime.simulate.estimated import estimate_profiles
from ostinato.runtime.simulate.generate import stored_traces
from ostinato.runtime.simulate.profile import Profiles
from ostinato.runtime.simulate.trace import Trace
from ostinato.wire import canonical, decode

FOLDER = Path(__file__).parent / "traces"
_PROFILES = ".profiles.json"


def trace_names() -> tuple[str, ...]:
    """Return the names of the traces that ship."""
    files = (path.name for path in FOLDER.glob("*.json"))
    return tuple(sorted(name.removesuffix(".json") for name in files if _PROFILES not in name))


def load_trace(name_or_path: str) -> Trace:
    """Read a stored trace by its name, or a file; raises BadInput for what is neither, or wrong."""
    path = FOLDER / f"{name_or_path}.json" if name_or_path in trace_names() else Path(name_or_path)
    trace = decode(_read(path, f"trace {name_or_path!r}"), Trace, what=str(path))
    trace.validate()
    return trace


def load_profiles(path: Path) -> Profiles:
    """Read a file of profiles; raises BadInput."""
    profiles = decode(_read(path, f"profiles {str(path)!r}"), Profiles, what=str(path))
    profiles.validate()
    return profiles


def stored_profiles(name: str) -> Profiles:
    """Return the estimated profiles of a stored trace; raises BadInput for another one."""
    if name not in trace_names():
        raise BadInput(f"trace {name!r} has no stored profiles; give a file of measured ones")
    return load_profiles(FOLDER / f"{name}{_PROFILES}")


def save(value: Trace | Profiles, path: Path) -> None:
    """Write a trace or profiles as JSON that a person can read; it reads back equal."""
    path.write_bytes(to_json(value))


def to_json(value: Trace | Profiles) -> bytes:
    """Return the file's bytes; raises BadInput for what JSON cannot hold."""
    return msgspec.json.format(canonical(value), indent=1) + b"\n"


def files() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of every file that ships."""
    for trace in stored_traces():
        trace.validate()
        yield f"{trace.name}.json", to_json(trace)
        yield f"{trace.name}{_PROFILES}", to_json(estimate_profiles(trace))


def write_all(folder: Path = FOLDER) -> None:
    """Write every file that ships."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files():
        (folder / name).write_bytes(data)


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        known = ", ".join(trace_names())
        raise BadInput(
            f"{what} cannot be read ({error}); give a file, or one of: {known}"
        ) from error
