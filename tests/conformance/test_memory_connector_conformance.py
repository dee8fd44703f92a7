"""The in-memory connector of tests passes the connector suite."""

from __future__ import annotations

from conformance.connector import ConnectorSuite
from conformance.memory_connector import MemoryConnector, TransferRefused
from conformance.transfers import Connector, TransferKey


class TestMemoryConnectorConformance(ConnectorSuite):
    error = TransferRefused

    def connect(self) -> MemoryConnector:
        return MemoryConnector()

    def corrupt(self, connector: Connector, key: TransferKey, name: str) -> None:
        assert isinstance(connector, MemoryConnector)
        connector.held[key][1][name][3] ^= 1
