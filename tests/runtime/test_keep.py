"""What an engine measures is kept: from process to process, between engines, whatever the disk."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from ostinato.models.builtin.card import open_builtin
from ostinato.runtime import Engine
from ostinato.runtime.costs import CostStore
from ostinato.runtime.keep import MAX_NOTED, THREAD_NAME, CostKeeper
from ostinato.runtime.scheduler import UnitRecord
from ostinato.runtime.threads import kernel_threads
from ostinato.runtime.witness import Bystander
from ostinato.work import CostKey, CostModel, OpWork
from support.requests import request

DEVICE = {"processor": "a processor", "threads": "1"}
KEY, WORK = CostKey("m/net", "predict", "latents=float32[1,2]", 1), OpWork(flops=1e9)
OTHER = KEY._replace(op="decode")
WAIT_S = 60.0
# Predicts units of nodes, with no engine and no weight at hand.
_PREDICTS = """
import json, pathlib, sys
from ostinato.models.builtin.card import open_builtin
from ostinato.runtime.costs import CostStore
from ostinato.runtime.pricing import Pricing
from ostinato.runtime.resident import ResidentModel
from ostinato.runtime.resolve import resolve
from ostinato.runtime.threads import kernel_threads
from support.requests import request

model = ResidentModel(open_builtin(pathlib.Path(sys.argv[1])))
spec = resolve(
    model.card, request(num_frames=12, num_inference_steps=8, guidance_scale=1.0), "r1"
)
pricing = Pricing(CostStore.of_this_process(kernel_threads()).load().to_model(), 1)
print(json.dumps({node: pricing.total(model, spec, {node: 1}).seconds for node in sys.argv[2:]}))
assert not model.loaded
"""


Keeping = Callable[..., CostKeeper]


@pytest.fixture
def keeping() -> Iterator[Keeping]:
    """Return `keeping(store, every_s=...)`; every keeper is closed in the end."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(CostKeeper(*args, **options)))


def store_in(folder: Path) -> CostStore:
    return CostStore(folder / "costs", DEVICE)


def kept(store: CostStore) -> dict[CostKey, tuple[float, ...]]:
    return {entry.key: entry.seconds for entry in store.load().measured}


class Units(Bystander):
    """Seconds of units by node."""

    def __init__(self) -> None:
        self.took = dict[str, list[float]]()

    def executed(self, unit: UnitRecord) -> None:
        self.took.setdefault(unit.nodes[0], []).append(unit.device_s)


def test_a_second_process_predicts_what_the_first_measured(
    tiny_builtin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OSTINATO_NUM_THREADS", "1")
    store, units = CostStore.of_this_process(kernel_threads()), Units()
    with Engine(costs=store, witness=units) as engine:
        engine.add(open_builtin(tiny_builtin_folder))
        engine.run([request(num_frames=12, num_inference_steps=8, guidance_scale=1.0)])
    command = [sys.executable, "-c", _PREDICTS, str(tiny_builtin_folder), *units.took]
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    second = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert second.returncode == 0, second.stderr
    predicted = json.loads(second.stdout.splitlines()[-1])
    # What a unit takes beside its calls and its `advance` is in one number and not in the other.
    assert predicted == {
        node: pytest.approx(statistics.median(took), rel=0.05, abs=2e-4)
        for node, took in units.took.items()
    }


def test_an_engine_begins_with_what_the_last_one_kept(tmp_path: Path, keeping: Keeping) -> None:
    store = store_in(tmp_path)
    first = keeping(store)
    for seconds in (0.2, 0.3, 0.4):
        first.costs.observe(KEY, WORK, seconds)
    first.close()
    assert kept(store) == {KEY: (0.2, 0.3, 0.4)}
    second = keeping(store)
    assert second.costs.predict(KEY, WORK) == first.costs.predict(KEY, WORK) == 0.3
    before = store.path.stat().st_mtime_ns
    second.close()
    assert store.path.stat().st_mtime_ns == before  # nothing new, nothing written


def test_engines_that_share_a_file_add_to_each_other(tmp_path: Path, keeping: Keeping) -> None:
    store = store_in(tmp_path)
    one, other = keeping(store), keeping(store_in(tmp_path))
    one.costs.observe(KEY, WORK, 0.2)
    other.costs.observe(OTHER, WORK, 0.7)
    one.costs.observe(KEY, WORK, 0.3)
    one.close()
    other.close()
    assert kept(store) == {KEY: (0.2, 0.3), OTHER: (0.7,)}


def test_a_file_that_many_write_at_once_is_whole(tmp_path: Path, keeping: Keeping) -> None:
    keepers = [keeping(store_in(tmp_path)) for _ in range(6)]
    keys = [KEY._replace(op=f"op{index}") for index in range(len(keepers))]

    def work(keeper: CostKeeper, key: CostKey) -> None:
        for _ in range(10):
            keeper.costs.observe(key, WORK, 0.2)
            keeper.save()
            assert store_in(tmp_path).load().note is None

    threads = [threading.Thread(target=work, args=pair) for pair in zip(keepers, keys, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(kept(store_in(tmp_path))) <= set(keys)
    assert [path.suffix for path in (tmp_path / "costs").iterdir()] == [".json"]


def test_a_long_lived_engine_keeps_every_so_often(tmp_path: Path, keeping: Keeping) -> None:
    keeper = keeping(store_in(tmp_path), every_s=0.01)
    keeper.costs.observe(KEY, WORK, 0.2)
    until = time.monotonic() + WAIT_S
    while not kept(store_in(tmp_path)) and time.monotonic() < until:
        time.sleep(0.01)
    assert kept(store_in(tmp_path)) == {KEY: (0.2,)}
    keeper.close()
    keeper.close()
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


def test_no_more_is_noted_than_a_moment_learns(tmp_path: Path, keeping: Keeping) -> None:
    keeper = keeping(store_in(tmp_path))
    for index in range(MAX_NOTED + 1):
        keeper.costs.observe(KEY if index else OTHER, WORK, 0.2)
    keeper.close()
    assert kept(store_in(tmp_path)).keys() == {KEY}


def test_a_damaged_file_is_told_of_and_replaced(tmp_path: Path, keeping: Keeping) -> None:
    store = store_in(tmp_path)
    store.save(CostModel())
    store.path.write_bytes(b"{")
    with pytest.warns(RuntimeWarning, match="measured anew"):
        keeper = keeping(store)
    keeper.costs.observe(KEY, WORK, 0.2)
    keeper.close()
    assert kept(store) == {KEY: (0.2,)}


@pytest.mark.parametrize("strict", [False, True])
def test_a_folder_that_takes_no_file_fails_no_request(
    tiny_builtin_folder: Path, tmp_path: Path, strict: bool
) -> None:
    (tmp_path / "costs").write_text("in the way")  # root may write in any folder
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("error" if strict else "always")
        for _ in range(2):
            with Engine(costs=store_in(tmp_path)) as engine:
                engine.add(open_builtin(tiny_builtin_folder))
                assert engine.submit(request()).result(timeout_s=WAIT_S).video.frames.size
    messages = [str(warning.message) for warning in told]
    assert len([message for message in messages if "cannot be kept" in message]) == (
        0 if strict else 2
    )


def test_a_failing_write_is_told_of_once(tmp_path: Path, keeping: Keeping) -> None:
    store = store_in(tmp_path)
    keeper = keeping(store)
    (tmp_path / "costs").write_text("in the way")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seconds in (0.2, 0.3):
            keeper.costs.observe(KEY, WORK, seconds)
            keeper.save()
    assert len(told) == 1
    assert "cannot be kept" in str(told[0].message)
    (tmp_path / "costs").unlink()
    keeper.costs.observe(KEY, WORK, 0.4)
    keeper.close()
    assert kept(store) == {KEY: (0.2, 0.3, 0.4)}  # none is lost by a write that failed


def test_an_engine_keeps_what_it_measures_only_where_it_is_told_to(
    tiny_builtin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    for store in (None, store_in(tmp_path)):
        with Engine(costs=store) as engine:
            engine.add(open_builtin(tiny_builtin_folder))
            engine.submit(request()).result(timeout_s=WAIT_S)
    assert not (tmp_path / "cache").exists()
    assert {key.component for key in kept(store_in(tmp_path))} >= {"builtin/rollout"}


def test_an_engine_that_nobody_closed_keeps_what_it_measured(
    tiny_builtin_folder: Path, tmp_path: Path
) -> None:
    engine = Engine(costs=store_in(tmp_path))
    engine.add(open_builtin(tiny_builtin_folder))
    engine.submit(request()).result(timeout_s=WAIT_S)
    del engine
    until = time.monotonic() + WAIT_S
    while not kept(store_in(tmp_path)) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert kept(store_in(tmp_path))
