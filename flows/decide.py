"""From gate reports to the end of a release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tasks.artifacts import GateReport, Publication, Record, ReleaseVerdict, Verdict


class Basis(Record):
    """What a release was made from: equal bases make equal releases."""

    source: str = Field(description="commit on the Hub, content digest for a folder")
    recipe: str = Field(description="digest of the spec and of the files that it names")
    image: str | None = Field(description="digest or id of the base image; None without container")
    code: str = Field(description="digest of this program")


class Decision(Record):
    """How a release ended (decision.json, a contract: programs outside read it)."""

    verdict: ReleaseVerdict
    published: bool
    why: str
    release: str
    run: str
    basis: Basis | None = Field(default=None, description="None in runs of older versions")
    checkpoint: str | None = None
    card: str | None = None
    publication: Publication | None = None
    gates: dict[str, GateReport] = Field(default_factory=dict)
    reused: list[str] = Field(default_factory=list)
    seconds: dict[str, float] = Field(default_factory=dict)


def judge(reports: Mapping[str, GateReport], asked: tuple[str, ...]) -> tuple[ReleaseVerdict, str]:
    """The verdict over all gates asked for, and why: FAIL outweighs INVALID, absent is INVALID."""
    failed = [report for report in reports.values() if report.verdict is Verdict.FAIL]
    if failed:
        return ReleaseVerdict.REJECTED, _because(failed)
    invalid = [report for report in reports.values() if report.verdict is Verdict.INVALID]
    if invalid:
        return ReleaseVerdict.INCONCLUSIVE, _because(invalid)
    absent = [gate for gate in asked if gate not in reports]
    if absent:
        return ReleaseVerdict.INCONCLUSIVE, f"not measured: {', '.join(absent)}"
    return ReleaseVerdict.RELEASED, f"{len(reports)} gates passed"


def _because(reports: list[GateReport]) -> str:
    return "; ".join(
        f"{report.gate} {report.verdict}: "
        + (", ".join(reason.detail for reason in report.reasons) or "no reason was given")
        for report in reports
    )


def headline(report: GateReport) -> tuple[str, str]:
    """A gate's measured value and threshold, in one short text each, for tables."""
    return _short(report.measured), _short(report.threshold)


def _short(values: Mapping[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        if isinstance(value, bool | str | int):
            parts.append(f"{name} {value}")
        elif isinstance(value, float):
            parts.append(f"{name} {value:.4g}")
    return ", ".join(parts[:3]) or "-"
