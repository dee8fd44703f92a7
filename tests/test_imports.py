"""What importing costs and brings along; each check runs in a fresh interpreter."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

HEAVY = ("torch", "diffusers", "transformers", "numpy", "av")
WEB = ("fastapi", "starlette", "uvicorn", "aiohttp", "flask", "http.server")


def _modules_after(statement: str) -> set[str]:
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    return set(json.loads(done.stdout))


def _cpu_s(statement: str) -> float:
    """Return CPU seconds of the best of three runs; a busy machine does not stretch them."""
    seconds: list[float] = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", statement], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def test_import_is_light() -> None:
    brought = _modules_after("import ostinato")
    assert not brought & set(HEAVY)
    assert _cpu_s("import ostinato") - _cpu_s("pass") < 0.3


def test_surface_is_there_when_it_is_asked_for() -> None:
    from ostinato import Engine, Model, OstinatoError, Request, load

    assert all(callable(name) for name in (Engine, Model, OstinatoError, Request, load))


def test_misspelt_name_is_an_attribute_error() -> None:
    import ostinato

    with pytest.raises(AttributeError, match="lod"):
        getattr(ostinato, "lod")  # noqa: B009


def test_runtime_knows_no_model_no_training_no_web() -> None:
    """Cards name families by import string, so the import linter cannot see this."""
    brought = _modules_after("import ostinato.runtime")
    ours = {name for name in brought if name.startswith("ostinato.")}
    assert not {n for n in ours if n.startswith(("ostinato.models", "ostinato.training"))}
    assert not brought & set(WEB)


@pytest.mark.parametrize("plane", ["card", "request", "work", "errors", "tasks", "wire", "env"])
def test_contracts_need_no_tensor_library(plane: str) -> None:
    assert not _modules_after(f"import ostinato.{plane}") & set(HEAVY)
