"""How far a tap may lie from its float64 value, as data with reasons.

Errors are relative to a tap's own scale. Two are held: the largest error over the largest
expected value, which a fault in one channel moves, and the root mean square of the error over
that of the value, which a small fault spread over all of them moves. Relative to each element
would be meaningless where a value is near zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from ostinato.errors import BadInput

# Half a unit in the last place: the largest relative error of one rounding (IEEE 754).
ROUNDING: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.bfloat16: 2.0**-9,
        torch.float16: 2.0**-11,
        torch.float32: 2.0**-24,
        torch.float64: 2.0**-53,
    }
)
# Measured over every tap of the shipped model and of both tiny folders: errors stay below
# 10 (largest) and 8 (rms) roundings times the square root of the depth; three times that is
# allowed, for processors that add in another order.
_LARGEST, _RMS = 30.0, 24.0
# An angle of `timestep` radians, up to 1000, is itself rounded, and so is off by 1000 roundings.
_LARGEST_ANGLE = 1000.0
_FED_BY_ANGLES = ("time_embedder", "time_proj")
# A level of 255 that lies on the edge between two may fall either way; how many do is measured
# as 9e-5 of the rms.
_LEVEL, _LEVELS_RMS = 1.0, 5e-4
# Each step of a trajectory feeds the errors of all before it back into the network, and how much
# that grows them is a property of the weights: measured 4e-7 to 7e-7 on tiny folders, 3e-6 and
# 5e-5 on two sets of trained weights. A loop that is wrong is off by 1e-2 and more.
_TRAJECTORY = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Bounds of both relative errors; `absolute` takes the place of `largest` where it is given."""

    largest: float
    rms: float
    reason: str
    absolute: float | None = None

    def allows(self, error: Errors) -> bool:
        """Tell whether errors are within the bounds; NaN is not."""
        if self.absolute is not None:
            return error.absolute <= self.absolute and error.rms <= self.rms
        return error.largest <= self.largest and error.rms <= self.rms


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of one value against another: in its own unit, and relative to the expected scale."""

    absolute: float
    largest: float
    rms: float


EXACT = Tolerance(largest=0.0, rms=0.0, absolute=0.0, reason="the same computation, so equal bits")


def measure(found: torch.Tensor, expected: torch.Tensor) -> Errors:
    """Measure in float64; a value of NaN on either side gives NaN, which no tolerance allows."""
    truth = expected.detach().double()
    difference = found.detach().double() - truth
    if difference.numel() == 0:
        return Errors(absolute=0.0, largest=0.0, rms=0.0)
    absolute = float(difference.abs().max())
    return Errors(
        absolute=absolute,
        largest=_relative(absolute, float(truth.abs().max())),
        rms=_relative(_rms(difference), _rms(truth)),
    )


def tap_tolerance(name: str, depth: int, dtype: torch.dtype) -> Tolerance:
    """Return what a tap is allowed. depth: how many taps of its call were computed before it.

    Independent roundings grow with the square root of how many follow each other. Raises BadInput
    for a floating-point dtype whose rounding is not known.
    """
    if _whole(dtype):
        return Tolerance(
            largest=0.0,
            rms=_LEVELS_RMS,
            absolute=_LEVEL,
            reason="whole levels: one that lies between two may fall either way",
        )
    unit = ROUNDING[dtype]
    if any(part in name.split(".") for part in _FED_BY_ANGLES):
        bound = _LARGEST_ANGLE * unit
        return Tolerance(
            largest=bound, rms=bound, reason="1000 roundings: the angle of a timestep is rounded"
        )
    growth = unit * (1 + depth) ** 0.5
    return Tolerance(
        largest=_LARGEST * growth,
        rms=_RMS * growth,
        reason=f"{_LARGEST:g} roundings (rms {_RMS:g}) times sqrt({1 + depth})",
    )


def trajectory_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return what values of a whole run in float32 are allowed: frames as taps are.

    Raises BadInput as `tap_tolerance` does.
    """
    if _whole(dtype):
        return tap_tolerance("", 0, dtype)
    return Tolerance(
        largest=_TRAJECTORY, rms=_TRAJECTORY, reason="errors of all steps before, measured 5e-5"
    )


def _whole(dtype: torch.dtype) -> bool:
    """Tell whether values are whole levels; raises BadInput where nothing is known of them."""
    if dtype in ROUNDING:
        return False
    if dtype.is_floating_point or dtype.is_complex:
        raise BadInput(
            f"a value is {dtype}, and no tolerance is known for it; expected a whole number or one "
            f"of {', '.join(map(str, ROUNDING))}"
        )
    return True


def _relative(error: float, scale: float) -> float:
    if error == 0.0:
        return 0.0
    return error / scale if scale else float("inf")


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())
