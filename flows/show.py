"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.console import table
from flows.decide import Decision, headline
from tasks.artifacts import GateReport


def decision_tables(decision: Decision) -> list[Any]:
    """Stages, gates, and where the card and the publication are."""
    stages = [
        (stage, f"{seconds:.1f}", "yes" if stage in decision.reused else "no")
        for stage, seconds in decision.seconds.items()
    ]
    shown: list[Any] = [
        table("stages", ("stage", "seconds", "reused?"), stages),
        gate_table(decision.gates),
        f"{decision.verdict}: {decision.why}",
    ]
    if decision.card:
        shown.append(f"card: {_from_here(decision.card)}")
    if decision.publication:
        shown.append(f"published: {decision.publication.location}")
    return shown


def _from_here(path: str) -> str:
    """The path relative to the working directory where it lies below it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def gate_table(reports: Mapping[str, GateReport]) -> Any:
    """One line a gate: measured, threshold, verdict."""
    rows = [(gate, *headline(report), str(report.verdict)) for gate, report in reports.items()]
    return table("gates", ("gate", "measured", "threshold", "verdict"), rows)
