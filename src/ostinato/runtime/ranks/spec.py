"""A resolved request as a message, and back."""

from __future__ import annotations

from typing import cast

import msgspec
import torch

from ostinato.request import GenerationSpec
from ostinato.runtime.ranks.messages import Arrived
from ostinato.runtime.remote.arrays import flat, restored
from ostinato.runtime.remote.convert import decode_fields, encode_fields, fields_of
from ostinato.runtime.remote.messages import ArrayRef
from ostinato.runtime.running import RunningRequest

_LATENTS = "initial_latents"
_SPEC = fields_of(GenerationSpec, without=_LATENTS, spelt={})


def arrived(running: RunningRequest) -> Arrived:
    """Describe a request; raises InvalidMessage for one that cannot travel."""
    spec, claim = running.spec, running.claim
    return Arrived(
        spec=encode_fields(_SPEC, spec, without=_LATENTS),
        latents=_described(spec),
        tenant=claim.tenant,
        priority=claim.priority,
        arrival=claim.arrival,
    )


def read_spec(message: Arrived) -> GenerationSpec:
    """Return the spec of a request, with latents of its own; raises InvalidMessage."""
    latents = None if message.latents is None else restored(message.latents, None)
    return GenerationSpec(**decode_fields(_SPEC, message.spec), initial_latents=latents)


def _described(spec: GenerationSpec) -> ArrayRef | None:
    if spec.initial_latents is None:
        return None
    ref, data = flat(cast("torch.Tensor", spec.initial_latents))
    return msgspec.structs.replace(ref, data=data.tobytes())
