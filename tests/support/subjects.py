"""Subjects of the parity gates with a fault in what they serve, or in what their card says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ostinato.card import ModelSource
from ostinato.parity.perturb import Perturbation
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.runtime import ResidentModel

QUICK = VerifyOptions(quick=True)


class Faulty(Subject):
    """Puts a fault into every resident model that a gate gets; references stay as they are."""

    def __init__(self, source: ModelSource, fault: Callable[[ResidentModel], None]) -> None:
        super().__init__(source, VerifyOptions(quick=True))
        self._fault = fault

    def _perturb(self, resident: ResidentModel) -> None:
        self._fault(resident)


def with_parity(source: ModelSource, **changes: object) -> ModelSource:
    """Change what a card says of its parity."""
    parity = dataclasses.replace(source.card.parity, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(source, card=dataclasses.replace(source.card, parity=parity))


def moved(source: ModelSource, weight: str) -> Subject:
    """Move one weight of what is served."""
    return Subject(source, VerifyOptions(quick=True, perturbation=Perturbation.parse(weight)))
