"""A library scheduler behind the sampler contract: per request, stateless between calls.

diffusers schedulers keep their trajectory on the object, so one object that serves two requests
crashes or corrupts silently. Here every step makes a fresh instance, restores the request's memory
into it, steps, and takes the memory out again. The memory is plain data
(tensors, lists, scalars), so it can be written to disk without pickle.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import torch

from ostinato.errors import InvalidCheckpoint, InvalidRequest
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling.schedules import NUM_TRAIN_TIMESTEPS, Schedule

MemoryValue = torch.Tensor | tuple["MemoryValue", ...] | bool | int | float | str | None


class LibraryScheduler(Protocol):
    """What is used of a diffusers flow-matching scheduler."""

    config: Mapping[str, object]
    timesteps: torch.Tensor
    sigmas: torch.Tensor
    step_index: int | None

    def set_timesteps(self, num_inference_steps: int, device: str) -> None: ...
    def set_begin_index(self, begin_index: int = 0) -> None: ...
    def step(
        self, model_output: torch.Tensor, timestep: torch.Tensor, sample: torch.Tensor,
        return_dict: bool = True,
    ) -> tuple[torch.Tensor, ...]: ...  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerMemory:
    """Every attribute of a scheduler between two steps, as plain data; step counts from 0."""

    attributes: Mapping[str, MemoryValue]
    step: int
    flow_shift: float | None


class LibrarySampler:
    """Wraps a scheduler class and its configuration; holds no trajectory."""

    def __init__(self, template: LibraryScheduler) -> None:
        """Take any instance; only its class and configuration are used.

        Raises InvalidCheckpoint for a scheduler that is not flow matching with a velocity
        prediction (its steps would be meaningless for the networks served here) and for settings
        that need what a request does not carry.
        """
        self._shift_name = _shift_name(template.config)
        faults = tuple(_config_faults(template.config))
        if faults:
            raise InvalidCheckpoint(
                f"scheduler {type(template).__name__} cannot be served: {'; '.join(faults)}"
            )
        self._kind = cast("_SchedulerClass", type(template))
        self._template = self._kind.from_config(template.config)

    @property
    def num_train_timesteps(self) -> int:
        """How finely the scheduler divides time; no schedule has more steps."""
        value = self._template.config.get("num_train_timesteps")
        return value if isinstance(value, int) else NUM_TRAIN_TIMESTEPS

    @property
    def takes_flow_shift(self) -> bool:
        """Whether a flow shift changes the schedule."""
        return self._shift_name is not None

    @property
    def flow_shift(self) -> float | None:
        """The shift that the configuration carries, None when it has no such setting."""
        if self._shift_name is None:
            return None
        value = self._template.config[self._shift_name]
        return float(value) if isinstance(value, int | float) else None

    def schedule(self, num_steps: int, flow_shift: float | None) -> Schedule:
        """Return the scheduler's own timesteps (its dtype) and sigmas.

        Raises InvalidRequest for a flow shift that would have no effect.
        """
        if flow_shift is not None and not self.takes_flow_shift:
            raise InvalidRequest(
                f"flow_shift is {flow_shift!r}, but the schedule of "
                f"{type(self._template).__name__} as configured takes none; leave it out"
            )
        scheduler = self._instance(flow_shift)
        scheduler.set_timesteps(num_steps, device="cpu")
        return Schedule(
            timesteps=scheduler.timesteps, sigmas=scheduler.sigmas.float(), flow_shift=flow_shift
        )

    def start(self, schedule: Schedule, noise: NoiseStream, block: int) -> SchedulerMemory:
        """Return the memory of a scheduler that is set to the first of these steps."""
        del noise, block
        attributes = self._begun(schedule)
        return SchedulerMemory(attributes=attributes, step=0, flow_shift=schedule.flow_shift)

    def step(
        self,
        x: torch.Tensor,
        prediction: torch.Tensor,
        sigma: float,
        sigma_next: float,
        memory: SchedulerMemory,
    ) -> tuple[torch.Tensor, SchedulerMemory]:
        """Step x [B, ...]; sigma and sigma_next are already in the memory. Pure."""
        del sigma, sigma_next
        moved, attributes = self._moved(x, prediction, memory)
        return moved, replace(memory, attributes=attributes, step=memory.step + 1)

    def _begun(self, schedule: Schedule) -> Mapping[str, MemoryValue]:
        """Return what is remembered before the first step."""
        scheduler = self._instance(schedule.flow_shift)
        scheduler.set_timesteps(schedule.num_steps, device="cpu")
        scheduler.set_begin_index(0)
        return _take_out(scheduler)

    def _moved(
        self, x: torch.Tensor, prediction: torch.Tensor, memory: SchedulerMemory
    ) -> tuple[torch.Tensor, Mapping[str, MemoryValue]]:
        """Return x after the step, and what is then remembered."""
        # A shallow copy, not from_config, which costs as much as a step: every attribute is
        # replaced by the request's own, and steps read no shift from the configuration.
        scheduler = copy.copy(self._template)
        _put_back(scheduler, memory.attributes)
        timestep = scheduler.timesteps[memory.step]
        moved = scheduler.step(prediction, timestep, x, return_dict=False)[0]
        return moved, _take_out(scheduler)

    def _instance(self, flow_shift: float | None) -> LibraryScheduler:
        if flow_shift is None or self._shift_name is None:
            return copy.deepcopy(self._template)
        return self._kind.from_config(self._template.config, **{self._shift_name: flow_shift})


def _shift_name(config: Mapping[str, object]) -> str | None:
    """Return the setting that holds the flow shift, None where the schedule does not read one."""
    if "shift" in config:
        return "shift"
    other = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")
    if "flow_shift" not in config or any(config.get(name) for name in other):
        return None
    return "flow_shift"


def _config_faults(config: Mapping[str, object]) -> Iterator[str]:
    prediction = config.get("prediction_type", "flow_prediction")
    if prediction != "flow_prediction":
        yield f"prediction_type is {prediction!r}, expected 'flow_prediction'"
    if not config.get("use_flow_sigmas", True):
        yield "use_flow_sigmas is off, so its sigmas are not those of flow matching"
    if config.get("use_dynamic_shifting"):
        yield "use_dynamic_shifting needs a mu for each size, which no request carries"
    if config.get("stochastic_sampling"):
        yield "stochastic_sampling draws from the process-wide generator"
    if config.get("solver_p") is not None:
        yield "solver_p puts a second scheduler, with a state of its own, inside this one"


class _SchedulerClass(Protocol):
    def from_config(self, config: Mapping[str, object], **overrides: float) -> LibraryScheduler: ...


def _take_out(scheduler: LibraryScheduler) -> dict[str, MemoryValue]:
    state = vars(scheduler).items()
    return {name: _freeze(value, name) for name, value in state if name != "_internal_dict"}


def _put_back(scheduler: LibraryScheduler, attributes: Mapping[str, MemoryValue]) -> None:
    for name, value in attributes.items():
        setattr(scheduler, name, _thaw(value))


def _freeze(value: object, name: str) -> MemoryValue:
    if value is None or isinstance(value, torch.Tensor | bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value)
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, name) for item in cast("list[object]", value))
    raise InvalidCheckpoint(
        f"scheduler attribute {name!r} is a {type(value).__name__}; only tensors, lists and "
        "scalars can be kept as a request's state"
    )


def _thaw(value: MemoryValue) -> object:
    return [_thaw(item) for item in value] if isinstance(value, tuple) else value
