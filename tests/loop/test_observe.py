"""Witnesses of a plan see calls, inputs, outputs and taps, in order, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import torch

from ostinato.loop.execute import execute
from ostinato.loop.observe import Tap
from ostinato.memory import KVPool
from ostinato.work import ComponentCall, OutputOf, WorkPlan, WorkUnitKind


class Doubler:
    """Doubles, and shows the half way."""

    def __init__(self) -> None:
        self.tap: Tap | None = None

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return `double`."""
        return self.double

    def double(self, x: torch.Tensor) -> Mapping[str, object]:
        """Return 2 x."""
        if self.tap is not None:
            self.tap("half", x)
        return {"out": 2 * x}

    @contextmanager
    def observe(self, tap: Tap) -> Generator[None, None, None]:
        """Show to `tap`."""
        self.tap = tap
        try:
            yield
        finally:
            self.tap = None


class Blind:
    """Cannot be looked into."""

    def op(self, name: str) -> Callable[..., Mapping[str, object]]:
        """Return the identity."""
        return lambda x: {"out": x}


class Diary:
    """Writes down what it sees."""

    def __init__(self, *, look_inside: bool = True) -> None:
        self.lines: list[str] = []
        self._look = look_inside

    def started(self, call: ComponentCall, inputs: Mapping[str, object]) -> Tap | None:
        """Note the inputs."""
        self.lines.append(f"{call.call_id} takes {float(inputs['x'])}")  # type: ignore[arg-type]
        return (lambda name, v: self.lines.append(f"{name} {float(v)}")) if self._look else None

    def finished(self, call: ComponentCall, outputs: Mapping[str, object]) -> None:
        """Note the output."""
        self.lines.append(f"{call.call_id} gives {float(outputs['out'])}")  # type: ignore[arg-type]


PLAN = WorkPlan(
    kind=WorkUnitKind.DIFFUSION_STEP,
    calls=(
        ComponentCall(call_id="a", component="c", op="double", inputs={"x": torch.tensor(1.0)}),
        ComponentCall(
            call_id="b", component="c", op="double", inputs={"x": OutputOf(call="a", name="out")}
        ),
    ),
)


def test_everything_is_seen_in_order() -> None:
    doubler, diary = Doubler(), Diary()
    result = execute(PLAN, lambda _: doubler, KVPool(), watch=diary)
    assert diary.lines == [
        "a takes 1.0",
        "half 1.0",
        "a gives 2.0",
        "b takes 2.0",
        "half 2.0",
        "b gives 4.0",
    ]
    assert float(result.get("b", "out")) == 4.0  # type: ignore[arg-type]
    assert doubler.tap is None


def test_a_witness_may_look_from_outside_only() -> None:
    diary = Diary(look_inside=False)
    execute(PLAN, lambda _: Doubler(), KVPool(), watch=diary)
    assert not any(line.startswith("half") for line in diary.lines)
    assert len(diary.lines) == 4


def test_a_component_that_cannot_be_looked_into_still_runs() -> None:
    diary = Diary()
    execute(PLAN, lambda _: Blind(), KVPool(), watch=diary)
    assert len(diary.lines) == 4
