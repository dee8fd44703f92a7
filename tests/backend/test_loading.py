"""Loading is alone in the process and leaves its globals as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ostinato.backend.loading import loading
from ostinato.models.wan.components import WanTextEncoder, WanTransformer, WanVae
from ostinato.models.wan.open import open_wan

ADAPTERS = {"text_encoder": WanTextEncoder, "transformer": WanTransformer, "vae": WanVae}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_and_the_seed_are_the_callers(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    torch.set_default_dtype(dtype)
    try:
        with pytest.raises(KeyError), loading():
            raise KeyError(torch.manual_seed(7))
        with loading():
            assert torch.ones(1).dtype is torch.float32
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), expected)


def test_one_thread_loads_at_a_time() -> None:
    inside, overlapped = threading.Lock(), threading.Event()
    started = threading.Barrier(4)

    def load() -> None:
        started.wait()
        for _ in range(20):
            with loading(), loading():
                if not inside.acquire(blocking=False):
                    overlapped.set()
                    return
                nn.Linear(64, 64)
                inside.release()

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlapped.is_set()


def test_threads_that_load_two_folders_do_not_poison_the_process(
    tiny_wan_folder: Callable[[str], Path],
) -> None:
    folders = [
        tiny_wan_folder(name)
        for name in ("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler")
    ]
    register, failures = nn.Module.register_parameter, list[BaseException]()
    started = threading.Barrier(4)

    def load(folder: Path) -> None:
        started.wait()
        try:
            for _ in range(4):
                source = open_wan(folder)
                for name, adapter in ADAPTERS.items():
                    spec = source.card.component(name)
                    module = adapter.load(source.folder, spec, source.card.precision).module
                    assert not any(p.is_meta for p in module.parameters())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load, args=(folder,)) for folder in folders * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert nn.Module.register_parameter is register
    assert not nn.Linear(2, 2).weight.is_meta
