"""Keeps an engine process alive: notices its loss, ends what is left of it, starts it again.

A process that ends, falls silent or breaks the protocol is lost. Its requests fail with EngineLost
at once; then it is started again and told of the models again. Losses in a row, without a request
that finished in between, are waited out longer each time, and after some of them it gives up.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass

from ostinato.card import ModelSource
from ostinato.errors import BadInput, EngineClosed, EngineLost, OstinatoError
from ostinato.runtime.failure import said
from ostinato.runtime.remote.channel import READER_NAME, WRITER_NAME
from ostinato.runtime.remote.link import CLOSED, Link
from ostinato.runtime.remote.process import EngineHost

SUPERVISOR_NAME = "ostinato-remote-supervisor"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_LOOK_S = 0.05
_EXIT_S = 0.5  # between the end of a process's connection and of the process
_STOP_S = 30.0
_LAST_WORDS_S = 5.0
_OWN_THREADS = (SUPERVISOR_NAME, READER_NAME, WRITER_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How an engine process is watched.

    silence_s: seconds without a sign of life after which it is taken for hung. start_s: seconds
    that it has to come up in. max_losses: in a row, after which it is not started again.
    """

    silence_s: float = 20.0
    start_s: float = 120.0
    max_losses: int = 5

    def __post_init__(self) -> None:
        """Refuse what could not be kept."""
        for name in ("silence_s", "start_s"):
            value = getattr(self, name)
            if not 1.0 <= value <= 3600.0:
                raise BadInput(f"{name} is {value!r}; expected 1 to 3600 seconds")
        if self.max_losses < 0:
            raise BadInput(f"max_losses is {self.max_losses!r}; expected at least 0")


class Supervisor:
    """Used from any thread; restarts happen on its own."""

    def __init__(self, host: EngineHost, supervision: Supervision) -> None:
        """Start the process and wait until it answers; raises EngineLost."""
        self._host = host
        self._supervision = supervision
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._ended: Link | None = None  # the latest that has
        self._lost = False
        self._losses = 0
        self._last_loss = ""
        self._given_up: str | None = None
        self._closing = False
        self._sources: dict[str, ModelSource] = {}
        try:
            self._open()
        except BaseException:
            host.close()
            raise
        self._thread = threading.Thread(target=self._watch, name=SUPERVISOR_NAME, daemon=True)
        self._thread.start()

    @property
    def sources(self) -> dict[str, ModelSource]:
        """The models that every process is told of."""
        with self._changed:
            return dict(self._sources)

    def link(self) -> Link:
        """Return the link to the process, waiting for a restart; raises EngineClosed."""
        if os.getpid() != self._pid:
            raise EngineClosed("this engine belongs to the parent process; make one after the fork")
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._given_up or self._link)
            if self._closing or self._link is None:
                raise EngineClosed(CLOSED if self._closing else f"{self._given_up}")
            return self._link

    def remember(self, source: ModelSource) -> None:
        """Have the next process know a model that this one knows."""
        with self._changed:
            self._sources[source.card.model_id] = source

    def stop(self) -> None:
        """Close the engine, end the process, leave nothing; safe to call twice."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread().name in _OWN_THREADS:  # as the last reference was dropped
            threading.Thread(target=self._stop).start()
        else:
            self._stop()

    def _stop(self) -> None:
        self._thread.join()
        link = self._link
        if link is not None:
            self._part(link)
        self._host.close()
        if link is not None:
            link.end()
            link.join()

    def _part(self, link: Link) -> None:
        """Let the engine end our requests itself: each hears what became of it."""
        if not self._host.owned:
            link.finish(_LAST_WORDS_S)
            return
        link.stop()
        until = time.monotonic() + _STOP_S
        while time.monotonic() < until and not link.join(_LOOK_S):
            pass
        self._host.ended(_LAST_WORDS_S)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lost or self._closing)
                if self._closing:
                    return
            self._host.kill()
            if not self._restart():
                return

    def _restart(self) -> bool:
        """Start the process until it is up; False when that is given up."""
        while True:
            with self._changed:
                if self._losses > self._supervision.max_losses:
                    self._given_up = f"{self._last_loss}; it was lost {self._losses} times in a row"
                    self._changed.notify_all()
                    return False
                wait_s = min(_FIRST_WAIT_S * 2 ** (self._losses - 1), _LONGEST_WAIT_S)
                if self._changed.wait_for(lambda: self._closing, wait_s):
                    return False
                self._lost = False
            try:
                self._open()
            except Exception as error:  # also of a machine that has no room: who waits must hear
                with self._changed:
                    self._losses += 1
                    self._last_loss = (
                        str(error) if isinstance(error, OstinatoError) else said(error)
                    )
            else:
                return True

    def _open(self) -> None:
        """Have a process that knows our models; raises EngineLost or what it says to a model."""
        try:
            self._host.start()
            link = Link(
                self._host.connect(),
                explain=self._explain,
                start_s=self._supervision.start_s,
                silence_s=self._supervision.silence_s,
            )
        except BaseException:
            self._host.kill()
            raise
        try:
            self._await(link.welcome)
            for source in self.sources.values():
                self._await(link.add(source))
            with self._changed:
                if self._ended is link:
                    raise EngineLost(self._last_loss)
                self._link = link
                self._changed.notify_all()
        except BaseException:
            link.end()
            link.join()
            self._host.kill()
            raise

    def _await(self, answer: Future[None]) -> None:
        until = time.monotonic() + self._supervision.start_s
        while not wait([answer], _LOOK_S).done:
            if self._closing:
                raise EngineClosed(CLOSED)
            if (how := self._host.ended(0)) is not None:
                raise EngineLost(how)
            if time.monotonic() > until:
                raise EngineLost(
                    f"the engine process was not ready in {self._supervision.start_s:g} s"
                )
        answer.result()

    def _explain(self, link: Link, reason: str) -> OstinatoError | None:
        """Take note that a link has ended, before anybody who waits on it hears of that."""
        how = self._host.ended(_EXIT_S) or f"the engine process was given up: {reason}"
        with self._changed:
            self._ended, self._last_loss = link, how
            if link is self._link:
                self._link, self._lost = None, True
                self._losses = 1 if link.num_finished else self._losses + 1
                self._changed.notify_all()
            return None if self._closing else EngineLost(how)
