"""Latents after every step, and pixels, against the library's pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ostinato.card import Determinism, ModelSource
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates import oracle as oracle_module
from ostinato.parity.gates.oracle import oracle
from ostinato.parity.subject import Recorded, Subject, VerifyOptions
from ostinato.request import GenerationSpec
from support.subjects import moved, with_parity


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Echoed:
    step_latents: tuple[torch.Tensor, ...]
    pixels: NDArray[np.float32]
    frames: NDArray[np.uint8]


class Echo:
    """An oracle that gives back what was served, with latents or the frames of one seed moved."""

    def __init__(
        self,
        subject: Subject,
        runs: Sequence[Recorded],
        wrong_seed: int | None = None,
        factor: float = 1.0,
    ) -> None:
        ((_, decoder),) = oracle_module._decoders(subject)
        self._runs: dict[int, Echoed] = {}
        for run in runs:
            seed = run.output.provenance.spec.seed
            with subject.cpu(), torch.no_grad():
                pixels = decoder.pixels(run.output.latents)
            self._runs[seed] = Echoed(
                step_latents=tuple(v * factor for v in oracle_module.served_latents(subject, run)),
                pixels=pixels,
                frames=run.output.video.frames + np.uint8(seed == wrong_seed),
            )

    def run(self, spec: GenerationSpec) -> Echoed:
        return self._runs[spec.seed]


@pytest.mark.parametrize(
    ("promised", "step", "passed"),
    [
        (Determinism.BITWISE, 1e-6, False),
        (Determinism.TOLERANCE, 1e-6, True),
        (Determinism.TOLERANCE, 1e-2, False),
    ],
)
def test_the_oracle_is_met_as_the_card_promises(
    wan: Subject,
    wan_source: ModelSource,
    monkeypatch: pytest.MonkeyPatch,
    promised: Determinism,
    step: float,
    passed: bool,
) -> None:
    subject = Subject(with_parity(wan_source, output_determinism=promised), wan.options)
    subject.recorded = wan.recorded  # type: ignore[misc]
    echo = Echo(wan, [wan.recorded], factor=1.0 + step)
    monkeypatch.setattr(oracle_module, "load_object", lambda name: lambda source: echo)
    result = oracle(subject)
    assert result.passed is passed, result.message
    assert (result.variants, result.variants_equal) == (1, 0)
    assert result.variants_tolerated == passed
    assert passed == ("runs are within tolerance of those of" in result.message)


@pytest.mark.parametrize(("wrong_seed", "equal"), [(None, 2), (0, 1), (1, 1)])
def test_runs_that_are_equal_are_counted_one_by_one(
    wan: Subject,
    wan_source: ModelSource,
    monkeypatch: pytest.MonkeyPatch,
    wrong_seed: int | None,
    equal: int,
) -> None:
    whole = Subject(wan_source, VerifyOptions())
    whole.recorded = wan.recorded  # type: ignore[misc]
    echo = Echo(whole, [wan.recorded, oracle_module._unguided(wan)], wrong_seed)
    monkeypatch.setattr(oracle_module, "load_object", lambda name: lambda source: echo)
    result = oracle(whole)
    assert (result.variants, result.variants_equal) == (2, equal)
    assert result.passed is (equal == 2)


@pytest.mark.parametrize(
    ("binds", "message"),
    [({"latents": "transformer"}, "none of transformer shows"), ({}, "none of the components")],
)
def test_a_decoder_that_shows_no_pixels_is_red(
    wan: Subject,
    wan_source: ModelSource,
    monkeypatch: pytest.MonkeyPatch,
    binds: Mapping[str, str],
    message: str,
) -> None:
    """Whole levels alone hide what is smaller than one of 255."""
    echo = Echo(wan, [wan.recorded])
    monkeypatch.setattr(oracle_module, "load_object", lambda name: lambda source: echo)
    card = wan_source.card
    others = {role: name for role, name in card.loops[0].binds.items() if role != "latents"}
    loop = dataclasses.replace(card.loops[0], binds={**others, **binds})
    card = dataclasses.replace(card, loops=(loop,))
    subject = Subject(dataclasses.replace(wan_source, card=card), wan.options)
    subject.recorded = wan.recorded  # type: ignore[misc]
    with pytest.raises(NothingMeasured, match=message):
        oracle(subject)
