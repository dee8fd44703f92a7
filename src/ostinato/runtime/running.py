"""One running request: its program, its state, its scope, and what it has delivered so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ostinato.errors import DeadlineExceeded, InternalError, NonFinite, OstinatoError
from ostinato.loop.contract import Done, LoopContext, Ring
from ostinato.loop.driver import run_plan
from ostinato.loop.noise import NoiseStream
from ostinato.media import Video
from ostinato.program import LoopNode, Node, Program, ProgramRun, ProgramState
from ostinato.request import CancelScope, GenerationSpec
from ostinato.runtime.handle import Handle
from ostinato.runtime.output import Output, Provenance
from ostinato.runtime.policy import ReadyRequest
from ostinato.runtime.resident import ResidentModel
from ostinato.tasks import OutputName
from ostinato.work import WorkPlan, WorkRecord, WorkResult

T = TypeVar("T")

_LIBRARIES = ("torch", "diffusers", "transformers", "ostinato")


class RunningRequest:
    """Advanced one plan at a time, on the device worker only."""

    def __init__(
        self,
        model: ResidentModel,
        program: Program,
        spec: GenerationSpec,
        scope: CancelScope,
        handle: Handle,
        deadline: float | None,
        priority: int,
        arrival: int,
    ) -> None:
        """Select the least nodes; deadline is a `time.monotonic` instant."""
        self._priority = priority
        self._arrival = arrival
        self._last_turn = -1
        self.spec = spec
        self.scope = scope
        self.handle = handle
        self._model = model
        self._program = program
        self._deadline = deadline
        nodes = program.select(spec.outputs, lambda node: model.loop(node.loop).reads(spec))
        self._run = ProgramRun(spec, nodes, model.loop, self._context)
        self._state: ProgramState | None = None
        self._total = sum(self._num_plans(nodes, node) for node in nodes)
        self._records: list[WorkRecord] = []
        self._advice: list[str] = []
        self._load_s = 0.0
        self._frames_told = 0

    @property
    def cpu_threads(self) -> int | None:
        """Threads that the model's card wants for its kernels."""
        return self._model.card.cpu_threads

    @property
    def device_s(self) -> float:
        """Device-seconds spent so far."""
        return sum(record.device_s for record in self._records)

    def ready(self) -> ReadyRequest:
        """Describe the request's claim to the next turn."""
        return ReadyRequest(
            request_id=self.spec.request_id,
            priority=self._priority,
            arrival=self._arrival,
            last_turn=self._last_turn,
        )

    def turn(self, tick: int) -> bool:
        """Run one plan; returns False once the request has ended, well or not.

        Whatever a step raises is this request's failure and nobody else's.
        """
        self._last_turn = tick
        try:
            if self._step():
                return True
            output = self._output()
        except OstinatoError as error:
            self._end(self.handle.tell_failed, error)
        except Exception as error:
            wrapped = InternalError(
                f"request {self.spec.request_id} failed at step {len(self._records)}: "
                f"{type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            self._end(self.handle.tell_failed, wrapped)
        else:
            self._end(self.handle.tell_finished, output)
        return False

    def end_cancelled(self) -> None:
        """Free everything and tell the caller that the request was cancelled."""
        self._end(lambda _: self.handle.tell_cancelled(), None)

    def _end(self, tell: Callable[[T], None], value: T) -> None:
        """Free what the request held, then tell: who hears of the end finds nothing held."""
        self._state = None
        try:
            self.scope.close()
        except ExceptionGroup as group:
            error = InternalError(f"request {self.spec.request_id}: {group}")
            error.__cause__ = group
            self.handle.tell_failed(error)
            return
        tell(value)

    def _step(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise DeadlineExceeded(
                f"request {self.spec.request_id} passed its deadline after {len(self._records)} "
                f"of {self._total} steps"
            )
        if self._state is None:
            self.handle.tell_started()
            self._state = self._run.init()
        self._state = self._run.enter(self._state)
        plan = self._run.next(self._state)
        if isinstance(plan, Done):
            return False
        self._execute(plan, self._run.node_name(self._state))
        return True

    def _execute(self, plan: WorkPlan, node: str) -> None:
        assert self._state is not None
        self._load_s += self._model.load_s(tuple(call.component for call in plan.calls))
        started = time.perf_counter()
        result = run_plan(plan, self._model.component, self._model.pages)
        self._watch(result, node)
        self._state = self._run.advance(self._state, result)
        device_s = time.perf_counter() - started
        calls = tuple((call.component, call.op) for call in plan.calls)
        self._records.append(WorkRecord(kind=plan.kind, node=node, calls=calls, device_s=device_s))
        for note in self._state.notes:
            if note not in self._advice:
                self._advice.append(note)
                self.handle.tell_advice(note)
        self._tell_pieces(self._state)
        self.handle.tell_progress(node, len(self._records), self._total, self.device_s)

    def _watch(self, result: WorkResult, node: str) -> None:
        """Fail this request alone when a step gave NaN or infinity."""
        for call, outputs in result.outputs.items():
            for name, value in outputs.items():
                if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                    continue
                if not bool(torch.isfinite(value).all()):
                    raise NonFinite(
                        f"request {self.spec.request_id}: step {len(self._records)} of node "
                        f"{node!r} gave NaN or infinity in {name!r} of call {call!r}"
                    )

    def _tell_pieces(self, state: ProgramState) -> None:
        slot = self._program.outputs.get(OutputName.VIDEO)
        for piece in state.fresh:
            if piece.slot != slot:
                continue
            whole = _frames(piece.value)
            frames = whole[: self.spec.num_frames - self._frames_told]
            self._frames_told += len(frames)
            self.handle.tell_chunk(OutputName.VIDEO.value, piece.index, frames)

    def _num_plans(self, nodes: tuple[Node, ...], node: Node) -> int:
        """Count the plans of a node: a streaming one runs for each piece of what it reads."""
        if isinstance(node, LoopNode):
            facts = self._model.loop_facts(node.loop)
            return self._model.loop(node.loop).num_steps(self.spec, facts)
        pieces = [
            self._model.loop(other.loop).num_pieces(self.spec, self._model.loop_facts(other.loop))
            for other in nodes
            if isinstance(other, LoopNode) and node.streams and other.writes & node.reads
        ]
        return max([1, *pieces])

    def _context(self, loop: str) -> LoopContext:
        return LoopContext(
            facts=self._model.loop_facts(loop),
            noise=NoiseStream(seed=self.spec.seed),
            open_ring=self._open_ring,
        )

    def _open_ring(self, num_pages: int) -> Ring:
        ring = self._model.pages.open_ring(num_pages)
        self.scope.hold(lambda: self._model.pages.close_ring(ring))
        return ring

    def _output(self) -> Output:
        assert self._state is not None
        values: dict[OutputName, Video | torch.Tensor] = {}
        for name in self.spec.outputs:
            value = self._state.slots[self._program.outputs[name]]
            values[name] = self._video(value) if name is OutputName.VIDEO else _tensor(value)
        return Output(values=values, provenance=self._provenance(), advice=tuple(self._advice))

    def _video(self, value: object) -> Video:
        return Video(frames=_frames(value)[: self.spec.num_frames], fps=self.spec.fps)

    def _provenance(self) -> Provenance:
        counts = Counter(f"{c}.{op}" for record in self._records for c, op in record.calls)
        card = self._model.card
        return Provenance(
            model_id=card.model_id,
            card_digest=card.digest(),
            spec=self.spec,
            precision=card.precision.weights,
            determinism=card.parity.output_determinism.value,
            calls=dict(counts),
            device_s=self.device_s,
            load_s=self._load_s,
            versions={name: version(name) for name in _LIBRARIES},
        )


def _frames(value: object) -> NDArray[np.uint8]:
    """Narrow a video slot; programs promise uint8 [T, H, W, 3] there."""
    assert hasattr(value, "__array__"), type(value)
    return cast("NDArray[np.uint8]", value)


def _tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value
