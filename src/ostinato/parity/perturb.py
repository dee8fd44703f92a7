"""Move one weight of the served side, to see whether the gates see it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import nn

from ostinato.errors import BadInput, InvalidCard
from ostinato.loop.contract import Component

DEFAULT_AMOUNT = 1e-3
_FORM = re.compile(r"(\w+)\.([\w.]+?)(?:\[(\d+)\])?(?:=(.+))?")


@runtime_checkable
class HasModule(Protocol):
    """A component whose weights are those of one module, named as they are in its files."""

    module: nn.Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Which scalar to move and by how much; index counts the parameter's elements in order."""

    component: str
    parameter: str
    index: int
    amount: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `COMPONENT.PARAMETER[INDEX]=AMOUNT`; index 0 and amount 1e-3 may be left out.

        Raises BadInput.
        """
        found = _FORM.fullmatch(text)
        try:
            if found is None:
                raise ValueError("no such form")
            component, parameter, index, amount = found.groups()
            moved = DEFAULT_AMOUNT if amount is None else float(amount)
        except ValueError:
            raise BadInput(
                f"{text!r} names no weight; expected COMPONENT.PARAMETER[INDEX]=AMOUNT, such as "
                "transformer.proj_out.weight or transformer.proj_out.weight[7]=0.01"
            ) from None
        return cls(component=component, parameter=parameter, index=int(index or 0), amount=moved)

    def __str__(self) -> str:
        """Write it in full, as `parse` reads it."""
        return f"{self.component}.{self.parameter}[{self.index}]={self.amount!r}"

    @torch.no_grad()
    def apply(self, component: Component) -> None:
        """Add the amount; raises BadInput for a parameter or index that is not there."""
        tensors = dict(module_of(component, self.component).state_dict(keep_vars=True))
        if self.parameter not in tensors:
            near = difflib.get_close_matches(self.parameter, tensors, n=5, cutoff=0.4)
            raise BadInput(
                f"{self.component!r} has no parameter {self.parameter!r}; "
                + (f"near it: {', '.join(near)}" if near else f"it has {len(tensors)} others")
            )
        values = tensors[self.parameter].detach().view(-1)
        if self.index >= len(values):
            raise BadInput(
                f"{self.parameter!r} has {len(values)} elements; index {self.index} is not there"
            )
        before = values[self.index].clone()
        values[self.index] += self.amount
        if torch.equal(before, values[self.index]):
            raise BadInput(
                f"adding {self.amount:g} to {self.parameter!r}[{self.index}], which is "
                f"{float(before):g} in {before.dtype}, changes nothing; give a larger amount"
            )


def module_of(component: Component, name: str) -> nn.Module:
    """Return what holds a component's weights; raises InvalidCard for one that does not tell."""
    if not isinstance(component, HasModule):
        raise InvalidCard(
            f"component {name!r} has no `module`, so its weights cannot be looked at; a "
            "component with weights gives the torch module that holds them"
        )
    return component.module
