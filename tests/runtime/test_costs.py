"""What was measured outlives the process; a file that is no use is left alone and told of."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.report import describe_device
from ostinato.runtime import costs
from ostinato.runtime.costs import CostStore
from ostinato.work import CostKey, CostModel, OpWork

DEVICE = {"processor": "a processor", "threads": "1", "cores": "2", "torch": "2.13"}
KEY, WORK = CostKey("m/net", "predict", "latents=float32[1,2]", 1), OpWork(flops=1e9)


def learned() -> CostModel:
    model = CostModel()
    for seconds in (0.2, 0.3, 0.4):
        model.observe(KEY, WORK, seconds)
    return model


def saved(folder: Path) -> CostStore:
    store = CostStore(folder / "costs", DEVICE)
    store.save(learned())
    return store


def test_a_later_process_knows_what_was_measured(tmp_path: Path) -> None:
    saved(tmp_path)
    found = CostStore(tmp_path / "costs", DEVICE).load()
    assert found.note is None
    assert tuple(found.to_model().measured()) == tuple(learned().measured())
    assert [path.name for path in (tmp_path / "costs").iterdir()] == [saved(tmp_path).path.name]


def test_without_a_file_there_is_nothing_to_say(tmp_path: Path) -> None:
    found = CostStore(tmp_path / "none", DEVICE).load()
    assert found.note is None
    assert not tuple(found.to_model().measured())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("field", sorted(DEVICE))
def test_another_device_has_another_file(tmp_path: Path, field: str) -> None:
    store = saved(tmp_path)
    other = CostStore(tmp_path / "costs", {**DEVICE, field: "another"})
    assert other.path != store.path
    assert not tuple(other.load().to_model().measured())


def _changed(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def write(data: bytes) -> bytes:
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return write


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: data[: len(data) // 2], "does not decode"),
        (lambda data: b"", "does not decode"),
        (lambda data: b"\xff\xfe\x00", "does not decode"),
        (lambda data: b"[" * 100_000, "does not decode"),
        (_changed(lambda d: d.update(version=2)), "version 2, expected 1"),
        (_changed(lambda d: d.update(extra=1)), "nobody declares"),
        (_changed(lambda d: d.update(measured=7)), "does not decode"),
        (_changed(lambda d: d.update(device={"processor": "x"})), "another device"),
    ],
)
def test_a_file_that_is_no_use_is_told_of_and_written_anew(
    tmp_path: Path, damage: Callable[[bytes], bytes], why: str
) -> None:
    store = saved(tmp_path)
    damaged = damage(store.path.read_bytes())
    store.path.write_bytes(damaged)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = store.load()
    assert found.note is not None
    assert why in found.note
    assert str(store.path) in found.note
    assert not tuple(found.to_model().measured())
    assert store.path.read_bytes() == damaged
    store.save(learned())
    assert store.load().note is None


def test_a_folder_in_the_place_of_the_file_is_told_of(tmp_path: Path) -> None:
    store = CostStore(tmp_path, DEVICE)
    store.path.mkdir()
    assert store.load().note is not None


def test_durations_that_cannot_be_are_not_learned(tmp_path: Path) -> None:
    store = saved(tmp_path)
    text = store.path.read_text().replace("[0.2,0.3,0.4]", "[-1.0,0.0,0.4]")
    store.path.write_text(text)
    (entry,) = store.load().to_model().measured()
    assert entry.seconds == (0.4,)


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path)
    before = store.path.read_bytes()

    def full(value: object) -> bytes:
        raise OSError("no space left")

    monkeypatch.setattr(costs, "encode", full)
    with pytest.raises(OSError, match="no space"):
        store.save(CostModel())
    assert store.path.read_bytes() == before
    assert list(store.path.parent.iterdir()) == [store.path]


def test_a_file_keeps_the_newest_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MAX_ENTRIES", 3)
    model = CostModel()
    for index in range(5):
        model.observe(KEY._replace(op=f"op{index}"), WORK, 1.0)
    model.observe(KEY._replace(op="op0"), WORK, 1.0)
    store = CostStore(tmp_path, DEVICE)
    store.save(model)
    kept = [entry.key.op for entry in store.load().to_model().measured()]
    assert kept == ["op3", "op4", "op0"]


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = saved(tmp_path)
    monkeypatch.setattr(costs, "_MAX_BYTES", 10)
    assert "too large" in (store.load().note or "")


def test_this_process_keeps_its_file_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path))
    store = CostStore.of_this_process(3)
    assert store.path.parent == tmp_path / "costs"
    assert store.path == CostStore(tmp_path / "costs", describe_device(3)).path
    assert store.path != CostStore.of_this_process(4).path
