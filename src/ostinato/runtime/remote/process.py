"""Where an engine process is: one that this process starts and owns, or one that another does."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Protocol

import torch

from ostinato.errors import BadInput, EngineLost

SOCKET_NAME = "engine.sock"
_BACKLOG = 64
_LONGEST_ADDRESS = 107  # bytes of sun_path, less the final zero: unix(7)
# The child finds modules where its parent does, whatever the parent did to its path.
_CHILD = (
    "import sys; sys.path[:] = sys.argv[5:]; "
    "from ostinato.runtime.remote.serve import main; main(sys.argv[1:5])"
)


class EngineHost(Protocol):
    """Brings an engine process up and down."""

    def start(self) -> None:
        """Have a process running; raises EngineLost."""
        ...

    def connect(self) -> socket.socket:
        """Connect to it; raises EngineLost."""
        ...

    def ended(self, timeout_s: float) -> str | None:
        """Say how the process ended, None when it has not after so many seconds."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...

    @property
    def folder(self) -> Path:
        """Where the socket lies."""
        ...

    @property
    def owned(self) -> bool:
        """Whether the engine is closed when we are."""
        ...


class OwnedProcess:
    """A child process, and the private folder with the socket that it listens at.

    The socket is made here and handed down, so a client that comes while the process is restarted
    waits in line. The child reads the other end of our pipe: when we are gone, it ends.
    """

    def __init__(self, factory: str) -> None:
        """factory: import string of `() -> Engine`. Raises BadInput for too long a path."""
        self._factory = factory
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="ostinato-engine-"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(_address(self.folder))
            self._listener.listen(_BACKLOG)
        except BaseException:
            self.close()
            raise

    @property
    def owned(self) -> bool:
        """It is ours."""
        return True

    @property
    def pid(self) -> int | None:
        """The id of the running process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the child; raises EngineLost when the system refuses."""
        number = self._listener.fileno()
        arguments = [str(self.folder), str(number), str(torch.get_num_threads()), self._factory]
        paths = [path or os.getcwd() for path in sys.path]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD, *arguments, *paths],
                stdin=subprocess.PIPE,
                pass_fds=[number],
                start_new_session=True,  # an interrupt at the terminal is ours to handle
            )
        except OSError as error:
            raise EngineLost(f"the engine process cannot be started: {error}") from error

    def connect(self) -> socket.socket:
        """Connect to our own socket; the child will answer."""
        return _connected(self.folder)

    def ended(self, timeout_s: float) -> str | None:
        """Say how the child ended."""
        process = self._process
        if process is None:
            return "the engine process was not started"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return f"the engine process {process.pid} ended {how}"

    def kill(self) -> None:
        """End the child with SIGKILL and reap it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def close(self) -> None:
        """End the child when it still runs, and remove the folder."""
        self.kill()
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class OtherProcess:
    """The engine process of another owner, found by its folder."""

    def __init__(self, folder: Path) -> None:
        """folder: that of an `OwnedProcess`."""
        self.folder = folder

    @property
    def owned(self) -> bool:
        """It is not ours."""
        return False

    def start(self) -> None:
        """Nothing to do: its owner starts it."""

    def connect(self) -> socket.socket:
        """Connect; raises EngineLost when nobody listens."""
        return _connected(self.folder)

    def ended(self, timeout_s: float) -> str | None:
        """Nothing is known of another's child but what its socket says."""
        return None

    def kill(self) -> None:
        """Not ours to end."""

    def close(self) -> None:
        """Nothing is ours."""


def _connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(_address(folder))
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):
            raise EngineLost(f"no engine process listens in {folder}: {error}") from error
        raise
    return connection


def _address(folder: Path) -> str:
    address = str(folder / SOCKET_NAME)
    if len(os.fsencode(address)) > _LONGEST_ADDRESS:
        raise BadInput(
            f"{address!r} is too long for a socket; set TMPDIR to a folder with a shorter path"
        )
    return address


def watch_parent(parent: int, folder: Path) -> None:
    """End this process once its parent has gone: our standard input then is at its end.

    A child that the parent forked may hold the pipe, so the parent's id is looked at as well.
    """
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while os.getppid() == parent:
        if poll.poll(1000) and not os.read(0, 1):
            break
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)
    os._exit(1)
