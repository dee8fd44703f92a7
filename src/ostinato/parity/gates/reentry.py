"""C2: a served request re-entered with grad, at every step that was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from ostinato.loop.contract import Component
from ostinato.parity.aligner import CallRecord
from ostinato.parity.compare import compare_promised
from ostinato.parity.gate import GateResult, NothingMeasured, Rung, Tally
from ostinato.parity.perturb import module_of
from ostinato.parity.subject import Subject
from ostinato.parity.values import tensors

NAME = "reentry"


def reentry(subject: Subject) -> GateResult:
    """Run the denoisers' calls again while autograd records: equal bits, then gradients.

    Outputs are compared, by bits where the card promises them. Every trained parameter must get a
    finite gradient, and one that is not zero, from some call. Raises NothingMeasured when no call
    of a denoiser was recorded, none gave an output, or no parameter is there.
    """
    calls = [c for c in subject.recorded.calls if c.component in subject.denoisers]
    resident, tally = subject.resident(), Tally()
    modules = {n: module_of(resident.component(n), n) for n in {c.component for c in calls}}
    parameters = {f"{n}.{p}": v for n, m in modules.items() for p, v in m.named_parameters()}
    if not calls or not parameters:
        raise NothingMeasured(f"no call of {', '.join(subject.denoisers)} with parameters recorded")
    reached: set[str] = set()
    problems: list[str] = []
    with subject.cpu():
        for call in calls:
            again = _with_grad(call, resident.component(call.component), modules[call.component])
            # What is inside was compared at C0; hooks would be in the way of autograd here.
            tally.add(compare_promised(replace(call, taps=()), again, bitwise=subject.bitwise))
            for name in _reached(parameters, problems, call):
                reached.add(name)
    unreached = sorted(set(parameters) - reached)
    if unreached:
        problems.append(f"no gradient, or only zero, reached {', '.join(unreached[:3])}")
    found = tally.result(
        NAME,
        Rung.C2,
        f"{tally.measured} outputs of {len(calls)} calls "
        f"{'have equal bits' if subject.bitwise else 'are within tolerance'} with grad; gradients "
        f"reach all {len(parameters)} parameters",
    )
    if found.passed and problems:
        return replace(found, passed=False, message=problems[0], detail={"problems": problems})
    return found


def _with_grad(call: CallRecord, component: Component, module: nn.Module) -> CallRecord:
    """Run a call with grad and follow its outputs back; gradients are left on the parameters."""
    module.requires_grad_(True)
    module.zero_grad(set_to_none=True)
    with torch.enable_grad():
        outputs = component.op(call.op)(**call.inputs)
        # Any function of the outputs that depends on each of them will do.
        followed = [v.square().mean() for _, v in tensors(outputs) if v.requires_grad]
        if followed:
            torch.stack(followed).sum().backward()
    return CallRecord(
        unit=call.unit,
        call_id=call.call_id,
        component=call.component,
        op=call.op,
        inputs=call.inputs,
        outputs=outputs,
        taps=(),
    )


def _reached(
    parameters: Mapping[str, nn.Parameter], problems: list[str], call: CallRecord
) -> set[str]:
    """Return which parameters a backward pass reached; note gradients that are not finite."""
    reached: set[str] = set()
    for name, parameter in parameters.items():
        gradient = parameter.grad
        if gradient is None:
            continue
        if not bool(torch.isfinite(gradient).all()):
            problems.append(f"the gradient of {name} is not finite at step {call.unit.step}")
        elif bool(gradient.any()):
            reached.add(name)
    return reached
