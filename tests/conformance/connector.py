"""The suite that every connector passes: named tensors, from one engine to another, unharmed.

The transports themselves are of a later issue; until then the protocol that they implement stands
in `conformance.transfers`, and the suite's subject is the in-memory connector of tests,
`conformance.memory_connector`.

    class TestMyConnector(ConnectorSuite):
        def connect(self): return MyConnector(...)
        def corrupt(self, connector, key, name): ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch

from conformance.transfers import (
    DTYPES,
    Connector,
    TransferKey,
    describe,
    equal,
    faulty,
    payload,
    tensor_bytes,
)
from ostinato.errors import OstinatoError


class ConnectorSuite:
    """What is asked of a connector. error: the root of its typed refusals."""

    error: ClassVar[type[OstinatoError]] = OstinatoError

    def connect(self) -> Connector:
        """Return an open connector with nothing in it."""
        raise NotImplementedError

    def corrupt(self, connector: Connector, key: TransferKey, name: str) -> None:
        """Change one byte of a published tensor where the transport keeps it."""
        raise NotImplementedError

    @pytest.fixture
    def connector(self) -> Iterator[Connector]:
        """Return a connector that is closed afterwards."""
        made = self.connect()
        yield made
        made.close()

    def send(
        self, connector: Connector, name: str, version: int, seed: int
    ) -> tuple[TransferKey, dict[str, torch.Tensor]]:
        """Publish seeded tensors."""
        key, tensors = TransferKey(name, version), payload(seed)
        connector.publish(describe(key, tensors), tensors)
        return key, tensors

    def refused(self) -> pytest.RaisesExc[OstinatoError]:
        """Expect a typed refusal that says something."""
        return pytest.RaisesExc(self.error, match=r".{10,}")

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_bytes_arrive_as_they_were_sent(self, connector: Connector, dtype: torch.dtype) -> None:
        key, tensors = TransferKey("kv", 0), payload(1, dtype)
        connector.publish(describe(key, tensors), tensors)
        assert equal(connector.receive(key), tensors)

    def test_what_no_number_equals_arrives_too(self, connector: Connector) -> None:
        """NaN with its payload, both zeros and infinity: bytes, not values."""
        bits = torch.tensor([0x7FC0_0001, -0x7FFF_FFFF - 1, 0x7F80_0000, 0], dtype=torch.int32)
        tensors = {"odd": bits.view(torch.float32)}
        key = TransferKey("odd", 0)
        connector.publish(describe(key, tensors), tensors)
        assert equal(connector.receive(key), tensors)

    def test_no_tensors_are_a_transfer_too(self, connector: Connector) -> None:
        key = TransferKey("nothing", 0)
        connector.publish(describe(key, {}), {})
        assert dict(connector.receive(key)) == {}
        connector.release(key)

    def test_order_of_arrival_does_not_matter(self, connector: Connector) -> None:
        sent = [self.send(connector, name, 0, seed) for seed, name in enumerate("dbca")]
        for key, tensors in reversed(sent):
            assert equal(connector.receive(key), tensors)
        key, tensors = TransferKey("turned", 0), payload(9)
        connector.publish(describe(key, tensors), dict(reversed(tensors.items())))
        assert equal(connector.receive(key), tensors)

    def test_versions_are_not_mixed(self, connector: Connector) -> None:
        sent = [self.send(connector, "weights", version, version) for version in (2, 1, 3)]
        for key, tensors in sent:
            assert equal(connector.receive(key), tensors)
        connector.release(sent[0][0])
        with self.refused():
            connector.receive(sent[0][0])
        assert equal(connector.receive(sent[1][0]), sent[1][1])
        with self.refused():
            connector.receive(TransferKey("weights", 4))

    def test_a_version_is_published_once(self, connector: Connector) -> None:
        key, tensors = self.send(connector, "weights", 1, seed=1)
        other = payload(2)
        with self.refused():
            connector.publish(describe(key, other), other)
        assert equal(connector.receive(key), tensors)

    def test_what_is_sent_is_a_copy(self, connector: Connector) -> None:
        """The sender goes on to write, and so may a receiver."""
        key, tensors = self.send(connector, "kv", 0, seed=1)
        expected = payload(1)
        for tensor in tensors.values():
            tensor.zero_()
        received = connector.receive(key)
        assert equal(received, expected)
        for tensor in received.values():
            tensor.zero_()
        assert equal(connector.receive(key), expected)

    @pytest.mark.parametrize("fault", ["missing", "surplus", "shape", "dtype", "digest", "twice"])
    def test_what_the_manifest_does_not_describe_is_refused(
        self, connector: Connector, fault: str
    ) -> None:
        """At once or on arrival; either way nobody gets it, and nothing of it stays."""
        key, tensors = TransferKey("kv", 0), payload(1)
        manifest, given = faulty(describe(key, tensors), tensors, fault)
        with self.refused():
            connector.publish(manifest, given)
            connector.receive(key)
        if connector.num_bytes:
            connector.release(key)
        assert connector.num_bytes == 0

    def test_a_corrupted_payload_is_refused(self, connector: Connector) -> None:
        """By its digest, each time it is asked for; others still arrive."""
        key, tensors = self.send(connector, "kv", 0, seed=1)
        whole, others = self.send(connector, "kv", 1, seed=2)
        assert equal(connector.receive(key), tensors)
        self.corrupt(connector, key, "matrix")
        for _ in range(2):
            with self.refused() as caught:
                connector.receive(key)
            assert "matrix" in str(caught.value)
        assert equal(connector.receive(whole), others)

    def test_what_was_never_sent_is_refused(self, connector: Connector) -> None:
        for use in (connector.receive, connector.release):
            with self.refused():
                use(TransferKey("nobody", 0))

    def test_release_is_once(self, connector: Connector) -> None:
        key, _ = self.send(connector, "kv", 0, seed=1)
        connector.release(key)
        for use in (connector.release, connector.receive):
            with self.refused():
                use(key)

    def test_what_was_received_outlives_its_release(self, connector: Connector) -> None:
        key, tensors = self.send(connector, "kv", 0, seed=1)
        received = connector.receive(key)
        connector.release(key)
        self.send(connector, "kv", 1, seed=2)
        assert equal(received, tensors)

    def test_bytes_held_are_counted(self, connector: Connector) -> None:
        size = sum(len(tensor_bytes(tensor)) for tensor in payload(1).values())
        keys = [self.send(connector, "kv", version, seed=version)[0] for version in range(3)]
        assert connector.num_bytes >= 3 * size
        for key in keys:
            held = connector.num_bytes
            connector.release(key)
            assert held - connector.num_bytes >= size
        assert connector.num_bytes == 0

    def test_closing_frees_everything_and_ends_use(self, connector: Connector) -> None:
        key, _ = self.send(connector, "kv", 0, seed=1)
        connector.close()
        connector.close()
        assert connector.num_bytes == 0
        for use in (connector.receive, connector.release):
            with self.refused():
                use(key)
        with self.refused():
            self.send(connector, "kv", 1, seed=2)

    def test_two_connectors_share_nothing(self, connector: Connector) -> None:
        other = self.connect()
        key, _ = self.send(connector, "kv", 0, seed=1)
        with self.refused():
            other.receive(key)
        other.close()
        assert equal(connector.receive(key), payload(1))

    def test_nothing_is_pickled(
        self, connector: Connector, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A pickle that is read runs code: neither end may make or read one."""

        def refuse(*args: object, **options: object) -> object:
            raise AssertionError("a transport pickles")

        for module in [m for name, m in sys.modules.items() if name in ("pickle", "_pickle")]:
            for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
                monkeypatch.setattr(module, name, refuse)
        monkeypatch.setattr(torch, "save", refuse)
        monkeypatch.setattr(torch, "load", refuse)
        key, tensors = self.send(connector, "kv", 0, seed=1)
        assert equal(connector.receive(key), tensors)
