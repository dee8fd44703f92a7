"""Which gates a card owes, and what they say of it.

Invariant: every owed gate is run and reported; one that raises, or that measured nothing, is red.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ostinato.card import ModelCard, ModelSource, ParityLevel
from ostinato.errors import OstinatoError
from ostinato.parity.gate import Gate, GateResult, NothingMeasured, Rung
from ostinato.parity.gates.batch import batch
from ostinato.parity.gates.company import determinism, interleave
from ostinato.parity.gates.components import components
from ostinato.parity.gates.fast import fast
from ostinato.parity.gates.files import files
from ostinato.parity.gates.kept import goldens
from ostinato.parity.gates.oracle import oracle
from ostinato.parity.gates.reentry import reentry
from ostinato.parity.gates.reload import reload
from ostinato.parity.gates.sampling import sampling
from ostinato.parity.gates.trajectory import trajectory
from ostinato.parity.gates.weights import weights
from ostinato.parity.subject import Subject, VerifyOptions
from ostinato.report import Comparison, Report, describe_environment
from ostinato.runtime.threads import told_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedGate:
    """A gate and where it stands on the ladder."""

    name: str
    rung: Rung
    run: Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the gates of one model said, in the order in which they ran.

    perturbation: the weight that was moved to see whether a gate sees it, as `Perturbation` writes
    it.
    """

    model_id: str
    card_digest: str
    gates: tuple[GateResult, ...]
    threads: int
    perturbation: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every owed gate passed; no gate at all is no pass, nor is a moved weight."""
        return self.perturbation is None and bool(self.gates) and self.num_failed == 0

    @property
    def told(self) -> tuple[str, ...]:
        """What has to be said beside the gates, in lines."""
        if self.perturbation is None:
            return ()
        seen = "" if self.num_failed else "; no gate saw it"
        return (f"one weight of the served side was moved: {self.perturbation}{seen}",)

    @property
    def num_failed(self) -> int:
        """How many gates are red."""
        return sum(not gate.passed for gate in self.gates)


def owed_gates(card: ModelCard, options: VerifyOptions) -> tuple[OwedGate, ...]:
    """Return the gates that a card owes: files and company always, rungs as it declares them.

    C1 is owed to the oracle where the card names one, to the float64 run otherwise; goldens where
    there is a file of them.
    """
    owed = [
        OwedGate(name="files", rung=Rung.FILES, run=files),
        OwedGate(name="weights", rung=Rung.FILES, run=weights),
    ]
    for level in card.parity.levels:
        owed += _of_level(level, card)
    if options.goldens is not None:
        owed.append(OwedGate(name="goldens", rung=Rung.C1, run=goldens))
    owed += [
        OwedGate(name="determinism", rung=Rung.SERVING, run=determinism),
        OwedGate(name="interleave", rung=Rung.SERVING, run=interleave),
        OwedGate(name="batch", rung=Rung.SERVING, run=batch),
        OwedGate(name="fast", rung=Rung.SERVING, run=fast),
    ]
    return tuple(owed)


def verify(
    source: ModelSource,
    options: VerifyOptions | None = None,
    on_gate: Callable[[str, int, int], None] | None = None,
) -> Verification:
    """Run every gate that the card owes; on_gate(name, done, total) is called before each.

    Raises BadInput for a perturbation that names no weight; everything else is a red gate.
    """
    options = options or VerifyOptions()
    subject = Subject(source, options)
    if options.perturbation is not None:
        subject.resident()  # refuses a name that is not there before anything is measured
    owed, results = owed_gates(source.card, options), list[GateResult]()
    for index, gate in enumerate(owed):
        if on_gate is not None:
            on_gate(gate.name, index, len(owed))
        results.append(run_gate(gate, subject))
    return Verification(
        model_id=source.card.model_id,
        card_digest=source.card.digest(),
        gates=tuple(results),
        threads=subject.threads,
        perturbation=None if options.perturbation is None else str(options.perturbation),
    )


def run_gate(gate: OwedGate, subject: Subject) -> GateResult:
    """Run one gate; what it raises makes it red, and so does a pass that measured nothing."""
    try:
        result = gate.run(subject)
        if result.passed and result.measured == 0:
            raise NothingMeasured("the gate passed without measuring anything")
        return result
    except Exception as error:  # whatever is wrong, the other gates still speak
        kind = error.code if isinstance(error, OstinatoError) else type(error).__name__
        return GateResult(
            name=gate.name, rung=gate.rung, passed=False, measured=0, message=f"[{kind}] {error}"
        )


def report_of(verifications: Sequence[Verification]) -> Report:
    """Sum the verdicts of one or more models up, under the stable names of figures."""
    gates = [gate for each in verifications for gate in each.gates]
    total, variants = len(gates), sum(gate.variants for gate in gates)
    tolerated = sum(gate.variants_tolerated for gate in gates)
    moved = [each for each in verifications if each.perturbation is not None]
    return Report(
        name="verify",
        figures={
            "models": len(verifications),
            "gates": total,
            "gates_passed": sum(gate.passed for gate in gates),
            "taps": sum(gate.taps for gate in gates),
            "comparisons": sum(gate.measured for gate in gates),
            "variants": variants,
            "variants_bit_equal": sum(gate.variants_equal for gate in gates),
            "variants_within_tolerance": tolerated,
            "golden_bytes_compared": sum(gate.bytes_compared for gate in gates),
            "worst_relative_error": max((g.worst_relative_error for g in gates), default=0.0),
            **_flags(gates),
            **({"perturbations_seen": sum(each.num_failed > 0 for each in moved)} if moved else {}),
        },
        targets={
            "models": (Comparison.AT_LEAST, 1),
            "gates_passed": (Comparison.AT_LEAST, max(1, total)),
            "taps": (Comparison.AT_LEAST, 1),
            "variants_bit_equal": (Comparison.AT_LEAST, max(1, variants) - tolerated),
            **({"perturbations_seen": (Comparison.AT_LEAST, len(moved))} if moved else {}),
        },
        environment={
            **describe_environment(max((v.threads for v in verifications), default=1)),
            "threads": told_threads({v.model_id: v.threads for v in verifications}),
        },
        detail={each.model_id: _detail(each) for each in verifications},
    )


def _detail(verification: Verification) -> dict[str, object]:
    return {
        "card_digest": verification.card_digest,
        "perturbation": verification.perturbation,
        "threads": verification.threads,
        "gates": {
            gate.name: {
                "rung": gate.rung.value,
                "passed": gate.passed,
                "measured": gate.measured,
                "message": gate.message,
                **gate.detail,
            }
            for gate in verification.gates
        },
    }


def _flags(gates: Sequence[GateResult]) -> dict[str, int]:
    names = dict.fromkeys(name for gate in gates for name in gate.flags)
    return {
        name: int(all(gate.flags[name] for gate in gates if name in gate.flags)) for name in names
    }


def _of_level(level: ParityLevel, card: ModelCard) -> list[OwedGate]:
    if level is ParityLevel.C0:
        return [
            OwedGate(name="components", rung=Rung.C0, run=components),
            OwedGate(name="reload", rung=Rung.C0, run=reload),
            OwedGate(name="sampling", rung=Rung.C0, run=sampling),
        ]
    if level is ParityLevel.C1 and card.parity.oracle is not None:
        return [OwedGate(name="oracle", rung=Rung.C1, run=oracle)]
    if level is ParityLevel.C1:
        return [OwedGate(name="trajectory", rung=Rung.C1, run=trajectory)]
    if level is ParityLevel.C2:
        return [OwedGate(name="reentry", rung=Rung.C2, run=reentry)]
    return [OwedGate(name=level.value, rung=Rung(level.value), run=_unknown)]


def _unknown(subject: Subject) -> GateResult:
    """Refuse a rung that nothing here measures, rather than pass over it."""
    levels = ", ".join(subject.card.parity.levels)
    raise NothingMeasured(
        f"card {subject.card.model_id!r} declares {levels}, and no gate here measures one of them; "
        "expected C0, C1 or C2"
    )
