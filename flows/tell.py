"""The run page's story: plan, gates, plots and decision as Prefect artifacts and log lines."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed

from flows.decide import Decision, headline
from flows.events import gate_event, release_event
from flows.plan import Step
from tasks.artifacts import Card, GateReport, Image, Publication
from tasks.run import Run, StageNote

PLOTS = {"accuracy": "GSM8K accuracy with its interval", "acceptance": "Accepted draft tokens"}
BIGGEST_PLOT = 400_000
"""Bytes of a picture that is carried inside an artifact."""


def tell_plan(steps: Sequence[Step], why: str) -> None:
    """Log the plan, and why there is something to do, and keep it as a table artifact."""
    logger = get_run_logger()
    logger.info("plan: %s", why)
    for step in steps:
        logger.info("plan: %-15s %-5s %s", step.stage, step.action, step.why)
    rows = [{"stage": step.stage, "action": step.action, "why": step.why} for step in steps]
    create_table_artifact(table=rows, key="plan", description=f"What this run does: {why}")


def tell_gates(release: str, reports: Mapping[str, GateReport]) -> None:
    """Log each gate's verdict, emit its event, and keep all as an artifact."""
    logger = get_run_logger()
    for gate, report in reports.items():
        measured, _ = headline(report)
        reasons = "; ".join(reason.detail for reason in report.reasons)
        logger.info("gate %s: %s (%s) %s", gate, report.verdict, measured, reasons)
        gate_event(release, report)
    create_markdown_artifact(
        gates_markdown(reports), key="gates", description="Measured, threshold, verdict"
    )


def tell_image(image: Image | None) -> None:
    """Keep which image serves, and what was patched in it."""
    if image is None:
        return
    rows = [
        {"patch": patch.name, "state": patch.state, "why": patch.reason} for patch in image.patches
    ]
    create_table_artifact(
        table=rows, key="image", description=f"{image.reference} ({image.digest or image.id})"
    )


def tell_card(card: Card) -> None:
    """Show the rendered card, and each of its plots on its own."""
    create_markdown_artifact(card_markdown(card.path), key="card", description="The model card")
    for file in card.files:
        if file.stem in PLOTS and (picture := _inline(file)):
            create_image_artifact(picture, key=f"plot-{file.stem}", description=PLOTS[file.stem])


def tell_decision(decision: Decision, run: Run) -> None:
    """Log how the release ended, emit its event, and keep it with its links as artifacts."""
    get_run_logger().info("%s: %s", decision.verdict, decision.why)
    release_event(decision)
    create_markdown_artifact(
        decision_markdown(decision, run.ledger, run.folder),
        key="decision",
        description=decision.why[:500],
    )
    if decision.publication:
        create_link_artifact(
            _url(decision.publication), key="published", link_text=decision.publication.location
        )
    create_link_artifact(
        run.folder.as_uri(), key="run-folder", link_text="run folder: logs, reports, raw records"
    )


def tell_comparison(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], plot: Path, file: Path
) -> None:
    """Keep the tables of a comparison and its picture."""
    for key, rows in tables.items():
        shown = [{name: _rounded(value) for name, value in row.items()} for row in rows]
        create_table_artifact(table=shown, key=key.replace("_", "-"), description=str(file))
    if picture := _inline(plot):
        create_image_artifact(picture, key="comparison", description="Accept length and speed")


def state_of(decision: Decision) -> Decision:
    """The decision as the flow's final state, so that the run is called RELEASED, REJECTED, ...

    Prefect gives whoever called the flow the decision itself.
    """
    state: State[Decision] = Completed(
        name=decision.verdict.value, message=decision.why[:300], data=decision
    )
    return cast(Decision, state)


def decision_markdown(decision: Decision, ledger: Sequence[StageNote], folder: Path) -> str:
    """The decision, the gates that led to it, and what each stage cost."""
    lines = [f"## {decision.verdict}", "", decision.why, ""]
    if decision.publication:
        lines += [f"Published: [{decision.publication.location}]({_url(decision.publication)})", ""]
    if decision.gates:
        lines += [gates_markdown(decision.gates), ""]
    lines += ["| stage | seconds | reused |", "| --- | ---: | --- |"]
    lines += [
        f"| {note.stage} | {note.seconds:.1f} | {'yes' if note.reused else note.why or 'no'} |"
        for note in ledger
    ]
    return "\n".join([*lines, "", f"Logs, reports and raw records: `{folder}`"])


def gates_markdown(reports: Mapping[str, GateReport]) -> str:
    """One line a gate: measured, threshold, verdict, reasons."""
    lines = ["| gate | verdict | measured | threshold | why |", "| --- | --- | --- | --- | --- |"]
    for gate, report in reports.items():
        measured, threshold = headline(report)
        reasons = "; ".join(reason.detail for reason in report.reasons)
        cells = (gate, f"**{report.verdict}**", measured, threshold, reasons)
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join(lines)


def card_markdown(card: Path, *, pictures: bool = True) -> str:
    """The card without its front matter, its pictures inside (or left out)."""

    def picture(found: re.Match[str]) -> str:
        inline = _inline(card.parent / found["path"]) if pictures else None
        return f"![{found['alt']}]({inline})" if inline else f"*{found['alt']}*"

    text = card.read_text(encoding="utf-8")
    front, _, body = text.partition("\n---\n")
    shown = body if front.startswith("---") else text
    return re.sub(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[\w./-]+\.png)\)", picture, shown)


def _inline(file: Path) -> str | None:
    if not file.is_file() or file.stat().st_size > BIGGEST_PLOT:
        return None
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()


def _url(publication: Publication) -> str:
    where = publication.location
    return where if "://" in where else Path(where).absolute().as_uri()


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
