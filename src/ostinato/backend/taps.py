"""See values inside a component: what its modules give, and what no module of it gives.

Whoever looks is forgotten when the context closes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeAlias, cast

import torch
from torch import nn

Tap: TypeAlias = Callable[[str, torch.Tensor], None]
"""Takes a module path and a value; the value is the component's own and must not be written to."""


class TapPoint:
    """A place in a component that shows values which are no module's output."""

    __slots__ = ("taps",)

    def __init__(self) -> None:
        """Nobody looks."""
        self.taps: tuple[Tap, ...] = ()

    def __call__(self, name: str, value: torch.Tensor) -> None:
        """Show a value to whoever looks, outermost first."""
        for tap in self.taps:
            tap(name, value)

    @contextmanager
    def observe(self, tap: Tap) -> Generator[None, None, None]:
        """Let `tap` look while the context is open; contexts nest."""
        before = self.taps
        self.taps = (*before, tap)
        try:
            yield
        finally:
            self.taps = before


@contextmanager
def module_taps(module: nn.Module, names: Iterable[str], tap: Tap) -> Generator[None, None, None]:
    """Call `tap(name, output)` whenever the submodule of that path ran, in the order they run.

    Of a module that gives several values the first is taken. Raises AttributeError for a name
    that the module does not have.
    """

    def see(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            first = cast("tuple[object, ...]", output)[0] if isinstance(output, tuple) else output
            assert isinstance(first, torch.Tensor), f"{name} gave a {type(first).__name__}"
            tap(name, first)

        return hook

    handles = [module.get_submodule(name).register_forward_hook(see(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def wan_transformer_taps(num_layers: int, *, whole_blocks: bool) -> tuple[str, ...]:
    """Name what is looked at in a Wan transformer, in the order in which it is computed.

    whole_blocks: each block runs as a module, so that its output can be hooked.
    """
    embedder = "condition_embedder"
    names = [
        "patch_embedding",
        *(f"{embedder}.{part}" for part in ("time_embedder", "time_proj", "text_embedder")),
    ]
    for index in range(num_layers):
        block = f"blocks.{index}"
        names += [f"{block}.attn1.to_out.0", f"{block}.attn2.to_out.0", f"{block}.ffn"]
        names += [block] if whole_blocks else []
    return (*names, "proj_out")


def umt5_taps(num_layers: int) -> tuple[str, ...]:
    """Name what is looked at in a UMT5 encoder: the hidden states after each block."""
    blocks = (f"encoder.block.{index}" for index in range(num_layers))
    return (*blocks, "encoder.final_layer_norm")
