"""Validation finds each inconsistency, and all of them at once."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.card import (
    AttentionContext,
    FileDigest,
    GuidanceForm,
    ModelCard,
    ParentRef,
    PrecisionSpec,
    ScheduleAssumption,
    SizeRange,
)
from ostinato.errors import InvalidCard
from ostinato.tasks import OutputName, TaskType
from support.sample_card import sample_card

CARD = sample_card()


def test_the_sample_is_valid() -> None:
    assert CARD.validate() == ()
    assert CARD.require_valid() is CARD


def change(part: str, **changes: object) -> ModelCard:
    """Change a part of the sample card, by its name on the card."""
    part_value = dataclasses.replace(getattr(CARD, part), **changes)
    return dataclasses.replace(CARD, **{part: part_value})


def component(**changes: object) -> ModelCard:
    first, *others = CARD.components
    return dataclasses.replace(CARD, components=(dataclasses.replace(first, **changes), *others))


def loop(**changes: object) -> ModelCard:
    return dataclasses.replace(CARD, loops=(dataclasses.replace(CARD.loops[0], **changes),))


def loop_option(name: str, value: str) -> ModelCard:
    return loop(options={**CARD.loops[0].options, name: value})


def pinned(**changes: object) -> ModelCard:
    schedule = dataclasses.replace(CARD.recipe.assumes_schedule, **changes)
    return change("recipe", assumes_schedule=schedule)


FREE = ScheduleAssumption()
CASES: dict[str, tuple[ModelCard, str]] = {
    "no id": (dataclasses.replace(CARD, model_id=""), "model_id is empty"),
    "no components": (dataclasses.replace(CARD, components=()), "components is empty"),
    "two of a name": (component(name="codec"), "component 'codec' is declared 2 times"),
    "no adapter": (component(adapter="transformer"), "expected an import string"),
    "folder above": (component(subfolder="../x"), "leaves the model folder"),
    "absolute folder": (component(subfolder="/x"), "leaves the model folder"),
    "bound to nothing": (loop(binds={"denoiser": "vae"}), "binds 'vae', which is no component"),
    "loop string": (loop(loop="x.y"), "loop 'rollout' is 'x.y'"),
    "two loops": (dataclasses.replace(CARD, loops=CARD.loops * 2), "loop 'rollout' is declared 2"),
    "unserved task": (
        change("capabilities", tasks=(TaskType.TEXT_TO_VIDEO, TaskType.TEXT_TO_IMAGE)),
        "'text_to_image', but no program serves it",
    ),
    "unlisted program": (
        change("capabilities", tasks=(TaskType.TEXT_TO_IMAGE,)),
        "serves 'text_to_video', but capabilities do not list it",
    ),
    "no outputs": (change("capabilities", outputs=()), "outputs is empty"),
    "repeated output": (
        change("capabilities", outputs=(OutputName.VIDEO, OutputName.VIDEO)),
        "capabilities.outputs: <OutputName.VIDEO: 'video'> is declared 2 times",
    ),
    "no samplers": (change("capabilities", samplers=()), "samplers is empty"),
    "empty range": (
        change("capabilities", height=SizeRange(minimum=64, maximum=32)),
        "capabilities.height is empty",
    ),
    "range off its grid": (
        change("capabilities", width=SizeRange(minimum=33, maximum=63, multiple=32)),
        "capabilities.width is empty",
    ),
    "no multiple": (
        change("capabilities", width=SizeRange(minimum=32, maximum=64, multiple=0)),
        "capabilities.width is empty",
    ),
    "negative prompt without a branch": (
        change("capabilities", guidance=GuidanceForm.NONE),
        "negative_prompt needs a second branch",
    ),
    "loop runs another form": (
        loop_option("guidance", "two_forward"),
        "runs guidance 'two_forward', but capabilities say 'batched'",
    ),
    "loop serves another context": (
        loop_option("attention_context", "bidirectional"),
        "assumes attention context 'self_forcing', but loop 'rollout' serves 'bidirectional'",
    ),
    "recipe assumes another context": (
        pinned(attention_context=AttentionContext.BIDIRECTIONAL),
        "assumes attention context 'bidirectional', but loop 'rollout' serves 'self_forcing'",
    ),
    "no such loop": (change("recipe", assumes_loop="denoise"), "assumes loop 'denoise'"),
    "unlisted sampler": (pinned(sampler="dpm"), "'dpm', which capabilities do not list"),
    "another default sampler": (pinned(sampler="euler"), "but the default is 'renoise'"),
    "another guidance": (pinned(guidance=GuidanceForm.EMBEDDED), "assumes guidance 'embedded'"),
    "pinned steps out of range": (pinned(num_inference_steps=(4, 99)), "assumes 99 steps"),
    "pinned steps, other default": (pinned(num_inference_steps=(8,)), "num_inference_steps is 4"),
    "pinned scale, other default": (pinned(guidance_scale=3.0), "guidance_scale is 2.0"),
    "pinned shift, other default": (pinned(flow_shift=5.0), "flow_shift is 3.0"),
    "dtype": (
        dataclasses.replace(CARD, precision=PrecisionSpec(weights="float32", latents="int8")),
        "names a dtype outside",
    ),
    "precision": (change("recipe", assumes_precision="bfloat16"), "assumes precision 'bfloat16'"),
    "oracle": (change("parity", oracle="oracle"), "parity.oracle is 'oracle'"),
    "no levels": (change("parity", levels=()), "parity.levels is empty"),
    "reference": (change("parity", reference="reference"), "parity.reference is 'reference'"),
    "fast batching": (
        change("parity", fast_batch_tolerances={"float32": -1e-4}),
        "parity.fast_batch_tolerances['float32'] is -0.0001; expected at least 0",
    ),
    "fast batching in no dtype": (
        change("parity", fast_batch_tolerances={"float": 1e-4}),
        "parity.fast_batch_tolerances names 'float'; expected one of",
    ),
    "parity frames": (change("parity", num_frames=10), "parity.num_frames is 10; capabilities"),
    "default size": (change("defaults", height=65), "defaults.height is 65"),
    "default task": (change("defaults", task=TaskType.TEXT_TO_AUDIO), "defaults.task"),
    "default fps": (change("defaults", fps=0.0), "defaults.fps is 0.0"),
    "default shift": (change("defaults", flow_shift=-1.0), "defaults.flow_shift is -1.0"),
    "default scale": (change("defaults", guidance_scale=0.5), "expected at least 1.0"),
    "parent digest": (
        change("recipe", parents=(ParentRef(model_id="t", digest="1234"),)),
        "parent 't': digest '1234'",
    ),
    "file above": (
        dataclasses.replace(CARD, files=(FileDigest(path="../x", sha256="b" * 64),)),
        "no path below the model folder",
    ),
    "file digest": (
        dataclasses.replace(CARD, files=(FileDigest(path="x", sha256="b"),)),
        "expected 64 hex digits",
    ),
    "cpu_threads": (dataclasses.replace(CARD, cpu_threads=0), "cpu_threads is 0"),
    "suite": (dataclasses.replace(CARD, suites={"world": "world"}), "suite 'world' is 'world'"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_inconsistency_is_found(name: str) -> None:
    card, message = CASES[name]
    found = card.validate()
    assert any(message in error for error in found), found
    with pytest.raises(InvalidCard):
        card.require_valid()


def test_a_default_that_nothing_reads_is_refused() -> None:
    caps = dataclasses.replace(CARD.capabilities, guidance=GuidanceForm.NONE, negative_prompt=False)
    options = {**CARD.loops[0].options, "guidance": "none"}
    card = dataclasses.replace(
        loop(options=options),
        capabilities=caps,
        recipe=dataclasses.replace(CARD.recipe, assumes_schedule=FREE),
    )
    errors = "\n".join(card.validate())
    assert "defaults.guidance_scale is 2.0, but guidance is 'none'" in errors
    assert "defaults.negative_prompt is given" in errors
    quiet = dataclasses.replace(CARD.defaults, guidance_scale=1.0, negative_prompt="")
    assert dataclasses.replace(card, defaults=quiet).validate() == ()


def test_all_errors_come_at_once() -> None:
    card = dataclasses.replace(
        CARD,
        model_id="",
        parity=dataclasses.replace(CARD.parity, levels=(), oracle="x"),
        defaults=dataclasses.replace(CARD.defaults, height=65, fps=0.0),
    )
    assert len(card.validate()) == 5
    with pytest.raises(InvalidCard) as caught:
        card.require_valid()
    for error in card.validate():
        assert error in str(caught.value)
    assert "has 5 errors" in str(caught.value)


def test_a_loop_that_names_no_context_is_bidirectional() -> None:
    options = {k: v for k, v in CARD.loops[0].options.items() if k != "attention_context"}
    assert any("serves 'bidirectional'" in error for error in loop(options=options).validate())


def test_a_recipe_that_pins_nothing_takes_any_default() -> None:
    free = change("recipe", assumes_schedule=FREE)
    defaults = dataclasses.replace(CARD.defaults, num_inference_steps=50, flow_shift=None)
    assert dataclasses.replace(free, defaults=defaults).validate() == ()


def test_every_size_is_held_against_its_own_range() -> None:
    """Each of the four names of a size is read, not one of them four times."""
    for name in ("height", "width", "num_frames", "num_inference_steps"):
        wrong = dataclasses.replace(CARD.defaults, **{name: 1000})
        (error,) = (
            e for e in dataclasses.replace(CARD, defaults=wrong).validate() if "capabilities" in e
        )
        assert error.startswith(f"defaults.{name} is 1000")


ranges = st.builds(
    lambda low, span, multiple, offset: SizeRange(
        minimum=low, maximum=low + span, multiple=multiple, offset=offset
    ),
    st.integers(1, 50),
    st.integers(0, 60),
    st.integers(1, 20),
    st.integers(0, 25),
)


@given(ranges, st.integers(-20, 150))
def test_a_range_against_a_list_of_its_values(size: SizeRange, value: int) -> None:
    valid = [
        v
        for v in range(size.minimum, size.maximum + 1)
        if v % size.multiple == size.offset % size.multiple
    ]
    assert size.accepts(value) == (value in valid)
    if not valid:
        card = change("capabilities", height=size)
        assert any("capabilities.height is empty" in error for error in card.validate())
        return
    nearest = size.nearest(value)
    assert set(nearest) <= set(valid)
    if value in valid:
        assert value in nearest
    else:
        below = [v for v in valid if v < value][-1:]
        above = [v for v in valid if v > value][:1]
        assert list(nearest) == below + above


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (SizeRange(minimum=64, maximum=64), "exactly 64"),
        (SizeRange(minimum=1, maximum=9), "1 to 9"),
        (SizeRange(minimum=8, maximum=64, multiple=8), "8 to 64, a multiple of 8"),
        (SizeRange(minimum=1, maximum=9, multiple=4, offset=1), "1 to 9, a multiple of 4 plus 1"),
    ],
)
def test_a_range_in_words(size: SizeRange, words: str) -> None:
    assert size.describe() == words


def test_fast_batching_is_offered_in_the_dtypes_that_were_measured() -> None:
    assert CARD.fast_batch_tolerance == 1e-4
    half = dataclasses.replace(CARD, precision=PrecisionSpec(weights="bfloat16", latents="float32"))
    assert half.fast_batch_tolerance == 0.05
    other = dataclasses.replace(CARD, precision=PrecisionSpec(weights="float16", latents="float32"))
    assert other.fast_batch_tolerance is None
