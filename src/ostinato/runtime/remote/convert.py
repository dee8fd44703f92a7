"""Contracts to messages and back: requests, outputs, errors.

The fields of a request and of a provenance travel under their own names and types, so that one
which is added to the contract travels too. What does not travel is known on both sides: the arrays
of a request come beside it, and the spec of a provenance is the one that the client resolved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast, get_type_hints

import msgspec
import numpy as np
import torch

from ostinato import errors
from ostinato.errors import InternalError, InvalidMessage, InvalidRequest, OstinatoError
from ostinato.media import Video
from ostinato.request import GenerationSpec, ImagePart, LatentPart, Request
from ostinato.runtime.output import Output, Provenance
from ostinato.runtime.plain import plain
from ostinato.runtime.remote.arrays import Array
from ostinato.runtime.remote.messages import FinishedTold, WireError
from ostinato.tasks import Modality, OutputName


def fields_of(contract: type, *, without: str, spelt: dict[str, object]) -> type[msgspec.Struct]:
    """Return a strict struct of a contract's fields; `spelt` gives those with a plainer type."""
    hints = get_type_hints(contract) | spelt
    fields = [(f.name, hints[f.name]) for f in dataclasses.fields(contract) if f.name != without]
    return msgspec.defstruct(
        f"{contract.__name__}Fields", fields, kw_only=True, forbid_unknown_fields=True
    )


_REQUEST = fields_of(
    Request, without="inputs", spelt={"model": str, "task": str, "outputs": tuple[str, ...]}
)
_OUTPUT_NAMES = tuple(name.value for name in OutputName)
_PROVENANCE = fields_of(Provenance, without="spec", spelt={})


def request_fields(request: Request) -> msgspec.Raw:
    """Encode a request that has been resolved, but for its inputs."""
    return encode_fields(_REQUEST, plain(request), without="inputs")


def request_arrays(
    request: Request, spec: GenerationSpec
) -> tuple[tuple[str, ...], tuple[Array, ...]]:
    """Return modality and array of each input; latents are the copy that the spec holds.

    Raises InvalidRequest for pixels that are no array.
    """
    arrays: list[Array] = []
    for part in request.inputs:
        value: object = spec.initial_latents if isinstance(part, LatentPart) else part.pixels
        if not isinstance(value, torch.Tensor | np.ndarray):
            raise InvalidRequest(f"an input is a {type(value).__name__}; expected an array")
        arrays.append(cast("Array", value))
    return tuple(part.modality.value for part in request.inputs), tuple(arrays)


def read_request(fields: msgspec.Raw, parts: Sequence[str], arrays: Sequence[Array]) -> Request:
    """Decode a request; raises InvalidMessage."""
    if len(parts) != len(arrays):
        raise InvalidMessage(f"a request has {len(parts)} inputs and {len(arrays)} arrays")
    inputs = tuple(_part(modality, value) for modality, value in zip(parts, arrays, strict=True))
    return Request(**decode_fields(_REQUEST, fields), inputs=inputs)


def output_message(ticket: int, output: Output) -> tuple[FinishedTold, tuple[Array, ...]]:
    """Return the message of an output, and its arrays."""
    names = tuple(name.value for name in output.values)
    videos = [value for value in output.values.values() if isinstance(value, Video)]
    message = FinishedTold(
        ticket=ticket,
        outputs=names,
        fps=videos[0].fps if videos else 0.0,
        provenance=encode_fields(_PROVENANCE, output.provenance, without="spec"),
        advice=output.advice,
    )
    values = (v.frames if isinstance(v, Video) else v for v in output.values.values())
    return message, tuple(cast("Array", value) for value in values)


def read_output(message: FinishedTold, arrays: Sequence[Array], spec: GenerationSpec) -> Output:
    """Return the output that a message describes; raises InvalidMessage."""
    if len(message.outputs) != len(arrays):
        raise InvalidMessage(f"{len(message.outputs)} outputs came with {len(arrays)} arrays")
    values: dict[OutputName, Video | torch.Tensor] = {}
    for name, value in zip(message.outputs, arrays, strict=True):
        if name not in _OUTPUT_NAMES:
            raise InvalidMessage(f"an output is called {name!r}; valid: {_OUTPUT_NAMES}")
        if isinstance(value, np.ndarray):
            values[OutputName(name)] = _video(value, message.fps)
        else:
            values[OutputName(name)] = value
    provenance = Provenance(**decode_fields(_PROVENANCE, message.provenance), spec=spec)
    return Output(values=values, provenance=provenance, advice=message.advice)


def read_chunk(arrays: Sequence[Array]) -> object:
    """Return a chunk's frames, as little to be written as in one process; raises InvalidMessage."""
    if len(arrays) != 1 or not isinstance(arrays[0], np.ndarray):
        raise InvalidMessage(f"a chunk came with {len(arrays)} values; expected one array")
    arrays[0].flags.writeable = False
    return arrays[0]


def error_message(error: OstinatoError) -> WireError:
    """Describe a typed error; its trace goes along as notes."""
    codes = [kind.code for kind in type(error).__mro__ if issubclass(kind, OstinatoError)]
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return WireError(
        codes=tuple(dict.fromkeys(codes)), message=_text(str(error)), notes=tuple(map(_text, notes))
    )


def read_error(described: WireError) -> OstinatoError:
    """Return the error that was described: of the nearest class that this process knows."""
    known = _classes()
    kinds = [known[code] for code in described.codes if code in known]
    error = (kinds[0] if kinds else InternalError)(described.message)
    for note in described.notes:
        error.add_note(note)
    return error


def _classes() -> dict[str, type[OstinatoError]]:
    found = (kind for kind in vars(errors).values() if isinstance(kind, type))
    leaves = (k for k in found if issubclass(k, OstinatoError) and k is not OstinatoError)
    return {kind.code: kind for kind in leaves}


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _part(modality: str, value: Array) -> ImagePart | LatentPart:
    if modality == Modality.IMAGE:
        return ImagePart(pixels=value)
    if modality == Modality.LATENT:
        return LatentPart(latents=value)
    raise InvalidMessage(f"an input has modality {modality!r}; expected image or latent")


def _video(frames: Array, fps: float) -> Video:
    try:
        return Video(frames=cast("np.ndarray[Any, np.dtype[np.uint8]]", frames), fps=fps)
    except errors.BadInput as error:
        raise InvalidMessage(f"a clip came that is none: {error}") from error


def encode_fields(kind: type[msgspec.Struct], contract: object, *, without: str) -> msgspec.Raw:
    """Encode the fields of a contract but for `without`; raises what msgspec raises."""
    values = {name: getattr(contract, name) for name in kind.__struct_fields__ if name != without}
    return msgspec.Raw(msgspec.msgpack.encode(kind(**values)))


# Any: the types of the fields were checked while they were decoded.
def decode_fields(kind: type[msgspec.Struct], fields: msgspec.Raw) -> dict[str, Any]:
    """Decode what `encode_fields` encoded; raises InvalidMessage."""
    try:
        return msgspec.structs.asdict(msgspec.msgpack.decode(fields, type=kind))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"{kind.__name__} do not decode: {error}") from error
