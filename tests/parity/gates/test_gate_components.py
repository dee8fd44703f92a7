"""Components against float64: every tap is there, and none that is not known."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch

from ostinato.card import ModelSource
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.components import components
from ostinato.parity.subject import Subject
from ostinato.runtime import ResidentModel
from support.subjects import Faulty


def test_components_pass_with_taps(builtin: Subject, wan: Subject) -> None:
    for subject in (builtin, wan):
        result = components(subject)
        assert result.passed, result.message
        assert result.taps > 80
        assert result.measured > result.taps
        assert 0 < result.worst_relative_error < 1e-4
        assert {c.component for c in result.comparisons} == set(subject.weighted)


def blind(component: str) -> Callable[[ResidentModel], None]:
    def fault(resident: ResidentModel) -> None:
        resident.component(component).observe = lambda tap: nullcontext()  # type: ignore[attr-defined]

    return fault


def test_zero_taps_are_red(builtin_source: ModelSource) -> None:
    with pytest.raises(NothingMeasured, match="no value was seen inside codec"):
        components(Faulty(builtin_source, blind("codec")))


def test_an_absent_and_an_additional_tap_are_red(builtin_source: ModelSource) -> None:
    def fault(change: Callable[..., object]) -> Callable[[ResidentModel], None]:
        def put(resident: ResidentModel) -> None:
            network = resident.component("transformer").network  # type: ignore[attr-defined]
            inner = network.observe
            resident.component("transformer").observe = (  # type: ignore[attr-defined]
                lambda tap: inner(lambda name, value: change(tap, name, value))
            )

        return put

    def drop(tap: Callable[..., None], name: str, value: torch.Tensor) -> None:
        if name != "blocks.1.ffn":
            tap(name, value)

    def add(tap: Callable[..., None], name: str, value: torch.Tensor) -> None:
        tap(name, value)
        if name == "blocks.1.ffn":
            tap(f"{name}.twice", value)

    absent = components(Faulty(builtin_source, fault(drop)))
    assert not absent.passed
    assert "'blocks.1.ffn'" in absent.message
    assert "was not computed" in absent.message
    additional = components(Faulty(builtin_source, fault(add)))
    assert "'blocks.1.ffn.twice'" in additional.message
    assert "was not expected" in additional.message
