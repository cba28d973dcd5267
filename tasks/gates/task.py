"""The Prefect tasks that measure and judge; a PASS or FAIL is reused, an INVALID never is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Checkpoint, Endpoint, GateReport, Image, Source, Verdict
from tasks.gates.acceptance import run_acceptance
from tasks.gates.audit import Promise, audit, audit_report
from tasks.gates.gsm8k import run_gsm8k
from tasks.gates.smoke import run_smoke
from tasks.progress import Progress
from tasks.run import Run
from tasks.spec import ReleaseSpec
from tasks.store import code_digest, file_digest
from tasks.task import watched

AUDIT_CODE = ("tasks/gates/audit", "tasks/architectures.py", "tasks/checkpoint")
CODE = ("tasks/gates", "tasks/serve", "tasks/draft_head.py")

Measure = Callable[[Path, Progress], GateReport]


def served_gates(spec: ReleaseSpec) -> tuple[str, ...]:
    """The gates that need a server, in the order in which they run."""
    return ("smoke", "gsm8k") + (("acceptance",) if spec.gates.acceptance else ())


def gate_inputs(
    spec: ReleaseSpec, gate: str, checkpoint: str, image: Image | None
) -> dict[str, Any]:
    """What decides a gate's report; `checkpoint` is a digest."""
    asked = getattr(spec.gates, gate)
    data = getattr(asked, "data", None) or getattr(asked, "prompts", None)
    return {
        "gate": asked,
        "checkpoint": checkpoint,
        "serve": spec.serve,
        "image": image.id if image else None,
        "data": file_digest(data),
        "code": code_digest(*CODE),
    }


def audit_inputs(spec: ReleaseSpec, source: Source, checkpoint: str) -> dict[str, Any]:
    """What decides the audit's report; `checkpoint` is a digest."""
    return {
        "gate": spec.gates.audit,
        "promise": Promise.of(spec),
        "source": source.revision or source.digest,
        "checkpoint": checkpoint,
        "code": code_digest(*AUDIT_CODE),
    }


def reusable(run: Run, gate: str, checkpoint: Checkpoint, image: Image | None) -> bool:
    """Whether an earlier run has judged exactly this; a server given by URL may have changed."""
    if run.spec.serve.start.how == "url":
        return False
    inputs = gate_inputs(run.spec, gate, checkpoint.digest, image)
    return run.store.find(f"gate-{gate}", inputs) is not None


@task(name="audit", cache_policy=NO_CACHE, task_run_name="gate audit")
def gate_audit(run: Run, source: Source, checkpoint: Checkpoint) -> GateReport:
    """Structure, coverage, values and metadata of the files that would be published."""

    def measure(folder: Path, progress: Progress) -> GateReport:
        against = source.path if run.spec.gates.audit.against_source else None
        result = audit(checkpoint.path, against, progress, Promise.of(run.spec))
        return audit_report(result, run.spec.gates.audit)

    return _gate(run, "audit", audit_inputs(run.spec, source, checkpoint.digest), measure)


@task(name="gate", cache_policy=NO_CACHE, task_run_name="gate {gate}")
def gate_served(
    run: Run, gate: str, checkpoint: Checkpoint, image: Image | None, endpoint: Endpoint | None
) -> GateReport:
    """Measure one gate on the running engine; `endpoint` None: the report is in the store."""

    def measure(folder: Path, progress: Progress) -> GateReport:
        assert endpoint is not None, "a gate that is not in the store needs an engine"
        return _measure(run.spec, gate, endpoint, checkpoint, folder, progress)

    return _gate(run, gate, gate_inputs(run.spec, gate, checkpoint.digest, image), measure)


def _measure(
    spec: ReleaseSpec,
    gate: str,
    endpoint: Endpoint,
    checkpoint: Checkpoint,
    folder: Path,
    progress: Progress,
) -> GateReport:
    gates, patience = spec.gates, spec.serve.ready_timeout
    if gate == "smoke":
        return run_smoke(endpoint, gates.smoke, spec.serve, folder, checkpoint.path, progress)
    if gate == "gsm8k":
        return run_gsm8k(
            endpoint, gates.gsm8k, folder, checkpoint.path, progress, ready_timeout=patience
        )
    assert gates.acceptance is not None
    return run_acceptance(
        endpoint,
        gates.acceptance,
        spec.serve.speculation,
        folder,
        progress,
        ready_timeout=patience,
    )


class _InvalidError(Exception):
    """Carries an INVALID report past the store, which keeps only what decided something."""

    def __init__(self, report: GateReport) -> None:
        super().__init__(report.gate)
        self.report = report


def _gate(run: Run, gate: str, inputs: dict[str, Any], measure: Measure) -> GateReport:
    def build(folder: Path) -> dict[str, Any]:
        report = measure(folder, watched(run, gate))
        if report.verdict is Verdict.INVALID:
            kept = run.keep_gate(report, folder)
            shutil.rmtree(folder)
            raise _InvalidError(kept)
        return report.model_dump(mode="json")

    try:
        entry = run.make(f"gate-{gate}", inputs, build, resume=True)
    except _InvalidError as invalid:
        run.note(f"gate-{gate}", invalid.report.seconds)
        return invalid.report
    return run.keep_gate(GateReport.model_validate(entry.record), entry.files)
