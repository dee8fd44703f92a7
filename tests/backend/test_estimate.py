"""Counted work is what the library's own counter counts, for every op of both families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ostinato.backend.estimate import attention, linear, shape_of, total
from ostinato.backend.nets.kv import ContextKV
from ostinato.errors import InvalidPlan
from ostinato.loop.contract import Component
from ostinato.loop.cost import Estimated
from ostinato.models.registry import open_model
from ostinato.runtime import ResidentModel
from ostinato.work import CacheRef, OpWork, PageId, PageRef

Inputs = dict[str, object]


def counted(component: Component, op: str, inputs: Inputs) -> tuple[int, Mapping[str, object]]:
    """Run an op; attention takes the form that the counter knows."""
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        outputs = component.op(op)(**inputs)
    return counter.get_total_flops(), outputs


def estimate(component: Component, op: str, inputs: Inputs) -> OpWork:
    assert isinstance(component, Estimated)
    return component.estimate(op, inputs)


@pytest.fixture(scope="module")
def wan(tiny_wan_folder: Callable[[str], Path]) -> ResidentModel:
    return ResidentModel(open_model(tiny_wan_folder("UniPCMultistepScheduler")))


@pytest.fixture(scope="module")
def builtin(tiny_builtin_folder: Path) -> ResidentModel:
    return ResidentModel(open_model(tiny_builtin_folder))


def test_wan_encode(wan: ResidentModel) -> None:
    encoder = wan.component("text_encoder")
    flops, _ = counted(encoder, "encode", {"text": "a red circle"})
    assert estimate(encoder, "encode", {"text": "a red circle"}).flops == flops


@pytest.mark.parametrize(("frames", "side"), [(1, 4), (3, 8)])
def test_wan_predict_and_decode(wan: ResidentModel, frames: int, side: int) -> None:
    latents = torch.randn(1, 16, frames, side, side)
    for name, op, inputs in (
        (
            "transformer",
            "predict",
            {"timestep": torch.tensor(500), "prompt_embeds": torch.randn(1, 512, 32)},
        ),
        ("vae", "decode", {}),
    ):
        component = wan.component(name)
        flops, _ = counted(component, op, {"latents": latents, **inputs})
        assert estimate(component, op, {"latents": latents, **inputs}).flops == flops, name


@pytest.mark.parametrize("branches", [1, 2])
def test_builtin_ops(builtin: ResidentModel, branches: int) -> None:
    encoder, transformer = builtin.component("text_encoder"), builtin.component("transformer")
    flops, outputs = counted(encoder, "encode", {"text": "a red circle"})
    assert estimate(encoder, "encode", {"text": "a red circle"}).flops == flops
    embeds: Inputs = {"prompt_embeds": (outputs["prompt_embeds"],) * branches}
    flops, outputs = counted(transformer, "encode_text", embeds)
    assert estimate(transformer, "encode_text", embeds).flops == flops
    block: Inputs = {
        "latents": torch.randn(1, 16, 3, 8, 8),
        "first_frame": torch.tensor(0),
        "text_kv": outputs["text_kv"],
        "context": None,
    }
    flops, outputs = counted(transformer, "store", block)
    assert estimate(transformer, "store", block).flops == flops
    layers = outputs["layers"]
    assert isinstance(layers, tuple)
    block["context"] = tuple(
        ContextKV(torch.cat([layer.key_rotated] * 2, 1), torch.cat([layer.value] * 2, 1))
        for layer in layers
    )
    step = {**block, "timestep": torch.tensor(500.0)}
    flops, _ = counted(transformer, "predict", step)
    assert estimate(transformer, "predict", step).flops == flops
    # Before it is resolved, the same context is a reference to two pages of this very shape.
    pages = CacheRef(pages=tuple(PageRef(page=PageId(i), version=0) for i in range(2)))
    resolved = estimate(transformer, "predict", step)
    assert estimate(transformer, "predict", {**step, "context": pages}) == resolved


def test_builtin_decode(builtin: ResidentModel) -> None:
    codec, inputs = builtin.component("codec"), {"latents": torch.randn(1, 16, 3, 8, 8)}
    flops, _ = counted(codec, "decode", dict(inputs))
    assert estimate(codec, "decode", dict(inputs)).flops == flops


def test_weights_are_those_that_an_op_reads(builtin: ResidentModel, wan: ResidentModel) -> None:
    transformer = builtin.component("transformer")
    text_kv = counted(transformer, "encode_text", {"prompt_embeds": (torch.randn(1, 24, 64),)})[1][
        "text_kv"
    ]
    block: Inputs = {
        "latents": torch.randn(1, 16, 3, 8, 8),
        "first_frame": torch.tensor(0),
        "text_kv": text_kv,
        "context": None,
    }
    text = estimate(transformer, "encode_text", {"prompt_embeds": (torch.randn(1, 24, 64),)})
    predict, store = (estimate(transformer, op, block) for op in ("predict", "store"))
    module = transformer.module  # type: ignore[attr-defined]
    parameters = sum(p.numel() * p.element_size() for p in module.parameters())
    assert text.weight_bytes + predict.weight_bytes == pytest.approx(parameters, rel=0.01)
    head = sum(p.numel() * p.element_size() for p in module.proj_out.parameters())
    assert predict.weight_bytes - store.weight_bytes == head
    assert predict.activation_bytes > 0


def test_what_has_no_shape_yet_counts_as_nothing(wan: ResidentModel) -> None:
    vae = wan.component("vae")
    assert estimate(vae, "decode", {"latents": object()}).flops == 0
    unknown: Inputs = {"latents": object(), "prompt_embeds": object()}
    assert estimate(wan.component("transformer"), "predict", unknown).flops == 0
    assert shape_of(object()) == ()


@pytest.mark.parametrize("name", ["text_encoder", "transformer", "vae"])
def test_an_op_that_there_is_not_is_refused(wan: ResidentModel, name: str) -> None:
    with pytest.raises(InvalidPlan, match="no op 'sing'"):
        estimate(wan.component(name), "sing", {})


def test_by_hand() -> None:
    assert linear(3, 4, 5) == 2 * 3 * 4 * 5
    assert attention(2, 7, 8) == 2 * (2 * 2 * 7 * 8)
    parts = (OpWork(flops=1.0, weight_bytes=2.0), OpWork(flops=3.0, activation_bytes=4.0))
    assert total(parts) == OpWork(flops=4.0, weight_bytes=2.0, activation_bytes=4.0)
