"""The samplers of a Wan folder in float64, behind the contract of the library's sampler."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import torch

from ostinato.backend.reference.arrays import Array
from ostinato.backend.reference.component import to_array, to_tensor
from ostinato.backend.reference.sampling import (
    flow_euler_step,
    flow_match_euler_sigmas,
    unipc_flow_sigmas,
)
from ostinato.backend.reference.unipc import UniPCMemory, unipc_step
from ostinato.errors import InvalidCheckpoint
from ostinato.loop.noise import NoiseStream
from ostinato.loop.sampling import LibrarySampler, LibraryScheduler, Schedule, SchedulerMemory

UNIPC, EULER = "UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"
_PLAIN = (
    ("use_karras_sigmas", False),
    ("use_exponential_sigmas", False),
    ("use_beta_sigmas", False),
    ("shift_terminal", None),
)
# Settings that change what a scheduler computes, each with the only value that is computed here.
_COMPUTED: Mapping[str, tuple[tuple[str, object], ...]] = MappingProxyType(
    {
        EULER: (*_PLAIN, ("invert_sigmas", False)),
        UNIPC: (
            *_PLAIN,
            ("thresholding", False),
            ("predict_x0", True),
            ("lower_order_final", True),
            ("solver_type", "bh2"),
            ("final_sigmas_type", "zero"),
            ("disable_corrector", []),
        ),
    }
)


class ReferenceSampler(LibrarySampler):
    """Takes the settings from the library's scheduler, and computes everything by itself.

    Sigmas and steps are float64. UniPC feeds the network whole timesteps, as the library does.
    """

    def __init__(self, template: LibraryScheduler) -> None:
        """Take an instance as configured; raises InvalidCheckpoint for settings not computed."""
        super().__init__(template)
        self._kind = type(template).__name__
        wrong = {
            name: template.config.get(name)
            for name, expected in _COMPUTED[self._kind]
            if template.config.get(name) != expected
        }
        if wrong:
            raise InvalidCheckpoint(
                f"the float64 reference of {self._kind} does not compute {wrong}; expected "
                f"{dict(_COMPUTED[self._kind])}"
            )
        self._solver_order = cast("int", template.config.get("solver_order", 1))

    @classmethod
    def of(cls, library: LibrarySampler) -> ReferenceSampler:
        """Make the reference of a sampler that a folder configures."""
        return cls(library._template)

    def schedule(self, num_steps: int, flow_shift: float | None) -> Schedule:
        """Return the steps; sigmas are float64 [n + 1], timesteps float64 or, of UniPC, int64."""
        shift = self.flow_shift if flow_shift is None else flow_shift
        assert shift is not None, "without other sigmas both schedulers carry a shift"
        make = unipc_flow_sigmas if self._kind == UNIPC else flow_match_euler_sigmas
        sigmas = to_tensor(make(num_steps, shift, self.num_train_timesteps))
        timesteps = sigmas[:-1] * self.num_train_timesteps
        return Schedule(
            timesteps=timesteps.to(torch.int64) if self._kind == UNIPC else timesteps,
            sigmas=sigmas,
            flow_shift=flow_shift,
        )

    def start(self, schedule: Schedule, noise: NoiseStream, block: int) -> SchedulerMemory:
        """Return the memory before the first step."""
        del noise, block
        attributes = {"sigmas": schedule.sigmas, **_attributes(UniPCMemory())}
        return SchedulerMemory(attributes=attributes, step=0, flow_shift=schedule.flow_shift)

    def step(
        self,
        x: torch.Tensor,
        prediction: torch.Tensor,
        sigma: float,
        sigma_next: float,
        memory: SchedulerMemory,
    ) -> tuple[torch.Tensor, SchedulerMemory]:
        """Step float64 [B,...] from sigma to sigma_next; pure."""
        sample, velocity = to_array(x), to_array(prediction)
        before = _restored(memory)
        if self._kind == UNIPC:
            sigmas = to_array(cast("torch.Tensor", memory.attributes["sigmas"]))
            moved, after = unipc_step(sample, velocity, sigmas, before, self._solver_order)
        else:
            moved = flow_euler_step(sample, velocity, sigma, sigma_next)
            after = before
        following = SchedulerMemory(
            attributes={"sigmas": memory.attributes["sigmas"], **_attributes(after)},
            step=memory.step + 1,
            flow_shift=memory.flow_shift,
        )
        return to_tensor(moved), following


def _attributes(memory: UniPCMemory) -> Mapping[str, torch.Tensor | tuple[torch.Tensor, ...] | int]:
    """Lay a memory out as plain data."""
    corrected = () if memory.corrected is None else (to_tensor(memory.corrected),)
    clean = tuple(to_tensor(prediction) for prediction in memory.clean)
    return {"clean": clean, "corrected": corrected, "order": memory.order}


def _restored(memory: SchedulerMemory) -> UniPCMemory:
    attributes = memory.attributes
    corrected = _arrays(attributes["corrected"])
    return UniPCMemory(
        clean=_arrays(attributes["clean"]),
        corrected=corrected[0] if corrected else None,
        order=cast("int", attributes["order"]),
        step=memory.step,
    )


def _arrays(values: object) -> tuple[Array, ...]:
    return tuple(to_array(tensor) for tensor in cast("tuple[torch.Tensor, ...]", values))
