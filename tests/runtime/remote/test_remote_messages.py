"""Messages and contracts: strict both ways, and every typed error comes back as itself."""

from __future__ import annotations

import dataclasses
import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato import errors
from ostinato.errors import InternalError, InvalidMessage, OstinatoError
from ostinato.request import Request
from ostinato.runtime.remote import messages as m
from ostinato.runtime.remote.convert import (
    error_message,
    read_error,
    read_request,
    request_fields,
)
from support.requests import request

TYPED = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, OstinatoError) and kind is not OstinatoError
]


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def test_a_message_comes_back_equal() -> None:
    ref = m.ArrayRef(kind="torch", dtype="bfloat16", shape=(2, 0, 3), offset=64)
    for message in (
        m.Beat(),
        m.BlockOpened(block=1, size_bytes=2**35),
        m.ChunkTold(ticket=3, output="video", index=1, arrays=(ref,), block=1),
        m.FailedTold(ticket=3, error=m.WireError(codes=("a",), message="b", notes=("c",))),
    ):
        assert m.decode(m.encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x81" * 5000,
        msgspec.msgpack.encode({"type": "launch"}),
        msgspec.msgpack.encode({"ticket": 1}),
        msgspec.msgpack.encode({"type": "cancel"}),
        msgspec.msgpack.encode({"type": "cancel", "ticket": "1"}),
        msgspec.msgpack.encode({"type": "cancel", "ticket": 1, "extra": 2}),
        msgspec.msgpack.encode({"type": "cancel", "ticket": 1}) + b"\x00",
        msgspec.msgpack.encode(["cancel", 1]),
    ],
    ids=range(10),
)
def test_what_is_no_message_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        m.decode(data)


@given(st.binary(max_size=200))
def test_noise_is_a_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        m.decode(data)


def test_what_cannot_be_encoded_is_a_typed_error() -> None:
    for text in ("\ud800", "x" * (m.MAX_MESSAGE_BYTES + 1)):
        with pytest.raises(InvalidMessage):
            m.encode(m.AdviceTold(ticket=1, message=text))


def test_a_request_comes_back_equal_with_every_field() -> None:
    full = request(
        negative_prompt="cat",
        seed=2**63 - 1,
        height=64,
        width=32,
        fps=12.5,
        guidance_scale=2,
        sampler="euler",
        flow_shift=3.0,
        outputs=("video", "latents"),
        priority=-3,
        deadline_s=1.5,
    )
    blank = [f.name for f in dataclasses.fields(Request) if getattr(full, f.name) == f.default]
    assert set(blank) <= {"inputs", "tenant"}, "give the new field a value here"
    assert read_request(request_fields(full), (), ()) == full


def test_fields_that_are_no_request_are_a_typed_error() -> None:
    for fields in ({}, {"model": "m"}, [1], "x"):
        with pytest.raises(InvalidMessage, match="RequestFields"):
            read_request(raw(fields), (), ())
    good = msgspec.msgpack.decode(request_fields(request()))
    for wrong in ({"seed": "1"}, {"seeed": 1}, {"outputs": "video"}):
        with pytest.raises(InvalidMessage, match="RequestFields"):
            read_request(raw({**good, **wrong}), (), ())
    with pytest.raises(InvalidMessage, match="1 inputs and 0 arrays"):
        read_request(raw(good), ("latent",), ())


@pytest.mark.parametrize("kind", TYPED, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_itself(kind: type[OstinatoError]) -> None:
    error = kind("12 of 7 \ud800; leave it out")
    error.add_note("a trace")
    found = read_error(m.decode(m.encode(_failed(error))).error)  # type: ignore[union-attr]
    assert type(found) is kind
    assert found.code == kind.code
    assert str(found) == "12 of 7 \\ud800; leave it out"
    assert found.__notes__ == ["a trace"]


def _failed(error: OstinatoError) -> m.FailedTold:
    return m.FailedTold(ticket=1, error=error_message(error))


def test_an_error_of_a_plugin_comes_back_as_the_nearest_known() -> None:
    class TooBlue(errors.RecipeMismatch):
        code = "too_blue"

    assert type(read_error(error_message(TooBlue("x")))) is errors.RecipeMismatch
    assert type(read_error(m.WireError(codes=("unheard",), message="x"))) is InternalError
