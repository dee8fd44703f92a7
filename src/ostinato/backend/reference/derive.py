"""The card of a reference: the same files and loops, other components, another precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ostinato.backend.reference.component import DTYPE, PRECISION, ReferenceComponent
from ostinato.card import Determinism, ModelSource
from ostinato.tasks import ModelId


def derive_reference(
    source: ModelSource, adapters: Mapping[str, type[ReferenceComponent]]
) -> ModelSource:
    """Derive `<model>-reference`, with an adapter for every component by name.

    The card records the served one as its parent. It promises the value and not the bytes: numpy's
    matrix products are free to add in another order on another run.
    """
    card = source.card
    variant = card.derive(
        model_id=ModelId(f"{card.model_id}-reference"),
        components=tuple(
            dataclasses.replace(spec, adapter=_import_string(adapters[spec.name]))
            for spec in card.components
        ),
        precision=PRECISION,
        recipe=dataclasses.replace(
            card.recipe,
            assumes_precision=DTYPE,
            consistency="the served forward written again in float64 numpy, to measure it by",
        ),
        parity=dataclasses.replace(
            card.parity,
            oracle=None,
            reference=None,
            output_determinism=Determinism.TOLERANCE,
            fast_batch_tolerances={},
        ),
    )
    return ModelSource(card=variant, folder=source.folder)


def _import_string(adapter: type[ReferenceComponent]) -> str:
    return f"{adapter.__module__}:{adapter.__qualname__}"
