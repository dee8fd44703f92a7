"""One HTML page that says what was verified: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from ostinato.parity.compare import Comparison
from ostinato.parity.gate import GateResult
from ostinato.parity.ladder import Verification
from ostinato.parity.written import writing
from ostinato.report import Report

_WORST = 8  # taps of a component that are listed
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2430; background: #fff }
h1, h2, h3 { line-height: 1.2; font-weight: 600 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid #d8dee8;
  vertical-align: top }
th { font-weight: 600; color: #5a6575 }

.pass { color: #11703c } .fail { color: #b3261e; font-weight: 600 }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere }
"""


def render_page(verifications: Sequence[Verification], report: Report) -> str:
    """Return the page; every text in it is escaped."""
    verdict = _verdict(report.passed)
    body = "".join(part for each in verifications for part in _model(each))
    figures = _table(
        ("figure", "value"),
        ((escape(name), _number(value)) for name, value in report.figures.items()),
    )
    environment = _table(
        ("environment", ""),
        ((escape(name), escape(value)) for name, value in report.environment.items()),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>ostinato verify</title><style>{_STYLE}</style></head><body>"
        f"<h1>ostinato verify: {verdict}</h1>{figures}{body}<h2>Where</h2>{environment}"
        "</body></html>\n"
    )


def write_page(verifications: Sequence[Verification], report: Report, path: Path) -> None:
    """Write the page; raises InvalidOutput where that cannot be done."""
    with writing(path):
        path.write_text(render_page(verifications, report), encoding="utf-8")


def _model(verification: Verification) -> Iterator[str]:
    yield f"<h2>{escape(verification.model_id)}: {_verdict(verification.passed)}</h2>"
    yield f"<p><code>{escape(verification.card_digest)}</code></p>"
    yield from (f'<p class="fail">{escape(line)}</p>' for line in verification.told)
    yield _table(
        ("rung", "gate", "", "measured", "taps", "equal", "what it says"),
        (_gate_row(gate) for gate in verification.gates),
    )
    for component, worst in _worst_taps(verification.gates).items():
        yield f"<h3>{escape(component)}: taps that lie furthest from float64</h3>"
        yield _table(("tap", "largest error", "rms error", "allowed", "why"), map(_tap_row, worst))


def _gate_row(gate: GateResult) -> tuple[str, ...]:
    equal = f"{gate.variants_equal} of {gate.variants}" if gate.variants else ""
    facts = "; ".join(f"{name}: {value}" for name, value in gate.detail.items())
    said = escape(gate.message) + (f"<br><small>{escape(facts)}</small>" if facts else "")
    return (
        escape(gate.rung.value),
        escape(gate.name),
        _verdict(gate.passed),
        _number(gate.measured),
        _number(gate.taps),
        escape(equal),
        said,
    )


def _worst_taps(gates: Iterable[GateResult]) -> dict[str, list[Comparison]]:
    by_component: dict[str, list[Comparison]] = {}
    for gate in gates:
        if gate.taps == 0:
            continue  # what was compared there are no taps
        for comparison in gate.comparisons:
            by_component.setdefault(comparison.component, []).append(comparison)
    return {
        component: sorted(found, key=lambda each: each.severity, reverse=True)[:_WORST]
        for component, found in by_component.items()
    }


def _tap_row(comparison: Comparison) -> tuple[str, ...]:
    errors, tolerance = comparison.errors, comparison.tolerance
    name = f"<code>{escape(f'{comparison.op}: {comparison.tap}')}</code>"
    if errors is None or tolerance is None:
        return name, "", "", "", f'<span class="fail">{escape(comparison.detail)}</span>'
    style = "fail" if comparison.diverged else "pass"
    largest = errors.largest if tolerance.absolute is None else errors.absolute
    allowed = tolerance.largest if tolerance.absolute is None else tolerance.absolute
    return (
        name,
        f'<span class="{style}">{_number(largest)}</span>',
        _number(errors.rms),
        _number(allowed),
        escape(tolerance.reason),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heading = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"


def _verdict(passed: bool) -> str:
    return f'<span class="{"pass" if passed else "fail"}">{"passed" if passed else "FAILED"}</span>'


def _number(value: float) -> str:
    return f"{value:.4g}"
