"""The run page's story: plan, gates and decision as Prefect artifacts and log lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from flows.decide import Decision, headline
from flows.plan import Step
from tasks.artifacts import GateReport
from tasks.run import StageNote


def tell_plan(steps: Sequence[Step]) -> None:
    """Log the plan and keep it as a table artifact."""
    logger = get_run_logger()
    for step in steps:
        logger.info("plan: %-15s %-5s %s", step.stage, step.action, step.why)
    rows = [{"stage": step.stage, "action": step.action, "why": step.why} for step in steps]
    create_table_artifact(table=rows, key="plan", description="What this run does, and why")


def tell_gates(reports: Mapping[str, GateReport]) -> None:
    """Log each gate's verdict and keep all as a table artifact."""
    logger = get_run_logger()
    rows = []
    for gate, report in reports.items():
        measured, threshold = headline(report)
        reasons = "; ".join(reason.detail for reason in report.reasons)
        logger.info("gate %s: %s (%s) %s", gate, report.verdict, measured, reasons)
        rows.append(
            {
                "gate": gate,
                "measured": measured,
                "threshold": threshold,
                "verdict": str(report.verdict),
                "reasons": reasons,
            }
        )
    create_table_artifact(table=rows, key="gates", description="Measured, threshold, verdict")


def tell_decision(decision: Decision, ledger: Sequence[StageNote]) -> None:
    """Log how the release ended and keep it, with its card, as markdown artifacts."""
    get_run_logger().info("%s: %s", decision.verdict, decision.why)
    lines = [f"## {decision.verdict}", "", decision.why, "", "| stage | seconds | reused |"]
    lines += ["| --- | ---: | --- |"]
    lines += [
        f"| {note.stage} | {note.seconds:.1f} | {'yes' if note.reused else note.why or 'no'} |"
        for note in ledger
    ]
    if decision.publication:
        lines += ["", f"Published: {decision.publication.location}"]
    create_markdown_artifact("\n".join(lines), key="decision", description=decision.why)
    if decision.card:
        card = Path(decision.card).read_text(encoding="utf-8")
        create_markdown_artifact(card, key="card", description="The rendered model card")
