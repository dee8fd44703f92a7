"""What surrounds a request: the process's settings, its threads, its exit, its memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from ostinato.api import Engine, Model
from ostinato.backend.loading import loading, process_settings
from ostinato.card import ModelSource
from ostinato.errors import (
    InternalError,
)
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import open_model
from ostinato.request import Request
from ostinato.runtime.threads import cpu_turn
from support.requests import PROMPT, num_workers, replace_op, request


@pytest.fixture
def source(tiny_builtin_folder: Path) -> ModelSource:
    return open_builtin(tiny_builtin_folder)


@pytest.fixture
def engine(source: ModelSource) -> Iterator[Engine]:
    with Engine() as engine:
        engine.add(source)
        yield engine


def test_first_use_from_many_threads_makes_one_engine(source: ModelSource) -> None:
    before = num_workers()
    model, outputs, engines = Model(source), [], set()

    def use() -> None:
        engines.add(model.engine)
        outputs.append(model.generate(PROMPT, num_frames=12, num_inference_steps=1))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 8
    assert len(engines) == 1
    engines.clear()
    model.close()
    assert num_workers() == before


def test_what_a_model_returns_does_not_depend_on_who_ran_before(
    engine: Engine, source: ModelSource
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine.submit(request()).result(timeout_s=30)
        assert torch.get_num_threads() == 2
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_settings_of_the_callers_program_change_no_byte(
    tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path], dtype: torch.dtype
) -> None:
    wan = open_model(tiny_wan_folder("UniPCMultistepScheduler"))
    asked = [
        request(outputs=("latents",)),
        Request(
            model=wan.card.model_id,
            task="text_to_video",
            prompt="two dogs",
            height=16,
            width=32,
            num_frames=5,
            num_inference_steps=4,
            outputs=("latents",),
        ),
    ]

    def latents() -> list[torch.Tensor]:
        with Engine() as engine:
            engine.add(open_builtin(tiny_builtin_folder))
            engine.add(wan)
            return [output.latents for output in engine.run(asked)]

    expected = latents()
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision("medium")
    try:
        assert all(torch.equal(a, b) for a, b in zip(latents(), expected, strict=True))
        assert torch.get_default_dtype() is dtype
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")


def test_provenance_names_the_threads(engine: Engine) -> None:
    provenance = engine.submit(request()).result(timeout_s=30).provenance
    assert provenance.cpu_threads == 1
    assert set(provenance.device_s_by_node) == {
        "encode_prompt",
        "encode_negative",
        "rollout",
        "decode",
    }
    assert sum(provenance.device_s_by_node.values()) == pytest.approx(provenance.device_s)


def test_a_dropped_model_stops_its_worker_once_nothing_runs(source: ModelSource) -> None:
    before = num_workers()
    model = Model(source)
    handle = model.submit(PROMPT, num_frames=24, num_inference_steps=1)
    gone = weakref.ref(model.engine)
    del model
    assert handle.result(timeout_s=30).video.frames.shape[0] == 24
    for _ in range(50):
        gc.collect()
        if gone() is None:
            break
        threading.Event().wait(0.02)
    assert gone() is None
    assert handle.result()
    assert num_workers() == before


def test_a_kept_handle_of_a_failed_request_keeps_no_weights(source: ModelSource) -> None:
    engine = Engine()
    resident = engine.add(source)

    def faulty(**inputs: object) -> object:
        raise RuntimeError("broken")

    replace_op(resident, "codec", "decode", faulty)
    handle = engine.submit(request())
    with pytest.raises(InternalError) as caught:
        handle.result(timeout_s=30)
    assert "in faulty" in caught.value.__notes__[0], "the trace is told as text"
    del caught
    gone = weakref.ref(resident)
    engine.close()
    del engine, resident
    gc.collect()
    assert handle.done
    assert gone() is None


@pytest.mark.parametrize("last", ["sys.exit(7)", "raise SystemExit(7)"])
def test_leaving_the_interpreter_while_a_request_runs_is_clean(
    tiny_builtin_folder: Path, last: str
) -> None:
    code = f"""
import sys, ostinato
model = ostinato.load({str(tiny_builtin_folder)!r})
handle = model.submit({PROMPT!r}, num_frames=57600)
next(e for e in handle.events() if type(e).__name__ == "Progress")
{last}
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "terminate" not in done.stderr


def test_a_turn_and_a_load_do_not_restore_each_others_settings() -> None:
    torch.set_default_dtype(torch.float64)
    wrong: list[torch.dtype] = []

    def hold(context: Callable[[], AbstractContextManager[object]]) -> None:
        for _ in range(300):
            with context():
                time.sleep(0)
                if torch.get_default_dtype() is not torch.float32:
                    wrong.append(torch.get_default_dtype())

    contexts = (loading, lambda: cpu_turn(1), loading, lambda: cpu_turn(2))
    threads = [threading.Thread(target=hold, args=(context,)) for context in contexts]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_waiting_for_a_turn_that_cannot_come_is_an_error(tiny_builtin_folder: Path) -> None:
    with Engine() as engine:
        engine.add(open_builtin(tiny_builtin_folder))
        with process_settings():
            handle = engine.submit(request())
            with pytest.raises(InternalError, match="wait outside of that block"):
                handle.result()
        assert handle.result(60).video.frames.shape[0] == 24
        with process_settings():
            handle.result()  # it has ended, so there is nothing to wait for
