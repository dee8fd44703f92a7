"""Requests of a trace on real engines: one after the other, in stacks, and as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from ostinato.bench._schedule_record import Recorder
from ostinato.bench._small_wan import PROMPT
from ostinato.card import ModelSource
from ostinato.errors import DeadlineExceeded, OstinatoError
from ostinato.request import Request
from ostinato.runtime import Engine, Handle, Output
from ostinato.runtime.scheduler import DEFAULT_TENANT, Policy
from ostinato.runtime.simulate import Planned, Trace, request_of
from ostinato.runtime.stacking import Stacking
from ostinato.tasks import OutputName, RequestId
from ostinato.work import CostModel

WARM_UP = "warm-up"  # a tenant of its own, so that no other is charged for it
_WARM_UP_STEPS = 3
_GUIDED = 4.0
_SPIN_S = 1e-3  # before an arrival: no sleep ends on time


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """What all runs of a trace share: its models by the trace's names, and the cost model."""

    trace: Trace
    sources: Mapping[str, ModelSource]
    costs: CostModel

    def request(self, planned: Planned) -> Request:
        """Return what an arrival asks for; latents only, so that decoding hides nothing."""
        model = self.trace.classes[planned.request_class].model
        asked = request_of(
            self.trace, planned, model=str(self.sources[model].card.model_id), prompt=PROMPT
        )
        return replace(asked, tenant=planned.tenant, outputs=(OutputName.LATENTS,))

    def engine(
        self,
        recorder: Recorder,
        policy: Policy | None = None,
        *,
        max_batch: int = 1,
        stacking: Stacking = Stacking.WHEN_IT_PAYS,
    ) -> Engine:
        """Return a new engine whose models are loaded and warm; the recorder has seen that too."""
        engine = Engine(
            policy,
            max_batch=max_batch,
            stacking=stacking,
            tenant_weights=self.trace.tenant_weights,
            witness=recorder,
            costs=self.costs,
        )
        for source in self.sources.values():
            engine.add(source)
        # So many at once, so that stacks of every size have been tried on this processor.
        for name in self.trace.classes:
            request = replace(self.request(_warm_up(name)), num_inference_steps=_WARM_UP_STEPS)
            for num_requests in range(1, max_batch + 1):
                engine.run([request] * num_requests)
        return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Every arrival when nothing else ran: what the engine told, and latents in their order."""

    recorder: Recorder
    planned: Mapping[RequestId, Planned]
    latents: tuple[torch.Tensor, ...]


def run_alone(bed: Bed, arrivals: Sequence[Planned]) -> Alone:
    """Run each arrival when nothing else runs."""
    recorder, planned = Recorder(), dict[RequestId, Planned]()
    latents: list[torch.Tensor] = []
    with bed.engine(recorder) as engine:
        for arrival in arrivals:
            request = replace(bed.request(arrival), deadline_s=None)
            handle = engine.submit(request)
            latents.append(handle.result().latents)
            planned[handle.request_id] = arrival
    return Alone(recorder=recorder, planned=planned, latents=tuple(latents))


def run_stacked(bed: Bed, request_class: str, num_requests: int, num_steps: int) -> Recorder:
    """Run so many requests of a class at once, stacked wherever that is allowed."""
    recorder = Recorder()
    request = replace(
        bed.request(_warm_up(request_class)), num_inference_steps=num_steps, tenant=DEFAULT_TENANT
    )
    with bed.engine(recorder, max_batch=num_requests, stacking=Stacking.ALWAYS) as engine:
        engine.run([replace(request, seed=seed) for seed in range(num_requests)])
    return recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A run in real time. started_s: the process's monotonic clock, when the trace began.

    ends: of its requests.
    """

    recorder: Recorder
    planned: Mapping[RequestId, Planned]
    started_s: float
    ends: Ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """failed: requests that did, but for those whose deadline passed.

    wrong_outputs: requests that failed or gave other bytes than alone.
    """

    failed: int
    wrong_outputs: int


def run_trace(
    bed: Bed,
    arrivals: Sequence[Planned],
    policy: Policy,
    *,
    max_batch: int,
    alone: Sequence[torch.Tensor],
) -> Replayed:
    """Submit every arrival at its instant, wait for all, compare the latents with those alone."""
    recorder = Recorder()
    requests = [bed.request(arrival) for arrival in arrivals]
    with bed.engine(recorder, policy, max_batch=max_batch) as engine:
        started_s = time.monotonic()
        handles: list[Handle] = []
        for arrival, request in zip(arrivals, requests, strict=True):
            _wait_until(started_s + arrival.arrived_s)
            handles.append(engine.submit(request))
        for handle in handles:
            handle.wait()
        ends = _ends(handles, alone)
    planned = dict(zip((handle.request_id for handle in handles), arrivals, strict=True))
    return Replayed(recorder=recorder, planned=planned, started_s=started_s, ends=ends)


def run_clips(bed: Bed, arrivals: Sequence[Planned], policy: Policy, *, max_batch: int) -> Ends:
    """Run guided clips of the arrivals' shapes alone, then all at once as a user would.

    With their frames, without a witness, and without a profile: for what is hidden from those.
    """
    requests = [
        replace(
            bed.request(arrival),
            outputs=(OutputName.LATENTS, OutputName.VIDEO),
            guidance_scale=_GUIDED,
            deadline_s=None,
        )
        for arrival in arrivals
    ]

    def engine(most: int, policy: Policy | None) -> Engine:
        found = Engine(policy, max_batch=most, tenant_weights=bed.trace.tenant_weights)
        for source in bed.sources.values():
            found.add(source)
        return found

    with engine(1, None) as served:
        alone = [served.submit(request).result() for request in requests]
    with engine(max_batch, policy) as served:
        handles = [served.submit(request) for request in requests]
        for handle in handles:
            handle.wait()
        ends = _ends(handles, [output.latents for output in alone])
        wrong_frames = sum(map(_other_frames, handles, alone))
    return replace(ends, wrong_outputs=ends.wrong_outputs + wrong_frames)


def sum_of(ends: Iterable[Ends]) -> Ends:
    """Add them up."""
    found = tuple(ends)
    return Ends(
        failed=sum(each.failed for each in found),
        wrong_outputs=sum(each.wrong_outputs for each in found),
    )


def _ends(handles: Sequence[Handle], alone: Sequence[torch.Tensor]) -> Ends:
    failed, wrong = 0, 0
    for handle, latents in zip(handles, alone, strict=True):
        try:
            wrong += not torch.equal(handle.result().latents, latents)
        except DeadlineExceeded:  # the run's record tells of it
            continue
        except OstinatoError:
            failed, wrong = failed + 1, wrong + 1
    return Ends(failed=failed, wrong_outputs=wrong)


def _other_frames(handle: Handle, alone: Output) -> bool:
    with suppress(OstinatoError):  # counted already
        return not np.array_equal(handle.result().video.frames, alone.video.frames)
    return False


def _wait_until(instant_s: float) -> None:
    left_s = instant_s - time.monotonic()
    if left_s > _SPIN_S:
        time.sleep(left_s - _SPIN_S)
    while time.monotonic() < instant_s:
        time.sleep(0)


def _warm_up(request_class: str) -> Planned:
    return Planned(
        index=0,
        request_class=request_class,
        tenant=WARM_UP,
        priority=0,
        arrived_s=0.0,
        deadline_s=None,
    )
