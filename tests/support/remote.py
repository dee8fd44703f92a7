"""An engine server on a thread, to test what lies between client and engine without a process."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from ostinato.errors import EngineLost
from ostinato.runtime.protocol import EngineProtocol
from ostinato.runtime.remote.serve import EngineServer


class ThreadHost:
    """Stands for an engine process: the same server at a socket pair, on a thread of this process.

    `lose` breaks the connection and gives up the engine, as the end of a process would. `fails`
    starts are refused.
    """

    owned = True

    def __init__(self, make: Callable[[], EngineProtocol]) -> None:
        self._make = make
        self.folder = Path(tempfile.gettempdir())
        self.num_starts = 0
        self.fails = 0
        self.failure: Exception = EngineLost("it would not start")
        self._end: str | None = None
        self._server: EngineServer | None = None
        self._thread = threading.Thread()
        self._connections: list[socket.socket] = []

    def start(self) -> None:
        self.num_starts += 1
        if self.fails:
            self.fails -= 1
            raise self.failure
        self._end = None
        self.address = tempfile.mkdtemp(prefix="ostinato-test-")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"{self.address}/engine.sock")
        listener.listen()
        self.engine = self._make()
        self._server = EngineServer(self.engine, listener)
        self._thread = threading.Thread(target=self._serve, args=(self._server, listener))
        self._thread.start()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(f"{self.address}/engine.sock")
        self._connections.append(connection.dup())
        return connection

    def lose(self, how: str = "it was lost") -> None:
        self._end = how
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)

    def ended(self, timeout_s: float) -> str | None:
        return self._end

    def kill(self) -> None:
        self._end = self._end or "it was killed"
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        if self._server is not None and self._thread.is_alive():
            self._server.stop()
            self._thread.join()
        self._server = None

    def close(self) -> None:
        self.kill()

    def _serve(self, server: EngineServer, listener: socket.socket) -> None:
        with listener:
            server.serve()
        os.unlink(f"{self.address}/engine.sock")
        os.rmdir(self.address)
