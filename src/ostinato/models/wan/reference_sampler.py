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
from ostinato.loop.sampling import (
    LibrarySampler,
    LibraryScheduler,
    MemoryValue,
    Schedule,
    SchedulerMemory,
)
from ostinato.models.wan.configs import EULER, UNIPC

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
        self._name = type(template).__name__
        wrong = {
            name: template.config.get(name)
            for name, expected in _COMPUTED[self._name]
            if template.config.get(name) != expected
        }
        if wrong:
            raise InvalidCheckpoint(
                f"the float64 reference of {self._name} does not compute {wrong}; expected "
                f"{dict(_COMPUTED[self._name])}"
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
        make = unipc_flow_sigmas if self._name == UNIPC else flow_match_euler_sigmas
        sigmas = to_tensor(make(num_steps, shift, self.num_train_timesteps))
        timesteps = sigmas[:-1] * self.num_train_timesteps
        return Schedule(
            timesteps=timesteps.to(torch.int64) if self._name == UNIPC else timesteps,
            sigmas=sigmas,
            flow_shift=flow_shift,
        )

    def _begun(self, schedule: Schedule) -> Mapping[str, MemoryValue]:
        return {"sigmas": schedule.sigmas, **_attributes(UniPCMemory())}

    def _moved(
        self, x: torch.Tensor, prediction: torch.Tensor, memory: SchedulerMemory
    ) -> tuple[torch.Tensor, Mapping[str, MemoryValue]]:
        sample, velocity = to_array(x), to_array(prediction)
        kept, after = memory.attributes["sigmas"], _restored(memory)
        sigmas = to_array(cast("torch.Tensor", kept))
        if self._name == UNIPC:
            moved, after = unipc_step(sample, velocity, sigmas, after, self._solver_order)
        else:
            sigma, sigma_next = sigmas[memory.step : memory.step + 2]
            moved = flow_euler_step(sample, velocity, sigma, sigma_next)
        return to_tensor(moved), {"sigmas": kept, **_attributes(after)}


def _attributes(memory: UniPCMemory) -> Mapping[str, MemoryValue]:
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
