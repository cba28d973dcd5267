"""What a release tells the world as Prefect events, for automations to react to."""

from __future__ import annotations

from typing import Any

from prefect.events import emit_event

from flows.decide import Decision
from tasks.artifacts import GateReport, ReleaseVerdict, Verdict

GATE_EVENTS = {
    Verdict.PASS: "quantgate.gate.passed",
    Verdict.FAIL: "quantgate.gate.failed",
    Verdict.INVALID: "quantgate.gate.invalid",
}
RELEASE_EVENTS = {
    ReleaseVerdict.RELEASED: "quantgate.release.published",
    ReleaseVerdict.REJECTED: "quantgate.release.rejected",
    ReleaseVerdict.INCONCLUSIVE: "quantgate.release.inconclusive",
    ReleaseVerdict.UNCHANGED: "quantgate.release.unchanged",
}
DRY_RUN = "quantgate.release.passed"
"""Gates passed, and the spec publishes nowhere."""


def gate_event(release: str, report: GateReport) -> None:
    """Emit `quantgate.gate.passed|failed|invalid` with the first reasons."""
    payload = {
        "gate": report.gate,
        "verdict": str(report.verdict),
        "reasons": [reason.code for reason in report.reasons[:5]],
        "seconds": round(report.seconds, 1),
    }
    _emit(GATE_EVENTS[report.verdict], release, payload)


def release_event(decision: Decision) -> None:
    """Emit `quantgate.release.published|rejected|inconclusive|unchanged` (or `passed`: dry run)."""
    name = RELEASE_EVENTS[decision.verdict]
    if decision.verdict is ReleaseVerdict.RELEASED and not decision.published:
        name = DRY_RUN
    publication = decision.publication
    payload = {
        "verdict": str(decision.verdict),
        "published": decision.published,
        "why": decision.why[:500],
        "run": decision.run,
        "location": publication.location if publication else None,
    }
    _emit(name, decision.release, payload)


def _emit(event: str, release: str, payload: dict[str, Any]) -> None:
    resource = {
        "prefect.resource.id": f"quantgate.release.{release}",
        "prefect.resource.name": release,
    }
    emit_event(event=event, resource=resource, payload=payload)
