"""Strict JSON for contracts: dataclasses in, the same dataclasses out, unknown names refused.

msgspec decodes dataclasses natively but ignores unknown keys; a card or request with a misspelt
field must not load, so the decoded value is encoded again and compared key by key.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from ostinato.errors import BadInput, UnknownField

T = TypeVar("T")


def encode(value: object) -> bytes:
    """Encode a contract as canonical JSON: sorted keys, no spaces, tuples as arrays."""
    return msgspec.json.encode(value, order="deterministic")


def decode(data: bytes | str, kind: type[T], *, what: str) -> T:
    """Decode JSON into `kind`.

    Raises UnknownField for a key that `kind` does not declare and BadInput for anything else
    that does not fit; `what` names the thing in the message.
    """
    try:
        raw: object = msgspec.json.decode(data)
        value = msgspec.convert(raw, kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadInput(f"{what} does not decode: {error}") from error
    known: object = msgspec.json.decode(encode(value))
    unknown = tuple(_unknown_keys(raw, known, ""))
    if unknown:
        raise UnknownField(f"{what} has fields that nobody declares: {', '.join(unknown)}")
    return value


def digest(value: object) -> str:
    """Return the sha256 of a contract's canonical JSON, as `sha256:<64 hex>`."""
    return "sha256:" + hashlib.sha256(encode(value)).hexdigest()


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
