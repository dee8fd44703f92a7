"""Guidance: which branches a step needs, how they become calls, how predictions combine.

Guidance 1.0 costs exactly one branch whatever the form. Rules keep no state on the object: what
a rule carries from step to step (momentum, gates) is an argument and a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

import torch

from ostinato.card import GuidanceForm
from ostinato.errors import InvalidCard
from ostinato.loop.contract import as_tensor
from ostinato.work import ComponentCall, WorkResult


class Branch(StrEnum):
    """One conditioning of the network within a step."""

    COND = "cond"
    UNCOND = "uncond"


BranchInputs = Mapping[Branch, Mapping[str, object]]
"""Inputs that differ by branch: branch -> argument name -> value."""


class GuidanceRule(Protocol):
    """How the predictions of a step's branches become one."""

    def combine(
        self,
        predictions: Mapping[Branch, torch.Tensor],
        guidance_scale: float,
        latents: torch.Tensor,
        sigma: float,
        state: object,
    ) -> tuple[torch.Tensor, object]:
        """Combine predictions [B, ...] into one of the same shape; pure."""
        ...


@dataclass(frozen=True, slots=True)
class ClassifierFree:
    """uncond + s (cond - uncond): https://arxiv.org/abs/2207.12598 in the Imagen convention.

    The order of operations matters for bits; the spelling cond + s (cond - uncond) is another
    rule with a scale that is smaller by one.
    """

    def combine(
        self,
        predictions: Mapping[Branch, torch.Tensor],
        guidance_scale: float,
        latents: torch.Tensor,
        sigma: float,
        state: object,
    ) -> tuple[torch.Tensor, object]:
        """Combine predictions [B, ...]; a single branch is returned as it is."""
        cond = predictions[Branch.COND]
        if Branch.UNCOND not in predictions:
            return cond, state
        uncond = predictions[Branch.UNCOND]
        return uncond + guidance_scale * (cond - uncond), state


GUIDANCE_RULES: Mapping[str, GuidanceRule] = MappingProxyType({"classifier_free": ClassifierFree()})


def guidance_rule(name: str) -> GuidanceRule:
    """Return a rule by name; raises InvalidCard with the valid names."""
    if name not in GUIDANCE_RULES:
        raise InvalidCard(f"no guidance rule {name!r}; valid: {sorted(GUIDANCE_RULES)}")
    return GUIDANCE_RULES[name]


def branches(form: GuidanceForm, guidance_scale: float) -> tuple[Branch, ...]:
    """Return the branches a step runs, the conditional one first."""
    second = form in (GuidanceForm.TWO_FORWARD, GuidanceForm.BATCHED) and guidance_scale > 1.0
    return (Branch.COND, Branch.UNCOND) if second else (Branch.COND,)


def branch_calls(
    form: GuidanceForm,
    component: str,
    op: str,
    shared: Mapping[str, object],
    by_branch: BranchInputs,
    guidance: torch.Tensor | None = None,
) -> tuple[ComponentCall, ...]:
    """Describe one step's calls.

    two_forward: a call per branch. batched: one call whose per-branch inputs are tuples in branch
    order; stacking them is the op's work, since `next` runs no kernel. embedded: one call that
    takes `guidance`, the scale as a tensor made at init.
    """
    if form is GuidanceForm.BATCHED and len(by_branch) > 1:
        names = next(iter(by_branch.values()))
        stacked = {name: tuple(inputs[name] for inputs in by_branch.values()) for name in names}
        call = ComponentCall(
            call_id="batched", component=component, op=op, inputs={**shared, **stacked}
        )
        return (call,)
    extra = {} if guidance is None else {"guidance": guidance}
    return tuple(
        ComponentCall(
            call_id=branch.value,
            component=component,
            op=op,
            inputs={**shared, **inputs, **extra},
        )
        for branch, inputs in by_branch.items()
    )


def branch_predictions(
    form: GuidanceForm, order: tuple[Branch, ...], result: WorkResult, name: str
) -> dict[Branch, torch.Tensor]:
    """Take each branch's prediction out of what `branch_calls` returned."""
    if form is GuidanceForm.BATCHED and len(order) > 1:
        stacked = as_tensor(result.get("batched", name), name)
        return dict(zip(order, stacked.chunk(len(order)), strict=True))
    return {branch: as_tensor(result.get(branch.value, name), name) for branch in order}
