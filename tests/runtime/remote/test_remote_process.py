"""Real engine processes: killed, stopped, orphaned, closed; nothing of them is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from ostinato.errors import BadInput, EngineClosed, EngineLost
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import open_model
from ostinato.request import Cancelled, Finished, Progress
from ostinato.runtime import Engine, Handle
from ostinato.runtime.remote import RemoteEngine, Supervision
from ostinato.runtime.remote.process import OwnedProcess
from support.requests import request

WAIT_S = 300.0
MAX_POOLED = 16  # blocks that a pool keeps after waves of four small requests
LONG = {"num_frames": 96, "num_inference_steps": 50}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd and /proc are Linux")


def owned(engine: RemoteEngine) -> OwnedProcess:
    host = engine._supervisor._host
    assert isinstance(host, OwnedProcess)
    return host


def pid_of(engine: RemoteEngine) -> int:
    pid = owned(engine).pid
    assert pid is not None
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def held() -> tuple[list[str], int, int]:
    """What a process can leave behind: threads, descriptors, mapped blocks."""
    threads = sorted(t.name for t in threading.enumerate() if t.name.startswith("ostinato"))
    maps = Path("/proc/self/maps").read_text().count("ostinato-block")
    return threads, len(os.listdir("/proc/self/fd")), maps


@pytest.fixture
def nothing_left() -> Iterator[None]:
    wait_until(lambda: not any("remote" in name for name in held()[0]))  # of the test before
    before, shared = held(), set(os.listdir("/dev/shm"))
    yield
    wait_until(lambda: held() == before)
    assert held() == before
    assert set(os.listdir("/dev/shm")) <= shared


class Footprint(NamedTuple):
    """What the engine's process holds: threads, descriptors, and mapped blocks."""

    threads: int
    descriptors: int
    blocks: int

    @staticmethod
    def of(pid: int) -> Footprint:
        maps = Path(f"/proc/{pid}/maps").read_text().count("ostinato-block")
        tasks, files = os.listdir(f"/proc/{pid}/task"), os.listdir(f"/proc/{pid}/fd")
        return Footprint(len(tasks), len(files), maps)


def started(handle: Handle) -> None:
    for event in handle.events(WAIT_S):
        if isinstance(event, Progress):
            return


def test_a_killed_engine_is_a_typed_error_and_the_next_request_succeeds(
    tiny_builtin_folder: Path, nothing_left: None
) -> None:
    source, both = open_builtin(tiny_builtin_folder), ("video", "latents")
    with Engine() as here:
        here.add(source)
        right = here.run([request(outputs=both)])[0]
    with RemoteEngine() as engine:
        engine.add(source)
        handles = [engine.submit(request(**LONG)) for _ in range(2)]
        started(handles[0])
        first, folder = pid_of(engine), owned(engine).folder
        assert folder.stat().st_mode & 0o777 == 0o700
        os.kill(first, signal.SIGKILL)
        killed = time.monotonic()
        for handle in handles:
            with pytest.raises(EngineLost, match=rf"engine process {first} ended by SIGKILL"):
                handle.result(WAIT_S)
        assert time.monotonic() - killed < 2.0
        found = engine.run([request(outputs=both)])[0]
        assert torch.equal(found.latents, right.latents)
        assert np.array_equal(found.video.frames, right.video.frames)
        assert found.provenance.cpu_threads == right.provenance.cpu_threads
        running, second = engine.submit(request(**LONG)), pid_of(engine)
        assert second != first
    assert isinstance(list(running.events())[-1], Cancelled)
    assert not alive(second)
    assert not folder.exists()


def test_a_factory_that_fails_is_said_at_once(nothing_left: None) -> None:
    with pytest.raises(EngineLost, match="ended with exit code 1"):
        RemoteEngine("ostinato.runtime.engine:NoSuchEngine")


def test_a_path_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(BadInput, match="set TMPDIR"):
        RemoteEngine()
    assert list(deep.iterdir()) == []


@pytest.mark.slow
def test_a_hung_engine_is_noticed_and_replaced(
    tiny_builtin_folder: Path, nothing_left: None
) -> None:
    with RemoteEngine(supervision=Supervision(silence_s=10.0)) as engine:
        engine.add(open_builtin(tiny_builtin_folder))
        handle = engine.submit(request(**LONG))
        started(handle)
        stopped = pid_of(engine)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(EngineLost, match="nothing was heard for 10 s"):
            handle.result(WAIT_S)
        assert engine.run([request()])
        assert not alive(stopped)


@pytest.mark.slow
def test_an_engine_that_dies_at_every_start_is_given_up(
    tiny_builtin_folder: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RemoteEngine(supervision=Supervision(max_losses=1)) as engine:
        engine.add(open_builtin(tiny_builtin_folder))
        monkeypatch.setattr(owned(engine), "_factory", "ostinato.runtime.engine:NoSuchEngine")
        os.kill(pid_of(engine), signal.SIGTERM)
        wait_until(lambda: engine._supervisor._given_up is not None)
        with pytest.raises(EngineClosed, match="exit code 1; it was lost 2 times in a row"):
            engine.submit(request())


@pytest.mark.slow
def test_an_engine_ends_with_its_parent(nothing_left: None) -> None:
    script = (
        "import time\n"
        "from ostinato.runtime.remote import RemoteEngine\n"
        "engine = RemoteEngine()\n"
        "print(engine._supervisor._host.pid, engine.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().decode().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not alive(int(pid)))
    assert not Path(folder).exists()


@pytest.mark.slow
def test_nothing_is_left_after_many_requests_and_cancels(
    tiny_builtin_folder: Path, tiny_wan_folder: Callable[[str], Path], nothing_left: None
) -> None:
    builtin, wan = open_builtin(tiny_builtin_folder), open_model(tiny_wan_folder())  # type: ignore[call-arg]
    small = {"model": wan.card.model_id, "height": 16, "width": 16, "num_frames": 1}
    draw = random.Random(4)
    requests = [request(), request(num_frames=48), request(prompt="two dogs", **small)]
    with RemoteEngine() as engine:
        engine.add(builtin)
        engine.add(wan)

        def wave(size: int) -> set[type]:
            handles = [engine.submit(draw.choice(requests)) for _ in range(size)]
            for handle in handles[::2]:
                for _ in zip(range(draw.randint(0, 6)), handle.events(WAIT_S), strict=False):
                    pass
                handle.cancel()
            return {type(list(handle.events(WAIT_S))[-1]) for handle in handles}

        for _ in range(5):
            wave(4)
        pid, mine, theirs = pid_of(engine), held(), Footprint.of(pid_of(engine))
        ends = set[type]()
        for _ in range(50):
            ends |= wave(4)
        assert ends == {Finished, Cancelled}
        assert pid == pid_of(engine)
        assert wait_until(lambda: held()[:2] == mine[:2])
        assert wait_until(lambda: Footprint.of(pid)[:2] <= theirs[:2])
        assert max(held()[2], Footprint.of(pid).blocks) <= MAX_POOLED
