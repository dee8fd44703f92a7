"""Every test of the connector suite fails on a connector that breaks what it is about."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping

import pytest
import torch

from conformance.biting import bites, suite_tests
from conformance.connector import ConnectorSuite
from conformance.memory_connector import MemoryConnector, TransferRefused
from conformance.transfers import Connector, Manifest, TensorEntry, TransferKey


class Casts(MemoryConnector):
    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        return {n: t.to(torch.bfloat16).float() for n, t in super().receive(key).items()}


class MendsNumbers(MemoryConnector):
    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        return {n: torch.nan_to_num(t) for n, t in super().receive(key).items()}


class NeedsTensors(MemoryConnector):
    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        if not tensors:
            raise TransferRefused("there is nothing to send in this transfer")
        super().publish(manifest, tensors)


class FirstInFirstOut(MemoryConnector):
    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        return super().receive(next(iter(self.held)))


class NewestVersion(MemoryConnector):
    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        return super().receive(max(held for held in self.held if held.name == key.name))


class Replaces(MemoryConnector):
    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        self.held.pop(manifest.key, None)
        super().publish(manifest, tensors)


class Lends(MemoryConnector):
    """Hands the sender's own tensors on."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: dict[TransferKey, Mapping[str, torch.Tensor]] = {}

    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        super().publish(manifest, tensors)
        self.lent[manifest.key] = tensors

    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        return dict(self.lent[key])


class Trusts(MemoryConnector):
    """Looks at no manifest and no digest; drops what was not listed."""

    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        given = [entry for entry in manifest.entries if entry.name in tensors]
        trusted = Manifest(key=manifest.key, entries=tuple(given))
        super().publish(trusted, {entry.name: tensors[entry.name] for entry in given})

    def require_described(self, entry: TensorEntry, tensor: torch.Tensor) -> None:
        return

    def require_whole(self, key: TransferKey, entry: TensorEntry, data: bytes | bytearray) -> None:
        return


class Forgives(MemoryConnector):
    """Takes any key for one that is there."""

    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        return super().receive(key) if key in self.held else {}

    def release(self, key: TransferKey) -> None:
        self.held.pop(key, None)


class TakesBack(MemoryConnector):
    """Frees memory that a receiver still looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[torch.Tensor] = []

    def receive(self, key: TransferKey) -> Mapping[str, torch.Tensor]:
        received = super().receive(key)
        self.out += received.values()
        return received

    def release(self, key: TransferKey) -> None:
        super().release(key)
        for tensor in self.out:
            tensor.zero_()


class Leaks(MemoryConnector):
    def __init__(self) -> None:
        super().__init__()
        self.high_water = 0

    @property
    def num_bytes(self) -> int:
        self.high_water = max(self.high_water, super().num_bytes)
        return self.high_water


class StaysOpen(MemoryConnector):
    def close(self) -> None:
        return


class SharesItsStore(MemoryConnector):
    def __init__(self, held: dict[TransferKey, tuple[Manifest, dict[str, bytearray]]]) -> None:
        super().__init__()
        self.held = held


class Saves(MemoryConnector):
    def publish(self, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
        torch.save(dict(tensors), io.BytesIO())
        super().publish(manifest, tensors)


CONNECTOR_FAULTS: dict[str, type[MemoryConnector]] = {
    "test_bytes_arrive_as_they_were_sent": Casts,
    "test_what_no_number_equals_arrives_too": MendsNumbers,
    "test_no_tensors_are_a_transfer_too": NeedsTensors,
    "test_order_of_arrival_does_not_matter": FirstInFirstOut,
    "test_versions_are_not_mixed": NewestVersion,
    "test_a_version_is_published_once": Replaces,
    "test_what_is_sent_is_a_copy": Lends,
    "test_what_the_manifest_does_not_describe_is_refused": Trusts,
    "test_a_corrupted_payload_is_refused": Trusts,
    "test_what_was_never_sent_is_refused": Forgives,
    "test_release_is_once": Forgives,
    "test_what_was_received_outlives_its_release": TakesBack,
    "test_bytes_held_are_counted": Leaks,
    "test_closing_frees_everything_and_ends_use": StaysOpen,
    "test_two_connectors_share_nothing": SharesItsStore,
    "test_nothing_is_pickled": Saves,
}


class Broken(ConnectorSuite):
    """Makes connectors of one faulty kind; those that share a store share this suite's."""

    error = TransferRefused

    def __init__(self, kind: type[MemoryConnector]) -> None:
        self.kind = kind
        self.held: dict[TransferKey, tuple[Manifest, dict[str, bytearray]]] = {}

    def connect(self) -> MemoryConnector:
        return self.kind(self.held) if self.kind is SharesItsStore else self.kind()  # type: ignore[call-arg]

    def corrupt(self, connector: Connector, key: TransferKey, name: str) -> None:
        assert isinstance(connector, MemoryConnector)
        connector.held[key][1][name][3] ^= 1


ARGUMENTS = {"dtype": (torch.float64, torch.int8), "fault": ("missing", "surplus", "digest")}


def test_every_test_of_the_connector_suite_has_a_fault() -> None:
    assert set(CONNECTOR_FAULTS) == suite_tests(ConnectorSuite)


@pytest.mark.parametrize("name", CONNECTOR_FAULTS)
def test_the_connector_suite_bites(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Broken(CONNECTOR_FAULTS[name])
    test: Callable[..., object] = getattr(suite, name)
    taken = inspect.signature(test).parameters
    given: dict[str, object] = {"connector": suite.connect()}
    if "monkeypatch" in taken:
        given["monkeypatch"] = monkeypatch
    (varied,) = [n for n in ARGUMENTS if n in taken] or [""]
    for value in ARGUMENTS.get(varied, (None,)):
        case = {**given, "connector": suite.connect()} | ({varied: value} if varied else {})
        bites(lambda case=case: test(**case))
