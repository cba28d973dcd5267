"""Run the gates over one fault and keep what each says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.artifacts import Endpoint, GateReport, Verdict
from tasks.gates.acceptance import run_acceptance
from tasks.gates.audit import audit, audit_report
from tasks.gates.gsm8k import run_gsm8k
from tasks.gates.records import read_records
from tasks.gates.smoke import run_smoke
from tasks.serve.engines import EngineExitedError, serve
from tasks.spec import AuditGate, FolderSource, GatesSpec, ReleaseSpec
from tests.faults.inject import Copy
from tests.gates.matrix.breaks import Break
from tests.gates.matrix.wrong import Wrong
from tests.servers.fake import Brain, FakeEngine

BESIDE = "audit beside the source"
GATES = ("audit", "smoke", "gsm8k", "acceptance", BESIDE)


@dataclass
class Row:
    """One fault: each gate's verdict and codes, and whether any raw record changed."""

    fault: str
    reports: dict[str, GateReport] = field(default_factory=dict)
    fingerprint: dict[str, Any] = field(default_factory=dict)

    @property
    def stopped(self) -> list[str]:
        """Every gate that did not pass it."""
        return [name for name, r in self.reports.items() if r.verdict is not Verdict.PASS]

    @property
    def stopped_blind(self) -> list[str]:
        """Those of them that see folder, log and URL only."""
        return [name for name in self.stopped if name != BESIDE]

    def changed(self, good: Row) -> bool:
        """Whether a raw record differs from the good run's, or the fault kept one from being."""
        own, other = self.fingerprint, good.fingerprint
        return any(own[key] != other.get(key) for key in own)


@contextmanager
def broken(good: Path, fault: Break, scratch: Path) -> Iterator[tuple[Path, Path]]:
    """(what the gates see, what is served)."""
    root = scratch / "files"
    shutil.rmtree(root, ignore_errors=True)
    try:
        seen = Copy(good, root / "seen")
        fault.make(seen)
        served = seen
        if fault.served is not None:
            served = Copy(good, root / "served")
            fault.served(served)
        yield seen.root, served.root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_break(good: Path, fault: Break, spec: ReleaseSpec, scratch: Path, stop_early: bool) -> Row:
    """Audit and serve a broken copy of the release, and measure it."""
    row = Row(fault.name)
    with broken(good, fault, scratch) as (seen, served):
        row.reports["audit"] = audit_report(audit(seen), AuditGate(against_source=False), 0.0)
        changes = {"flags": (*spec.serve.flags, *fault.flags)}
        if fault.served_name:
            changes["model_name"] = fault.served_name
        serving = spec.serve.model_copy(update=changes)
        row.reports[BESIDE] = audit_report(audit(seen, source_of(spec)), AuditGate(), 0.0)
        if stop_early and row.stopped_blind:
            return row
        try:
            with serve(served, serving, None, scratch / "engine.log", "matrix") as endpoint:
                asked = endpoint.model_copy(update={"model": spec.serve.model_name})
                measure(row, asked, spec, seen, scratch, stop_early)
        except EngineExitedError:
            pass  # the gates have said what they saw of it
    return row


def source_of(spec: ReleaseSpec) -> Path:
    """The demo's source model."""
    assert isinstance(spec.source, FolderSource)
    return spec.source.path


def run_wrong(
    fault: Wrong, brain: Brain, gates: GatesSpec, spec: ReleaseSpec, scratch: Path
) -> Row:
    """Measure a fake server with one fault."""
    row = Row(fault.name)
    spoil: list[Any] = []

    def change(reply: Any, count: int) -> None:
        spoil[0](reply, count)

    with FakeEngine(brain=brain, spoil=change, **fault.info) as fake:
        spoil.append(fault.make(fake))
        spec = spec.model_copy(update={"gates": gates})
        measure(row, fake.endpoint, spec, None, scratch, False)
    return row


def measure(
    row: Row,
    endpoint: Endpoint,
    spec: ReleaseSpec,
    checkpoint: Path | None,
    scratch: Path,
    stop_early: bool,
) -> None:
    """Smoke, GSM8K, acceptance; with `stop_early` none after the first that stops it."""
    gates = spec.gates
    assert gates.acceptance is not None
    acceptance = gates.acceptance
    runs: dict[str, Callable[[Path], GateReport]] = {
        "smoke": lambda out: run_smoke(endpoint, gates.smoke, spec.serve, out, checkpoint),
        "gsm8k": lambda out: run_gsm8k(endpoint, gates.gsm8k, out, checkpoint, ready_timeout=5),
        "acceptance": lambda out: run_acceptance(
            endpoint, acceptance, spec.serve.speculation, out, ready_timeout=5
        ),
    }
    for name, run in runs.items():
        if stop_early and row.stopped_blind:
            return
        out = scratch / name
        shutil.rmtree(out, ignore_errors=True)
        row.reports[name] = run(out)
        row.fingerprint |= fingerprint(name, out)


def fingerprint(gate: str, out: Path) -> dict[str, Any]:
    """What the records say, without the clock.

    Answers and counters, what the log showed, whether the server's totals moved and whether it
    ended as what it began as.
    """
    found: dict[str, Any] = {}
    began: dict[str, Any] = {}
    for line in read_records(out / "records.jsonl"):
        if line["record"] == "run":
            found[f"{gate}.expected"] = json.dumps(line["inputs"].get("expected"), sort_keys=True)
        elif line["record"] == "answer":
            kept = {k: line.get(k) for k in ("status", "text", "reasoning", "speculation", "model")}
            found[f"{gate}.{line['id']}"] = json.dumps(kept, sort_keys=True)
        elif line["record"] == "log" and line["log"]:
            kept = {k: line["log"][k] for k in ("loaded", "kv_dtypes", "kv_scales", "condemned")}
            found[f"{gate}.log"] = json.dumps(kept, sort_keys=True)
        elif line["record"] == "session":
            facts = {k: line["facts"].get(k) for k in ("models", "algorithm", "num_steps")}
            found[f"{gate}.facts"] = json.dumps([facts, line["unreachable"]], sort_keys=True)
            began = line
        elif line["record"] == "totals":
            found[f"{gate}.moved"] = line["totals"] != began["totals"]
        elif line["record"] == "end":
            found[f"{gate}.same"] = line["facts"]["model_path"] == began["facts"]["model_path"]
    return found


def table(rows: list[Row], good: dict[str, Row]) -> str:
    """The matrix in Markdown: verdict and first codes of each gate, whether a record changed."""
    lines = [
        "| fault | " + " | ".join(GATES) + " | record changed |",
        "|" + "---|" * (len(GATES) + 2),
    ]
    for row in rows:
        cells = [_cell(row.reports.get(name)) for name in GATES]
        kind = "served" if "audit" in row.reports else "fake"
        changed = "-" if row is good.get(kind) else "yes" if row.changed(good[kind]) else "no"
        changed = changed if row.fingerprint else "not served"
        lines.append(f"| {row.fault} | " + " | ".join(cells) + f" | {changed} |")
    return "\n".join(lines)


def _cell(report: GateReport | None) -> str:
    if report is None:
        return ""
    if report.verdict is Verdict.PASS:
        return "PASS"
    codes = list(dict.fromkeys(reason.code for reason in report.reasons))
    more = f" +{len(codes) - 2}" if len(codes) > 2 else ""
    return f"{report.verdict.value} {', '.join(codes[:2])}{more}"
