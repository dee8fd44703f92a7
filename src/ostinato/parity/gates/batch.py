"""Batch: requests that share forwards give the bytes that each gives alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from ostinato.backend.batch_rules import BatchRules, probe_batch_rules
from ostinato.backend.nets.wan_stack import WanSample
from ostinato.backend.nets.wan_stock import library_forward
from ostinato.loop.batch import Stackable
from ostinato.parity.gate import GateResult, NothingMeasured
from ostinato.parity.gates.company import ShuffledTurns, mixed_requests, verdict
from ostinato.parity.perturb import module_of
from ostinato.parity.subject import Subject
from ostinato.request import Request
from ostinato.runtime import ResidentModel
from ostinato.tasks import OutputName

NAME = "batch"
_SEED = 20260803
_STOCK_SAMPLES, _CLIPS = 4, 3
# What a processor would measure on which every stack is exact.
_ANYTHING_GOES = BatchRules(linear_rows=1, activation_multiple=1, attention=True, norms=True)


class _Stock(NamedTuple):
    """The library's own batch. equal: to its samples, at every size; None where it did not run."""

    equal: bool | None
    told: str


def batch(subject: Subject) -> GateResult:
    """Serve 2 to 16 requests of mixed timesteps and guidance with stacking on.

    Passes only where forwards were in fact shared and the library's own batch of such calls is not
    equal, or where this processor's rules forbid sharing and the message says so. Raises
    NothingMeasured where rules allow it and nothing was stacked.
    """
    counts = (2, 4) if subject.options.quick else (2, 3, 8, 16)
    expected = subject.alone(_requests(subject, max(counts)))
    outputs, shared, widest = [], 0, 0
    for count in counts:
        turns = ShuffledTurns(_SEED + count)
        with subject.serving(turns, max_batch=max(counts)) as (engine, resident):
            with _widths(subject, resident) as widths:
                got = engine.run(_requests(subject, count))
            shared += sum(output.provenance.stacked_steps for output in got)
            widest = max(widest, *widths)
            outputs += [(index, output) for index, output in enumerate(got)]
    narrow, stock = _width_alone(subject), _stock_batch(subject)
    detail: dict[str, object] = {
        "batches": list(counts),
        "stacked_steps": shared,
        "samples_in_one_forward": widest,
        "samples_in_one_forward_alone": narrow,
        "stock_batch_equal": stock.equal,
    }
    note, stacked = f"; {shared} steps shared a forward, of up to {widest} samples", True
    if shared == 0 or widest <= narrow:
        note, stacked = f"; not stacked here: {_why(subject)}", False
    found = [output for _, output in outputs]
    result = verdict(
        subject,
        NAME,
        found,
        [expected[index] for index, _ in outputs],
        detail,
        f"{note}; the library's own batch: {stock.told}",
    )
    flags = {} if stock.equal is None else {"stock_batch_equal": stock.equal}
    # Without a batch that differs, nothing shows that the gate would see one that does.
    shown = stock.equal is False or not stacked
    return replace(result, passed=result.passed and shown, flags=flags)


def _requests(subject: Subject, count: int) -> list[Request]:
    """Return mixed requests; beyond the first few only their latents are asked for.

    Decoding is not stacked: what decoders do in company is seen in a few clips as well as in many.
    """
    clips = mixed_requests(subject, min(count, _CLIPS))
    rest = range(len(clips), count)
    return clips + [subject.request(index, outputs=(OutputName.LATENTS,)) for index in rest]


@contextmanager
def _widths(subject: Subject, resident: ResidentModel) -> Iterator[list[int]]:
    """Watch the largest leading dimension that any layer of a denoiser gives."""
    seen = [0]

    def hook(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor) and output.dim() > 2:
            seen.append(max(seen.pop(), output.shape[0]))

    modules = [module_of(resident.component(name), name) for name in subject.denoisers]
    layers = [layer for module in modules for layer in module.modules()]
    handles = [layer.register_forward_hook(hook) for layer in layers if not any(layer.children())]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _width_alone(subject: Subject) -> int:
    with subject.serving() as (engine, resident), _widths(subject, resident) as widths:
        engine.run([subject.request()])
    return widths[0]


def _why(subject: Subject) -> str:
    """Say which rules forbid stacking here; raises NothingMeasured when none does.

    The component itself is asked, with two recorded calls: it stacks on a processor on which
    anything goes, and does not under the rules that were measured on this one.
    """
    weights = subject.card.precision.weights
    if weights != "float32":
        return f"the batch rules are verdicts in float32, and this model computes in {weights}"
    with subject.cpu():
        rules = probe_batch_rules()
    if not _stacks(subject, _ANYTHING_GOES) or _stacks(subject, rules):
        raise NothingMeasured(
            "no forward was shared, although the batch rules of this processor allow it"
        )
    return f"the batch rules measured on this processor forbid it: {rules}"


def _stacks(subject: Subject, rules: BatchRules) -> bool:
    resident = subject.resident()
    for name in subject.denoisers:
        component = resident.component(name)
        calls = [c for c in subject.recorded.calls if c.component == name]
        if not isinstance(component, Stackable):
            continue
        for op in component.stacked_ops:
            inputs = [call.inputs for call in calls if call.op == op][:2]
            with subject.cpu(), torch.no_grad(), _widths(subject, resident) as alone:
                component.op(op)(**inputs[0])
            with subject.cpu(), torch.no_grad(), _widths(subject, resident) as together:
                component.op_stacked(op, rules)(inputs)
            if together[0] > alone[0]:
                return True
    return False


def _stock_batch(subject: Subject) -> _Stock:
    """Show that the library's own batched forward is not exact, where it is known how to run it.

    So that the gate is known to bite: equality is not what a batch gives for nothing. One that is
    equal, or cannot run, shows nothing of the kind.
    """
    resident, equal = subject.resident(), list[bool]()
    try:
        for name in subject.denoisers:
            module, samples = module_of(resident.component(name), name), _samples(subject, name)
            with subject.cpu(), torch.no_grad():
                equal += _stock_sizes(module, samples)
    except Exception as error:  # what requests gave is still told, beside why the gate is red
        return _Stock(None, f"could not run: {type(error).__name__}: {error}")
    if not equal:
        return _Stock(None, "could not run: it is not known how, or no two samples were recorded")
    if all(equal):
        return _Stock(True, "equal at every size, so nothing here shows that this gate bites")
    return _Stock(False, "not equal")


def _stock_sizes(module: nn.Module, samples: Sequence[WanSample]) -> Iterator[bool]:
    """Yield, for each size of batch, whether it equals its samples alone."""
    alone = [library_forward(module, [sample]) for sample in samples]
    for size in range(2, len(samples) + 1):
        together = library_forward(module, samples[:size])
        if together is not None:
            yield torch.equal(together, torch.cat([v for v in alone[:size] if v is not None]))


def _samples(subject: Subject, component: str) -> list[WanSample]:
    """Return what some steps fed the network, each at its own timestep, under one text."""
    calls = subject.recorded.calls
    texts = [
        value[0] if isinstance(value, tuple) else value
        for call in calls
        if call.component == component
        if (value := call.inputs.get("prompt_embeds")) is not None
    ]
    fed = [
        (call.inputs["latents"], call.inputs["timestep"])
        for call in calls
        if call.component == component and {"latents", "timestep"} <= set(call.inputs)
    ]
    return [
        WanSample(latents, timestep.reshape(1), texts[0])
        for latents, timestep in fed[:_STOCK_SAMPLES]
        if isinstance(latents, torch.Tensor)
        if isinstance(timestep, torch.Tensor) and texts and isinstance(texts[0], torch.Tensor)
    ]
