"""Strict JSON for contracts: dataclasses in, the same dataclasses out, unknown names refused.

msgspec decodes dataclasses natively but ignores unknown keys; a card or request with a misspelt
field must not load, so the decoded value is encoded again and compared key by key. It also encodes
what it would never decode (NaN becomes null, a list passes for a tuple), so `canonical` reads its
own output back: a contract that does not survive the trip has no digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TypeVar

import msgspec

from ostinato.errors import BadInput, UnknownField

T = TypeVar("T")


def encode(value: object) -> bytes:
    """Encode as JSON: fields in declared order, mappings sorted, tuples as arrays, no check."""
    return msgspec.json.encode(value, order="deterministic")


def canonical(value: object) -> bytes:
    """Encode a contract as canonical JSON: all keys sorted, no spaces, one spelling for a value.

    A whole number in a float field is written as a float, so that a contract and its decoded twin
    have the same bytes. Raises BadInput when the value would not come back equal: a wrong type,
    NaN, infinity, text that is not Unicode.
    """
    kind = type(value)
    try:
        twin = msgspec.json.decode(msgspec.json.encode(value), type=kind)
        if twin == value:
            return msgspec.json.encode(twin, order="sorted")
    except (msgspec.MsgspecError, TypeError, UnicodeEncodeError) as error:
        raise BadInput(f"this {kind.__name__} cannot be written as JSON: {error}") from error
    difference = _first_difference(value, twin)
    raise BadInput(f"this {kind.__name__} would not come back equal from JSON: {difference}")


def decode(data: bytes | str, kind: type[T], *, what: str) -> T:
    """Decode JSON into `kind`.

    Raises UnknownField for a key that `kind` does not declare and BadInput for anything else
    that does not fit; `what` names the thing in the message.
    """
    try:
        raw: object = msgspec.json.decode(data)
        value = msgspec.convert(raw, kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"{what} does not decode: {error}") from error
    known: object = msgspec.json.decode(encode(value))
    unknown = tuple(_unknown_keys(raw, known, ""))
    if unknown:
        raise UnknownField(f"{what} has fields that nobody declares: {', '.join(unknown)}")
    return value


def digest(value: object) -> str:
    """Return the sha256 of a contract's canonical JSON, as `sha256:<64 hex>`."""
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def _first_difference(value: object, twin: object, path: str = "") -> str:
    """Name the first field whose decoded twin is another value."""
    if dataclasses.is_dataclass(value) and type(value) is type(twin):
        for field in dataclasses.fields(value):
            ours, theirs = getattr(value, field.name), getattr(twin, field.name)
            if ours != theirs:
                return _first_difference(ours, theirs, f"{path}.{field.name}")
    if isinstance(value, tuple) and isinstance(twin, tuple):
        for index, (ours, theirs) in enumerate(zip(value, twin, strict=False)):
            if ours != theirs:
                return _first_difference(ours, theirs, f"{path}[{index}]")
    return f"`{path.lstrip('.')}` is {value!r} and comes back as {twin!r}"


def _unknown_keys(raw: object, known: object, path: str) -> list[str]:
    if isinstance(raw, dict) and isinstance(known, dict):
        found = [f"{path}{key}" for key in raw if key not in known]
        for key in raw:
            if key in known:
                found += _unknown_keys(raw[key], known[key], f"{path}{key}.")
        return found
    if isinstance(raw, list) and isinstance(known, list):
        pairs = zip(raw, known, strict=False)
        return [k for i, (r, n) in enumerate(pairs) for k in _unknown_keys(r, n, f"{path}{i}.")]
    return []
