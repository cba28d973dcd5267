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


HEADLINES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "audit": (("bits_per_weight",), ("faults",)),
    "smoke": (("known_right", "long_right"), ("min_known",)),
    "gsm8k": (("accuracy",), ("min_accuracy",)),
    "acceptance": (("accept_length",), ("min_accept", "max_accept")),
}
"""Of all that a gate measured and compared with, the names that a table shows."""


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
    """A gate's measured value with its interval, and its threshold, short enough for tables."""
    measured, threshold = HEADLINES.get(report.gate, ((), ()))
    value = _short(report.measured, measured)
    if report.interval is not None:
        value += f" [{report.interval.low:.4g}, {report.interval.high:.4g}]"
    return value, _short(report.threshold, threshold)


def _short(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    parts = []
    for name in names or tuple(values)[:2]:
        value = values.get(name)
        if isinstance(value, bool | str | int | float):
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            parts.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(parts) or "-"
