"""An audit's result as a gate report."""

from __future__ import annotations

from collections import Counter

from tasks.artifacts import GateReport, Reason, Verdict
from tasks.gates.audit.codes import CODES
from tasks.gates.audit.result import AuditResult
from tasks.spec import AuditGate

SHOWN = 50
"""Faults that a report lists one by one; all are counted."""


def audit_report(result: AuditResult, gate: AuditGate, seconds: float | None = None) -> GateReport:
    """Judge an audit: FAIL on any fault; INVALID when a comparison was asked for and not made.

    Args:
        result: what `audit` found.
        gate: what the spec asks.
        seconds: what it took; None: what the audit itself measured.
    """
    reasons = [
        Reason(code=f.code, detail=f"{f.tensor}: {f.detail}" if f.tensor else f.detail)
        for f in result.faults[:SHOWN]
    ]
    if len(result.faults) > SHOWN:
        by_code = Counter(fault.code for fault in result.faults[SHOWN:])
        more = ", ".join(f"{code} {count}" for code, count in sorted(by_code.items()))
        reasons.append(Reason(code="more-faults", detail=f"Not listed here: {more}."))
    verdict = result.verdict
    if verdict is Verdict.PASS and gate.against_source and "source_bytes" not in result.summary:
        verdict = Verdict.INVALID
        reasons.append(Reason(code="not-compared", detail="No source was given to compare with."))
    if verdict is Verdict.PASS:
        compared = "and equal to what the source gives" if gate.against_source else "by themselves"
        detail = f"None of {len(CODES)} kinds of faults: files are right {compared}."
        reasons.append(Reason(code="audited", detail=detail))
    return GateReport(
        gate="audit",
        verdict=verdict,
        reasons=tuple(reasons),
        measured=result.summary,
        threshold={"faults": 0, "against_source": gate.against_source},
        seconds=seconds if seconds is not None else float(result.summary.get("seconds", 0.0)),
    )
