"""Module taps see what modules give while the context is open, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ostinato.backend.taps import TapPoint, module_taps, umt5_taps, wan_transformer_taps


def test_taps_see_outputs_in_the_order_they_run() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    seen: list[tuple[str, torch.Tensor]] = []
    with module_taps(net, ("2", "0"), lambda name, value: seen.append((name, value))):
        out = net(torch.ones(1, 2))
    assert [name for name, _ in seen] == ["0", "2"]
    assert seen[1][1] is out
    net(torch.ones(1, 2))
    assert len(seen) == 2


def test_hooks_are_gone_after_a_failure() -> None:
    net = nn.Linear(2, 3)
    seen: list[str] = []
    with (
        pytest.raises(RuntimeError, match="shapes"),
        module_taps(net, ("",), lambda name, _: seen.append(name)),
    ):
        net(torch.ones(1, 5))
    net(torch.ones(1, 2))
    assert seen == []


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError), module_taps(nn.Linear(2, 2), ("no",), lambda *_: None):
        pass


def test_taps_of_a_transformer_are_named_in_order() -> None:
    names = wan_transformer_taps(2, whole_blocks=True)
    assert names.index("blocks.0.attn1.to_out.0") < names.index("blocks.0") < len(names) - 1
    assert names[-1] == "proj_out"
    assert len(set(names)) == len(names) == 4 + 2 * 4 + 1
    assert "blocks.0" not in wan_transformer_taps(2, whole_blocks=False)


def test_a_point_shows_values_to_all_who_look_and_to_nobody_afterwards() -> None:
    point, seen = TapPoint(), list[str]()
    value = torch.ones(1)
    point("before", value)
    with point.observe(lambda name, shown: seen.append(f"outer {name} {shown is value}")):
        with pytest.raises(ValueError, match="stop"), point.observe(_stop):
            point("raises", value)
        with point.observe(lambda name, _: seen.append(f"inner {name}")):
            point("both", value)
        point("one", value)
    point("after", value)
    assert seen == ["outer raises True", "outer both True", "inner both", "outer one True"]


def _stop(name: str, value: torch.Tensor) -> None:
    raise ValueError("stop")


def test_taps_of_a_text_encoder_are_named_in_order() -> None:
    assert umt5_taps(2) == ("encoder.block.0", "encoder.block.1", "encoder.final_layer_norm")
