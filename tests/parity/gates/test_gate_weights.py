"""What is in memory is what lies on disk."""

from __future__ import annotations

import torch

from ostinato.card import ModelSource
from ostinato.parity.gates.weights import weights
from ostinato.parity.subject import Subject
from ostinato.runtime import ResidentModel
from support.subjects import Faulty


def test_weights_pass_bit_for_bit(builtin: Subject, wan: Subject) -> None:
    for subject in (builtin, wan):
        result = weights(subject)
        assert result.passed, result.message
        assert result.measured > 100


def test_a_weight_out_of_line_or_in_no_file_is_named(builtin_source: ModelSource) -> None:
    def misalign(resident: ResidentModel) -> None:
        codec = resident.component("codec").module  # type: ignore[attr-defined]
        data = codec.conv_in.bias.data
        storage = torch.empty(len(data) + 1)
        codec.conv_in.bias.data = storage[1:].copy_(data)

    result = weights(Faulty(builtin_source, misalign))
    assert "codec.conv_in.bias does not begin at an aligned address" in result.message

    def add(resident: ResidentModel) -> None:
        codec = resident.component("codec").module  # type: ignore[attr-defined]
        codec.register_buffer("extra", torch.ones(2))

    result = weights(Faulty(builtin_source, add))
    assert not result.passed
    assert "codec.extra is in no file" in result.message

    def widen(resident: ResidentModel) -> None:
        resident.component("codec").module.double()  # type: ignore[attr-defined]

    assert "is torch.float64, which the card does not say" in (
        weights(Faulty(builtin_source, widen)).message
    )


def test_a_tensor_that_was_not_loaded_is_named(builtin_source: ModelSource) -> None:
    def leave_out(resident: ResidentModel) -> None:
        resident.component("codec").module.conv_in.register_parameter("bias", None)  # type: ignore[attr-defined]

    result = weights(Faulty(builtin_source, leave_out))
    assert not result.passed
    assert result.message == "codec.conv_in.bias is in a file and was not loaded"

    def leave_out_by_intent(resident: ResidentModel) -> None:
        leave_out(resident)
        codec = resident.component("codec").module  # type: ignore[attr-defined]
        codec._keys_to_ignore_on_load_unexpected = [r"conv_in\.b.*"]

    assert weights(Faulty(builtin_source, leave_out_by_intent)).passed
