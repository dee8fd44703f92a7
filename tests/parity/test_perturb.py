"""One weight moved by 1e-3 after load: the first tap that diverged is the one that it feeds."""

from __future__ import annotations

import pytest

from ostinato.card import Determinism, ModelSource
from ostinato.errors import BadInput, InvalidCard
from ostinato.parity.gates.components import components
from ostinato.parity.gates.reload import reload
from ostinato.parity.gates.weights import weights
from ostinato.parity.perturb import Perturbation, module_of
from ostinato.parity.subject import Subject, VerifyOptions
from support.subjects import with_parity

BUILTIN = {
    "text_encoder.encoder.block.1.layer.1.DenseReluDense.wo.weight": "'encoder.block.1'",
    "transformer.condition_embedder.time_embedder.linear_2.bias": "time_embedder'",
    "transformer.condition_embedder.text_embedder.linear_1.weight": "text_embedder'",
    "transformer.blocks.1.ffn.net.2.weight[77]": "'blocks.1.ffn'",
    "transformer.scale_shift_table": "'proj_out'",
    "codec.convs.1.weight[4000]": "'convs.1'",
    "codec.decode_weight[13]": "'pixels'",
}
WAN = {
    "text_encoder.encoder.block.0.layer.0.SelfAttention.o.weight": "'encoder.block.0'",
    "transformer.blocks.0.attn2.to_v.weight[9]": "'blocks.0.attn2.to_out.0'",
    "vae.decoder.mid_block.resnets.0.conv1.weight[22]": "'decoder.mid_block'",
}


# Their effect is below the rounding of float32: among 512 tokens of which all but a few are
# padding, what one query looks for hardly matters. Only equal bits can tell.
EXACT = {
    "transformer.blocks.0.attn2.to_q.weight[2729]": "'blocks.0.attn2.to_out.0'",
    "transformer.blocks.1.attn2.norm_k.weight": "'blocks.1.attn2.to_out.0'",
    "transformer.blocks.0.norm2.bias": "'blocks.0.attn2.to_out.0'",
}


def perturbed(source: ModelSource, text: str) -> Subject:
    options = VerifyOptions(quick=True, perturbation=Perturbation.parse(text))
    return Subject(source, options)


@pytest.mark.parametrize("weight", BUILTIN)
def test_builtin_names_the_first_tap(builtin_source: ModelSource, weight: str) -> None:
    result = components(perturbed(builtin_source, weight))
    assert not result.passed
    assert "first divergence" in result.message
    assert BUILTIN[weight] in result.message
    assert weight.partition(".")[0] in result.message


@pytest.mark.parametrize("weight", WAN)
def test_wan_names_the_first_tap(wan_source: ModelSource, weight: str) -> None:
    result = components(perturbed(wan_source, weight))
    assert not result.passed
    assert WAN[weight] in result.message


@pytest.mark.parametrize("weight", EXACT)
def test_what_float64_cannot_see_is_seen_by_its_bits(wan_source: ModelSource, weight: str) -> None:
    result = reload(perturbed(wan_source, weight))
    assert not result.passed
    assert EXACT[weight] in result.message


def test_a_card_that_promises_a_tolerance_is_reloaded_within_it(wan_source: ModelSource) -> None:
    source = with_parity(wan_source, output_determinism=Determinism.TOLERANCE)
    result = reload(perturbed(source, next(iter(EXACT))))
    assert result.passed, result.message
    assert "are within tolerance of components that were loaded again" in result.message
    weight, tap = next(iter(WAN.items()))
    result = reload(perturbed(source, weight))
    assert not result.passed
    assert tap in result.message


def test_reloading_passes_a_sound_model(builtin: Subject, wan: Subject) -> None:
    for subject in (builtin, wan):
        result = reload(subject)
        assert result.passed, result.message
        assert result.measured > 100


def test_the_weights_gate_names_the_parameter(builtin_source: ModelSource) -> None:
    result = weights(perturbed(builtin_source, "codec.encode_weight[5]"))
    assert not result.passed
    assert "codec.encode_weight differs from its file by up to 0.001" in result.message


@pytest.mark.parametrize("text", ["transformer", "a b.c", "a.b=x", "a.b[c]", ".b", "a."])
def test_what_names_no_weight_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="names no weight"):
        Perturbation.parse(text)


def test_a_weight_that_is_not_there_is_refused_by_name(builtin_source: ModelSource) -> None:
    for text, message in (
        ("codec.nonesuch", "has no parameter 'nonesuch'"),
        ("codec.conv_in.weigth", "near it: conv_in.weight"),
        ("codec.conv_in.weight=0", "changes nothing; give a larger amount"),
        ("codec.conv_in.weight=1e-30", "changes nothing; give a larger amount"),
        ("codec.conv_in.bias[999]", "index 999 is not there"),
    ):
        with pytest.raises(BadInput, match=message):
            perturbed(builtin_source, text).resident()
    with pytest.raises(InvalidCard, match="no component 'nonesuch'"):
        perturbed(builtin_source, "nonesuch.weight").resident()
    with pytest.raises(InvalidCard, match="has no `module`"):
        module_of(object(), "codec")  # type: ignore[arg-type]


def test_the_form_is_read_whole() -> None:
    found = Perturbation.parse("transformer.blocks.0.ffn.net.2.weight[7]=-0.5")
    assert (found.component, found.parameter) == ("transformer", "blocks.0.ffn.net.2.weight")
    assert (found.index, found.amount) == (7, -0.5)
    assert Perturbation.parse("codec.bias") == Perturbation(
        component="codec", parameter="bias", index=0, amount=1e-3
    )
