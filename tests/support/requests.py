"""Small requests to the tiny built-in model, and faults put into it."""

from __future__ import annotations

import threading

from ostinato.request import Request
from ostinato.runtime import ResidentModel
from ostinato.runtime.core import THREAD_NAME

PROMPT = "a red circle bouncing on a navy background"


def request(**fields: object) -> Request:
    base = {"model": "builtin", "task": "text_to_video", "prompt": PROMPT, "seed": 1}
    small = {"num_frames": 24, "num_inference_steps": 2}
    return Request.build(**{**base, **small, **fields})


def replace_op(resident: ResidentModel, component: str, name: str, op: object) -> None:
    """Put an op in the place of a component's own."""
    setattr(resident.component(component), name, op)


def num_workers() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())
