"""Latents after every step, and pixels, against the library's pipeline."""

from __future__ import annotations

import pytest

from ostinato.card import ModelSource
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates.oracle import oracle
from ostinato.parity.subject import Subject
from support.subjects import moved


def test_the_oracle_passes_and_bites(wan: Subject, wan_source: ModelSource) -> None:
    result = oracle(wan)
    assert result.passed, result.message
    steps = wan.recorded.output.provenance.spec.num_inference_steps
    assert result.measured == steps + 2  # frames, and pixels before they are whole levels
    result = oracle(moved(wan_source, "transformer.blocks.0.ffn.net.2.weight"))
    assert not result.passed
    assert "first difference: latents after step 1 of 3" in result.message
    result = oracle(moved(wan_source, "vae.decoder.conv_out.bias=1e-5"))
    assert "pixels of vae" in result.message or "frames" in result.message
    assert not result.passed


def test_a_missing_oracle_is_red(builtin: Subject) -> None:
    with pytest.raises(NothingMeasured, match="names no oracle"):
        oracle(builtin)
