"""Every gate passes a sound model, and goes red for the fault that it is there for."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from ostinato.backend.batch_rules import NEVER, BatchRules
from ostinato.card import FileDigest, ModelSource
from ostinato.errors import InvalidCard
from ostinato.loop.chunks import rollout as rollout_module
from ostinato.loop.chunks.rollout import ChunkRollout
from ostinato.loop.sampling import Schedule
from ostinato.loop.sampling.library import LibrarySampler
from ostinato.loop.sampling.steppers import FlowEuler
from ostinato.loop.trajectory import Trajectory
from ostinato.models.builtin.components import BuiltinTransformer
from ostinato.models.wan.open import open_wan
from ostinato.parity.gate import NothingMeasured
from ostinato.parity.gates import batch as batch_module
from ostinato.parity.gates.batch import batch
from ostinato.parity.gates.company import determinism, interleave
from ostinato.parity.gates.components import components
from ostinato.parity.gates.course import course
from ostinato.parity.gates.files import files
from ostinato.parity.gates.oracle import oracle
from ostinato.parity.gates.reentry import reentry
from ostinato.parity.gates.sampling import sampling
from ostinato.parity.gates.trajectory import trajectory
from ostinato.parity.gates.weights import weights
from ostinato.parity.perturb import Perturbation
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.runtime import ResidentModel
from support.requests import replace_op
from support.subjects import Faulty, with_parity

Outputs = Mapping[str, object]
QUICK = VerifyOptions(quick=True)


def moved(source: ModelSource, text: str) -> Subject:
    return Subject(source, VerifyOptions(quick=True, perturbation=Perturbation.parse(text)))


def test_files_pass_by_digest_and_by_header(builtin: Subject, wan: Subject) -> None:
    result = files(builtin)
    assert result.passed
    assert result.measured == len(builtin.card.files) >= 9
    result = files(wan)
    assert result.passed
    assert result.detail == {"digests": False}
    assert "lists no digest" in result.message
    assert result.measured > 100


def test_a_file_that_changed_or_is_gone_is_named(
    builtin_source: ModelSource, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(builtin_source.folder, tmp_path / "copy"))
    config = folder / "codec" / "config.json"
    config.write_text(config.read_text() + " ")
    (folder / "tokenizer" / "tokenizer.json").unlink()
    result = files(Subject(dataclasses.replace(builtin_source, folder=folder), VerifyOptions()))
    assert not result.passed
    assert "codec/config.json has sha256" in result.message
    assert "tokenizer/tokenizer.json is missing" in result.message


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


def test_components_pass_with_taps(builtin: Subject, wan: Subject) -> None:
    for subject in (builtin, wan):
        result = components(subject)
        assert result.passed, result.message
        assert result.taps > 80
        assert result.measured > result.taps
        assert 0 < result.worst_relative_error < 1e-4
        assert {c.component for c in result.comparisons} == set(subject.weighted)


def blind(component: str) -> Callable[[ResidentModel], None]:
    def fault(resident: ResidentModel) -> None:
        resident.component(component).observe = lambda tap: nullcontext()  # type: ignore[attr-defined]

    return fault


def test_zero_taps_are_red(builtin_source: ModelSource) -> None:
    with pytest.raises(NothingMeasured, match="no value was seen inside codec"):
        components(Faulty(builtin_source, blind("codec")))


def test_an_absent_and_an_additional_tap_are_red(builtin_source: ModelSource) -> None:
    def fault(change: Callable[..., object]) -> Callable[[ResidentModel], None]:
        def put(resident: ResidentModel) -> None:
            network = resident.component("transformer").network  # type: ignore[attr-defined]
            inner = network.observe
            resident.component("transformer").observe = (  # type: ignore[attr-defined]
                lambda tap: inner(lambda name, value: change(tap, name, value))
            )

        return put

    def drop(tap: Callable[..., None], name: str, value: torch.Tensor) -> None:
        if name != "blocks.1.ffn":
            tap(name, value)

    def add(tap: Callable[..., None], name: str, value: torch.Tensor) -> None:
        tap(name, value)
        if name == "blocks.1.ffn":
            tap(f"{name}.twice", value)

    absent = components(Faulty(builtin_source, fault(drop)))
    assert not absent.passed
    assert "'blocks.1.ffn'" in absent.message
    assert "was not computed" in absent.message
    additional = components(Faulty(builtin_source, fault(add)))
    assert "'blocks.1.ffn.twice'" in additional.message
    assert "was not expected" in additional.message


def test_a_missing_reference_and_an_empty_prompt_set_are_red(builtin_source: ModelSource) -> None:
    source = with_parity(builtin_source, reference=None)
    for gate in (components, trajectory):
        with pytest.raises(InvalidCard, match="names no reference"):
            gate(Subject(source, VerifyOptions(quick=True)))
    empty = Subject(builtin_source, VerifyOptions(prompts=()))
    for gate in (components, trajectory, reentry, determinism, interleave, batch):
        with pytest.raises(InvalidCard, match="set of prompts is empty"):
            gate(empty)


def test_sampling_passes_and_bites(
    builtin: Subject, wan: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject, count in ((builtin, 2 * 7 + 1), (wan, 7 + 1)):
        result = sampling(subject)
        assert result.passed, result.message
        assert result.measured == count
    monkeypatch.setattr(
        "ostinato.loop.sampling.steppers.FlowEuler.step",
        lambda self, x, v, sigma, sigma_next, memory: (x + (sigma_next - sigma) * v * 1.0001, None),
    )
    result = sampling(builtin)
    assert not result.passed
    assert "'step' (occurrence 0) of euler" in result.message


def test_a_wrong_time_of_the_network_is_red(
    builtin: Subject, wan: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.loop.sampling.schedules.NUM_TRAIN_TIMESTEPS", 700)
    result = sampling(builtin)
    assert not result.passed
    assert "'timesteps' (occurrence 0) of euler" in result.message
    schedule = LibrarySampler.schedule

    def late(self: LibrarySampler, num_steps: int, flow_shift: float | None) -> Schedule:
        made = schedule(self, num_steps, flow_shift)
        return dataclasses.replace(made, timesteps=made.timesteps - 1)

    monkeypatch.setattr(LibrarySampler, "schedule", late)
    result = sampling(wan)
    assert "'timesteps' (occurrence 0) of unipc" in result.message


def test_a_sampler_or_rule_without_a_reference_is_red(builtin_source: ModelSource) -> None:
    card = builtin_source.card
    loop = card.loops[0]
    for changed, what in (
        (
            {"capabilities": dataclasses.replace(card.capabilities, samplers=("dpm",))},
            "sampler 'dpm'",
        ),
        (
            {
                "loops": (
                    dataclasses.replace(loop, options={**loop.options, "guidance_rule": "apg"}),
                )
            },
            "guidance rule 'apg'",
        ),
    ):
        source = dataclasses.replace(builtin_source, card=dataclasses.replace(card, **changed))
        with pytest.raises(InvalidCard, match=f"{what} has no float64 reference"):
            sampling(Subject(source, VerifyOptions()))


def test_the_trajectory_passes_and_bites(builtin: Subject, builtin_source: ModelSource) -> None:
    result = trajectory(builtin)
    assert result.passed, result.message
    assert result.measured > 60
    assert 0 < result.worst_relative_error < 2e-5
    result = trajectory(moved(builtin_source, "transformer.blocks.0.attn1.to_v.weight=0.1"))
    assert not result.passed
    assert "transformer.predict" in result.message


def test_a_fault_of_the_loop_is_red_though_both_runs_share_it(
    builtin_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float64 run is driven by the same loop; what the request says is not."""
    next_block, step = ChunkRollout._next_block, FlowEuler.step
    faults: tuple[tuple[object, str, object, str], ...] = (
        (
            ChunkRollout,
            "_next_block",
            lambda self, state: dataclasses.replace(
                next_block(self, state), first_frame=state.first_frame + 1
            ),
            "'fed first_frame'",
        ),
        (
            rollout_module,
            "visible_blocks",
            lambda context, block, *, window_blocks: tuple(range(max(0, block - 1), block)),
            "'out.fed context[0].keys_rotated'",
        ),
        (
            Trajectory,
            "timestep",
            property(lambda self: self.schedule.timesteps[0]),
            "'fed timestep'",
        ),
        (
            FlowEuler,
            "step",
            lambda self, x, v, sigma, sigma_next, memory: step(self, x, v, 1.0, 0.9, memory),
            "'fed next latents'",
        ),
    )
    for where, name, fault, tap in faults:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, fault)
            # Three blocks: the last has two behind it.
            result = trajectory(Subject(with_parity(builtin_source, num_frames=30), QUICK))
        assert not result.passed, name
        assert f"first divergence: tap {tap}" in result.message


def test_a_run_of_other_steps_than_asked_for_is_red(builtin: Subject) -> None:
    run = builtin.recorded
    fewer = dataclasses.replace(run, calls=run.calls[: len(run.calls) // 2])
    with pytest.raises(NothingMeasured, match="denoise steps, expected 3 of each of 2 blocks"):
        list(course(fewer, builtin.card.loops[0]))


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


def test_reentry_passes_and_bites(builtin: Subject, builtin_source: ModelSource) -> None:
    result = reentry(builtin)
    assert result.passed, result.message
    assert "gradients reach all 69 parameters" in result.message

    def without_grad(resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")
        replace_op(resident, "transformer", "predict", torch.no_grad()(op))

    result = reentry(Faulty(builtin_source, without_grad))
    assert not result.passed
    assert "no gradient, or only zero, reached" in result.message

    def other_bits(resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")

        def predict(**inputs: torch.Tensor) -> Outputs:
            outputs = op(**inputs)
            factor = 1.0 + torch.is_grad_enabled() * 1e-6
            return {"prediction": outputs["prediction"] * factor}  # type: ignore[operator]

        replace_op(resident, "transformer", "predict", predict)

    result = reentry(Faulty(builtin_source, other_bits))
    assert not result.passed
    assert "'out.prediction'" in result.message
    card = builtin_source.card
    loops = (dataclasses.replace(card.loops[0], binds={"latents": "codec"}),)
    empty = dataclasses.replace(builtin_source, card=dataclasses.replace(card, loops=loops))
    subject = Subject(empty, VerifyOptions(quick=True))
    subject.recorded = builtin.recorded  # type: ignore[misc]
    with pytest.raises(NothingMeasured, match="no call of"):
        reentry(subject)


class Forgetful:
    """Adds to each prediction a little of the one before: state on a shared component."""

    def __init__(self, resident: ResidentModel) -> None:
        op = resident.component("transformer").op("predict")
        before: list[torch.Tensor] = []

        def predict(**inputs: torch.Tensor) -> Outputs:
            prediction = op(**inputs)["prediction"]
            assert isinstance(prediction, torch.Tensor)
            kept = before[0] if before and before[0].shape == prediction.shape else 0.0
            before[:] = [prediction]
            return {"prediction": prediction + 1e-3 * kept}

        replace_op(resident, "transformer", "predict", predict)


def test_company_passes_and_an_adapter_that_keeps_state_is_red(
    builtin: Subject, builtin_source: ModelSource
) -> None:
    for gate, count in ((determinism, 2), (interleave, 4)):
        result = gate(builtin)
        assert result.passed, result.message
        assert (result.variants, result.variants_equal) == (count, count)
        result = gate(Faulty(builtin_source, Forgetful))
        assert not result.passed
        assert result.variants_equal < count


def test_requests_that_were_not_interleaved_are_red(
    builtin: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.parity.gates.company.ShuffledTurns.switches", 0, raising=False)
    monkeypatch.setattr(
        "ostinato.parity.gates.company.ShuffledTurns.choose",
        lambda self, ready: min(ready, key=lambda r: r.arrival).request_id,
    )
    with pytest.raises(NothingMeasured, match="were not interleaved"):
        interleave(builtin)


@pytest.mark.parametrize("family", ["builtin", pytest.param("wan", marks=pytest.mark.slow)])
def test_the_batch_passes_with_shared_forwards(family: str, request: pytest.FixtureRequest) -> None:
    result = batch(request.getfixturevalue(family))
    assert result.passed, result.message
    assert result.variants == result.variants_equal == 2 + 4
    assert result.detail["stacked_steps"] > 0  # type: ignore[operator]
    names = ("samples_in_one_forward", "samples_in_one_forward_alone")
    wide, narrow = (result.detail[name] for name in names)
    assert wide > narrow  # type: ignore[operator]
    assert result.detail["stock_batch_equal"] is False
    assert result.flags == {"stock_batch_equal": False}
    assert "the library's own batch: not equal" in result.message


@pytest.mark.slow
def test_the_batch_of_a_bfloat16_wan_is_demonstrated_too(
    tiny_wan_folder: Callable[[str], Path],
) -> None:
    source = with_parity(open_wan(tiny_wan_folder("unipc")), num_frames=5)
    card = source.card
    card = dataclasses.replace(
        card,
        precision=dataclasses.replace(card.precision, weights="bfloat16"),
        recipe=dataclasses.replace(card.recipe, assumes_precision="bfloat16"),
    )
    result = batch(Subject(dataclasses.replace(source, card=card), QUICK))
    assert result.passed, result.message
    assert "this model computes in bfloat16" in result.message
    assert result.detail["stock_batch_equal"] is not None


def shows(module: object, samples: Sequence[object]) -> torch.Tensor:
    """A batch that always equals its samples."""
    del module
    return torch.zeros(len(samples))


def breaks(module: object, samples: Sequence[object]) -> torch.Tensor:
    raise ZeroDivisionError("no such forward")


@pytest.mark.parametrize(
    ("forward", "passed", "told"),
    [
        (shows, True, "the library's own batch: equal at every size"),
        (breaks, False, "could not run: ZeroDivisionError: no such forward"),
        (lambda module, samples: None, False, "could not run: it is not known how"),
    ],
)
def test_what_the_librarys_batch_shows_is_told_and_its_lack_is_red(
    builtin: Subject,
    monkeypatch: pytest.MonkeyPatch,
    forward: Callable[..., torch.Tensor | None],
    passed: bool,
    told: str,
) -> None:
    monkeypatch.setattr(batch_module, "library_forward", forward)
    result = batch(builtin)
    assert result.passed is passed
    assert result.variants == result.variants_equal == 2 + 4
    assert told in result.message


def test_an_op_that_depends_on_its_batch_is_red(builtin_source: ModelSource) -> None:
    def fault(resident: ResidentModel) -> None:
        component = resident.component("transformer")
        assert isinstance(component, BuiltinTransformer)
        stacked = component._stacked

        def leak(name: str, items: Sequence[Mapping[str, torch.Tensor]]) -> Sequence[Outputs]:
            outputs = stacked(name, items)
            if name == "predict" and len(items) > 1:
                return [{"prediction": o["prediction"] * (1 + 1e-6)} for o in outputs]  # type: ignore[operator]
            return outputs

        component._stacked = leak  # type: ignore[method-assign]

    result = batch(Faulty(builtin_source, fault))
    assert not result.passed
    assert result.variants_equal < result.variants == 2 + 4


def alone_only(resident: ResidentModel) -> None:
    """Stack nothing, whatever the rules."""
    component = resident.component("transformer")
    assert isinstance(component, BuiltinTransformer)
    component.op_stacked = lambda name, rules: (
        lambda items: [  # type: ignore[method-assign]
            component.op(name)(**inputs) for inputs in items
        ]
    )


def test_nothing_stacked_is_red_where_the_rules_allow_it(builtin_source: ModelSource) -> None:
    with pytest.raises(NothingMeasured, match="although the batch rules of this processor allow"):
        batch(Faulty(builtin_source, alone_only))


def test_nothing_stacked_passes_by_name_where_the_rules_forbid_it(
    builtin_source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = BatchRules(
        linear_rows=NEVER,
        activation_multiple=1,
        attention=True,
        norms=True,
        conv2d=True,
        conv3d=True,
    )
    monkeypatch.setattr("ostinato.runtime.core.probe_batch_rules", lambda: never)
    monkeypatch.setattr(batch_module, "probe_batch_rules", lambda: never)
    result = batch(Subject(builtin_source, VerifyOptions(quick=True)))
    assert result.passed
    assert "not stacked here: the batch rules measured on this processor forbid it" in (
        result.message
    )
    assert f"'linear_rows': {NEVER}" in result.message


def test_a_listed_file_counts(builtin_source: ModelSource) -> None:
    """A digest that was never true is as red as a file that changed."""
    wrong = (FileDigest(path="model_index.json", sha256="0" * 64),)
    card = dataclasses.replace(builtin_source.card, files=wrong)
    result = files(Subject(dataclasses.replace(builtin_source, card=card), VerifyOptions()))
    assert not result.passed
    assert result.measured == 1
