"""Operations are the methods that a component lists, and no others."""

from __future__ import annotations

import gc
import weakref

import pytest

from ostinato.backend.operations import Operations
from ostinato.errors import InvalidPlan


class _Network(Operations):
    OPS = ("predict",)

    def predict(self, latents: int) -> dict[str, object]:
        return {"prediction": latents + 1}

    def load(self) -> None:
        raise AssertionError("not an operation")


def test_an_operation_is_found_by_its_name() -> None:
    assert _Network().op("predict")(latents=1) == {"prediction": 2}


@pytest.mark.parametrize("name", ["load", "op", "__init__", "decode", ""])
def test_what_is_not_listed_is_refused(name: str) -> None:
    with pytest.raises(InvalidPlan, match=rf"_Network has no op '{name}'; valid: \['predict'\]"):
        _Network().op(name)


def test_a_component_goes_with_its_last_reference() -> None:
    network = _Network()
    gone = weakref.ref(network)
    network.op("predict")(latents=1)
    gc.disable()
    try:
        del network
        assert gone() is None
    finally:
        gc.enable()
