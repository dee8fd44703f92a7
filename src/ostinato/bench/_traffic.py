"""Random traffic over small models of two families: most ends well, much does not.

Every way to fail is one that a user can meet: a deadline that passes, latents that overflow, a
weights file that is gone, a disk that fails while a clip is written, no room for a stack. Every
other wave is of equal shapes and queued before any of it runs, so that its requests share forwards;
what befalls them then, befalls them inside of one that holds them all.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ostinato.backend.loading import process_settings
from ostinato.bench._fates import IN_STACKS, SHARES, Fate, Tally, end_of
from ostinato.bench._stacks import (
    Stacks,
    WatchedBuiltinTransformer,
    WatchedWanTransformer,
    watch,
    with_denoiser,
)
from ostinato.errors import OutputNotWritten
from ostinato.media import Video
from ostinato.models.builtin.tiny import write_tiny_builtin
from ostinato.models.registry import open_model
from ostinato.models.wan.tiny import write_tiny_wan
from ostinato.request import Cancelled, Failed, Finished, LatentPart, Request
from ostinato.runtime import Engine, Handle, Output, ResidentModel
from ostinato.tasks import OutputName, TaskType

WAIT_S = 120.0
_LATE_S = 1e-6
_HUGE = 3e38  # finite in float32; a sum of two is not
_MAX_EVENTS_BEFORE_CANCEL = 8
_SUFFIXES = (".mp4", ".gif", ".png")
# Of the plain requests: those without guidance, and the one that has an overflowing sister.
_ONE_CALL_A_STEP, _OVERFLOWING = (0, 3), 3
_STACKED = 64  # pixels of Wan's side: 16 tokens, as many rows as any processor was seen to need


class Traffic:
    """An engine with small models, and a seeded source of requests to it."""

    def __init__(self, engine: Engine, folder: Path, seed: int) -> None:
        """Write the models into `folder`, and make each plain request once."""
        self._engine = engine
        self._random = random.Random(seed)
        self.clips = folder / "clips"
        self.clips.mkdir()
        builtin = write_tiny_builtin(folder / "builtin", seed)
        unreadable = write_tiny_builtin(folder / "unreadable", seed)
        wan = write_tiny_wan(folder / "wan", seed=seed)
        sources = [
            with_denoiser(open_model(builtin), WatchedBuiltinTransformer),
            with_denoiser(open_model(wan), WatchedWanTransformer),
            open_model(unreadable),
        ]
        self.residents: Sequence[ResidentModel] = [engine.add(source) for source in sources]
        for weights in (unreadable / "transformer").glob("*.safetensors"):
            weights.unlink()
        names = [str(source.card.model_id) for source in sources]
        self._plain = _plain_requests(names[0], names[1])
        self._overflowing = _overflowing(self._plain[-1])
        self._unreadable = replace(self._plain[0], model=names[2])
        self._right = [_digest(engine.submit(r).result(WAIT_S)) for r in self._plain]
        self._stacks = Stacks()
        for model in self.residents[:2]:
            watch(model, self._stacks)
        self._num_waves = 0
        self.tally = Tally()

    def wave(self, num_requests: int) -> int:
        """Submit some requests at once and see all to their end.

        Returns how many things they still hold.
        """
        self._num_waves += 1
        if self._num_waves % 2 == 0 and num_requests > 1:
            return self._stacked_wave(num_requests)
        waiting = [self._submit() for _ in range(num_requests)]
        # Whom to cancel first, while the others still run beside them.
        waiting.sort(key=lambda entry: entry[0] is not Fate.CANCELLED)
        held = 0
        for fate, which, handle in waiting:
            self._see_to_the_end(fate, which, handle)
            held += handle.num_held
        return held

    def _stacked_wave(self, num_requests: int) -> int:
        """Have something happen inside a stack of some requests, to one of them or to all."""
        fate = IN_STACKS[self._num_waves // 2 % len(IN_STACKS)]
        which, victim = self._random.choice(_ONE_CALL_A_STEP), self._random.randrange(num_requests)
        if fate is Fate.OVERFLOWING_IN_STACK:
            which = _OVERFLOWING
        requests = [self._plain[which]] * num_requests
        if fate is Fate.OVERFLOWING_IN_STACK:
            requests[victim] = self._overflowing
        with process_settings():  # no turn is taken before all are queued
            handles = [self._engine.submit(request) for request in requests]
            acts = {
                Fate.CANCELLED_IN_STACK: handles[victim].cancel,
                Fate.NO_ROOM_FOR_STACK: _no_room,
            }
            self._stacks.arm(num_requests, acts.get(fate, _nothing))
        for index, handle in enumerate(handles):
            self._see_to_the_end(fate if index == victim else Fate.PLAIN, which, handle)
        self.tally.in_stacks[fate] += self._stacks.disarm()
        return sum(handle.num_held for handle in handles)

    def settle(self) -> None:
        """Serve the same request once more: pools of threads are then as that one leaves them."""
        self._engine.submit(self._plain[-1]).result(WAIT_S)

    def stray_files(self) -> list[str]:
        """Return the names of files that nobody asked for."""
        kept = {f"clip{suffix}" for suffix in _SUFFIXES}
        return sorted(path.name for path in self.clips.iterdir() if path.name not in kept)

    def _submit(self) -> tuple[Fate, int, Handle]:
        fates, shares = zip(*SHARES, strict=True)
        fate = self._random.choices(fates, shares)[0]
        which = self._random.randrange(len(self._plain))
        request = replace(self._plain[which], priority=self._random.randint(-1, 1))
        if fate is Fate.LATE:
            request = replace(request, deadline_s=_LATE_S)
        elif fate is Fate.OVERFLOWING:
            request = self._overflowing
        elif fate is Fate.UNREADABLE:
            request = self._unreadable
        return fate, which, self._engine.submit(request)

    def _see_to_the_end(self, fate: Fate, which: int, handle: Handle) -> None:
        if fate is Fate.CANCELLED:
            self._cancel(handle)
        *_, final = handle.events(WAIT_S)
        assert isinstance(final, Finished | Failed | Cancelled)
        self.tally.ends[fate, end_of(final)] += 1
        if isinstance(final, Finished):
            output = handle.result()
            self.tally.stacked_steps += output.provenance.stacked_steps
            self.tally.threads[output.provenance.model_id] = output.provenance.cpu_threads
            self.tally.wrong_outputs += _digest(output) != self._right[which]
            if fate in (Fate.SAVED, Fate.TORN):
                self._save(output.video, torn=fate is Fate.TORN)

    def _cancel(self, handle: Handle) -> None:
        """Cancel when some number of events have come, none among them."""
        events = self._random.randint(0, _MAX_EVENTS_BEFORE_CANCEL)
        for _ in zip(range(events), handle.events(WAIT_S), strict=False):
            pass
        handle.cancel()

    def _save(self, video: Video, *, torn: bool) -> None:
        path = self.clips / f"clip{self._random.choice(_SUFFIXES[:2] if torn else _SUFFIXES)}"
        if not torn:
            video.save(path)
            return
        try:
            Video(frames=video.frames.view(_Torn), fps=video.fps).save(path)
        except OutputNotWritten:
            return
        raise AssertionError("a clip was written from frames that cannot be read")


def _no_room() -> None:
    raise MemoryError("no room for a stack")


def _nothing() -> None:
    """Happen, and do nothing: the request brought its fault along."""


class _Torn(np.ndarray):
    """Frames that cannot be read to the end, such as those of a mapped file that was cut."""

    def __iter__(self) -> Iterator[np.ndarray]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield from np.asarray(self)[: len(self) // 2]
        raise OSError("the rest is gone")


def _plain_requests(builtin: str, wan: str) -> tuple[Request, ...]:
    """Return requests that end well; the last is of Wan."""
    base = Request(
        model=builtin,
        task=TaskType.TEXT_TO_VIDEO,
        prompt="a red circle bouncing on a navy background",
        outputs=(OutputName.VIDEO, OutputName.LATENTS),
    )
    small = replace(base, model=wan, height=16, width=16, num_frames=1, num_inference_steps=1)
    return (
        replace(base, num_frames=24, num_inference_steps=1, guidance_scale=1.0, seed=1),
        replace(base, num_frames=12, num_inference_steps=2, guidance_scale=2.0, seed=2),
        replace(small, num_inference_steps=2, guidance_scale=4.0, seed=3),
        replace(small, guidance_scale=1.0, seed=4, height=_STACKED, width=_STACKED),
    )


def _overflowing(request: Request) -> Request:
    """Return a request of Wan whose first step overflows."""
    latents = torch.full((1, 16, 1, _STACKED // 8, _STACKED // 8), _HUGE)
    return replace(request, inputs=(LatentPart(latents=latents),))


def _digest(output: Output) -> str:
    found = hashlib.sha256(output.video.frames.tobytes())
    found.update(output.latents.numpy().tobytes())
    return found.hexdigest()
