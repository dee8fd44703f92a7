"""What a running request has told its caller so far: advice, finished pieces, progress."""

from __future__ import annotations

from ostinato.program import ProgramState
from ostinato.request import GenerationSpec
from ostinato.runtime.handle import Handle
from ostinato.runtime.result import frames_of, read_only
from ostinato.runtime.selection import Selection
from ostinato.tasks import OutputName


class Delivery:
    """Tells each thing once, in order, on the device worker."""

    def __init__(self, handle: Handle, spec: GenerationSpec, selection: Selection) -> None:
        """Count the steps that there will be."""
        self.plans_left = selection.plans_by_node
        self.total, self.num_done = sum(self.plans_left.values()), 0
        self._handle, self._spec, self._video_slot = handle, spec, selection.video_slot
        self._advice: list[str] = []
        self._frames_told = 0

    @property
    def advice(self) -> tuple[str, ...]:
        """The sentences that were told."""
        return tuple(self._advice)

    def advise(self, note: str) -> None:
        """Tell a sentence that was not told before."""
        if note not in self._advice:
            self._advice.append(note)
            self._handle.tell_advice(note)

    def step_done(self, state: ProgramState, node: str, device_s: float) -> None:
        """Tell what the step that led to `state` brought.

        node: whose step it was. device_s: device-seconds of the request so far.
        """
        self.num_done += 1
        self.plans_left[node] -= 1
        for note in state.notes:
            self.advise(note)
        for piece in state.fresh:
            if piece.slot == self._video_slot:
                self._tell_frames(piece.index, piece.value)
        self._handle.tell_progress(node, self.num_done, self.total, device_s)

    def _tell_frames(self, index: int, value: object) -> None:
        """Tell a piece of the clip; the last one may hold more frames than were asked for."""
        frames = frames_of(value)[: self._spec.num_frames - self._frames_told]
        self._frames_told += len(frames)
        self._handle.tell_chunk(OutputName.VIDEO.value, index, read_only(frames))
