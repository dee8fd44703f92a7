"""Fast batching: what a card allows is stacked and told; all else keeps its bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ostinato.api import Engine
from ostinato.backend.batch_rules import NEVER, BatchRules
from ostinato.card import ModelSource
from ostinato.models.builtin.card import open_builtin
from ostinato.models.registry import open_model
from ostinato.parity.tolerances import measure
from ostinato.request import Request
from ostinato.runtime import Batching, Output, Stacking
from ostinato.work import CostModel
from support.turns import RandomTurns

STEPS, SCALES = (2, 4, 3), (2.0, 1.0, 4.0)
# One token a request: fewer rows than exact rules ask for anywhere.
TINY = {"height": 16, "width": 16, "num_frames": 1}
FORBIDDEN = BatchRules(linear_rows=NEVER, activation_multiple=1, attention=True, norms=True)


def requests(source: ModelSource, count: int, **size: int) -> list[Request]:
    """Mixed timesteps and guidance; equal shapes."""
    return [
        Request.build(
            model=source.card.model_id,
            task="text_to_video",
            prompt="a red circle",
            seed=seed,
            num_inference_steps=STEPS[seed % len(STEPS)],
            guidance_scale=SCALES[seed % len(SCALES)],
            outputs=("latents",),
            **size,
        )
        for seed in range(count)
    ]


def serve(
    source: ModelSource,
    asked: Sequence[Request],
    batching: Batching,
    costs: CostModel | None = None,
) -> list[Output]:
    """Serve all at once, stacked wherever the rules of this batching allow it."""
    with Engine(
        RandomTurns(3), max_batch=4, stacking=Stacking.ALWAYS, batching=batching, costs=costs
    ) as engine:
        engine.add(source)
        return engine.run(asked)


def alone(source: ModelSource, asked: Sequence[Request]) -> list[Output]:
    with Engine(max_batch=1, batching=Batching.FAST) as engine:
        engine.add(source)
        return [engine.submit(request).result() for request in asked]


def fast_steps(outputs: Sequence[Output]) -> int:
    return sum(output.provenance.fast_steps for output in outputs)


def require_bytes(outputs: Sequence[Output], expected: Sequence[Output]) -> None:
    for one, other in zip(outputs, expected, strict=True):
        assert torch.equal(one.latents, other.latents)
        assert one.provenance.fast_steps == 0
        assert one.provenance.determinism == "bitwise"


def require_tolerance(
    source: ModelSource, outputs: Sequence[Output], expected: Sequence[Output]
) -> None:
    tolerance = source.card.fast_batch_tolerance
    assert tolerance is not None
    for one, other in zip(outputs, expected, strict=True):
        errors = measure(one.latents, other.latents)
        assert max(errors.largest, errors.rms) <= tolerance
        assert one.provenance.fast_steps == one.provenance.stacked_steps
        promised = "tolerance" if one.provenance.fast_steps else "bitwise"
        assert one.provenance.determinism == promised
    assert fast_steps(outputs) >= 2


@pytest.fixture
def wan(tiny_wan_folder: Callable[[str], Path]) -> ModelSource:
    return open_model(tiny_wan_folder("UniPCMultistepScheduler"))


def in_bfloat16(source: ModelSource) -> ModelSource:
    card = source.card
    return replace(
        source,
        card=card.derive(
            precision=replace(card.precision, weights="bfloat16"),
            recipe=replace(card.recipe, assumes_precision="bfloat16"),
        ),
    )


def test_few_rows_are_stacked_within_the_tolerance(wan: ModelSource) -> None:
    asked = requests(wan, 4, **TINY)
    require_tolerance(wan, serve(wan, asked, Batching.FAST), alone(wan, asked))


def test_few_rows_are_not_stacked_without_being_asked_for(wan: ModelSource) -> None:
    asked = requests(wan, 4, **TINY)
    outputs = serve(wan, asked, Batching.EXACT)
    require_bytes(outputs, alone(wan, asked))
    assert sum(output.provenance.stacked_steps for output in outputs) == 0


def test_a_card_that_declares_nothing_keeps_its_bytes(wan: ModelSource) -> None:
    parity = replace(wan.card.parity, fast_batch_tolerances={})
    silent = replace(wan, card=wan.card.derive(parity=parity))
    for size in (TINY, {"height": 64, "width": 64, "num_frames": 1}):
        asked = requests(silent, 3, **size)
        require_bytes(serve(silent, asked, Batching.FAST), alone(silent, asked))


def test_a_tolerance_in_another_dtype_allows_nothing(wan: ModelSource) -> None:
    parity = replace(wan.card.parity, fast_batch_tolerances={"bfloat16": 0.1})
    other = replace(wan, card=wan.card.derive(parity=parity))
    asked = requests(other, 3, **TINY)
    require_bytes(serve(other, asked, Batching.FAST), alone(other, asked))


def test_bfloat16_is_stacked_by_its_own_tolerance_only(wan: ModelSource) -> None:
    source = in_bfloat16(wan)
    asked = requests(source, 4, height=32, width=32, num_frames=1)
    expected = alone(source, asked)
    require_tolerance(source, serve(source, asked, Batching.FAST), expected)
    require_bytes(serve(source, asked, Batching.EXACT), expected)


def test_what_exact_batching_refused_is_not_refused_to_fast(
    tiny_builtin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one cost model for both, as a process keeps one for its device."""
    monkeypatch.setattr("ostinato.runtime.turns.probe_batch_rules", lambda: FORBIDDEN)
    source, costs = open_builtin(tiny_builtin_folder), CostModel()
    asked = requests(source, 4, num_frames=12)
    expected = alone(source, asked)
    for _ in range(2):
        require_bytes(serve(source, asked, Batching.EXACT, costs), expected)
        require_tolerance(source, serve(source, asked, Batching.FAST, costs), expected)


def test_fast_batching_measures_no_rules(wan: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe() -> BatchRules:
        raise AssertionError("nothing here has to be exact")

    monkeypatch.setattr("ostinato.runtime.turns.probe_batch_rules", probe)
    assert fast_steps(serve(wan, requests(wan, 3, **TINY), Batching.FAST)) >= 2
