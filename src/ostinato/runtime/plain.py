"""A request's values as plain Python ones, and values as a message can show them."""

from __future__ import annotations

import dataclasses
import numbers
import operator

from ostinato.request import Request

_WHOLE = ("seed", "height", "width", "num_frames", "num_inference_steps", "priority")
_REAL = ("fps", "guidance_scale", "flow_shift", "deadline_s")
_SHOWN_CHARS = 120


def plain(request: Request) -> Request:
    """Return the request with numpy's numbers as int and float; what is no number stays.

    A bool is no number here, and neither is an integer that no float can hold.
    """
    found = {name: _whole(getattr(request, name)) for name in _WHOLE}
    found |= {name: _real(getattr(request, name)) for name in _REAL}
    return dataclasses.replace(request, **found)  # pyright: ignore[reportArgumentType]


def shown(value: object) -> str:
    """Show a value of any type in a message; long ones are cut."""
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, or another's faulty __repr__
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _whole(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    return operator.index(value)


def _real(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return float(value)
    except OverflowError:
        return value
