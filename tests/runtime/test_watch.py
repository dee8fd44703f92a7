"""The NaN watch sees every floating-point tensor of a result, and names the one that is wrong."""

from __future__ import annotations

import pytest
import torch

from ostinato.backend.nets.kv import LayerKV
from ostinato.errors import NonFinite
from ostinato.runtime.watch import located, require_finite
from ostinato.work import WorkResult

SHAPE = (1, 4, 2, 8)


def result_of(**outputs: object) -> WorkResult:
    return WorkResult(outputs={"batched": outputs})


def layers() -> tuple[LayerKV, ...]:
    return tuple(LayerKV(*(torch.zeros(SHAPE) for _ in LayerKV._fields)) for _ in range(3))


def test_what_is_finite_or_no_float_passes() -> None:
    require_finite(
        result_of(
            prediction=torch.full(SHAPE, 3.4e38),
            layers=layers(),
            ids=torch.tensor([2**62]),
            mask=torch.tensor([True]),
            notes=("a sentence",),
            nothing=None,
        ),
        "r1: step 1",
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_one_value_is_enough(value: float, dtype: torch.dtype) -> None:
    prediction = torch.zeros(SHAPE, dtype=dtype)
    prediction[0, -1, -1, -1] = value
    with pytest.raises(NonFinite, match=r"r1: step 7 .* 'prediction' of call 'batched'"):
        require_finite(result_of(prediction=prediction), "r1: step 7 of node 'rollout'")


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("field", range(len(LayerKV._fields)))
def test_each_tensor_of_each_layer_is_looked_at(layer: int, field: int) -> None:
    found = layers()
    found[layer][field][0, 0, 0, 0] = float("nan")
    with pytest.raises(NonFinite, match=rf"'layers\[{layer}\]\[{field}\]'"):
        require_finite(result_of(layers=found), "r1: step 7")


def test_each_call_of_a_plan_is_looked_at() -> None:
    bad = {"prediction": torch.tensor(float("nan"))}
    good = {"prediction": torch.tensor(0.0)}
    with pytest.raises(NonFinite, match="of call 'uncond'"):
        require_finite(WorkResult(outputs={"cond": good, "uncond": bad}), "r1: step 7")


def test_what_others_found_is_located() -> None:
    found = NonFinite("denoise step 2 of 4 left NaN in the latents")
    with (
        pytest.raises(NonFinite, match=r"^r1: step 7: denoise step 2 of 4") as caught,
        located("r1: step 7"),
    ):
        raise found
    assert caught.value.__cause__ is found
    with pytest.raises(ZeroDivisionError), located("r1: step 7"):
        _ = 1 // 0
