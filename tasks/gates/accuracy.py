"""The rule that turns counts of right, lost and cut-off answers into a verdict on accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tasks.artifacts import Reason, Verdict
from tasks.gates.answers import Extracted, extract, grade
from tasks.gates.records import Line
from tasks.gates.statistics import samples_to_decide, wilson_high, wilson_low
from tasks.gates.trust import outcome
from tasks.spec import Gsm8kGate


@dataclass
class Tally:
    """Counts over a run of problems of which `total - seen` are still open."""

    total: int
    correct: int = 0
    lost: int = 0
    cut_off: int = 0
    seen: int = 0

    @property
    def open(self) -> int:
        """Problems without an outcome yet."""
        return self.total - self.seen

    def add(self, line: Line) -> None:
        """Count one answer."""
        kind = outcome(line)
        self.seen += 1
        self.lost += kind == "lost"
        self.cut_off += kind == "cut_off"
        self.correct += kind == "ok" and score(line)[1]

    def verdict(self, gate: Gsm8kGate) -> Verdict | None:
        """The verdict that no open problem can change; None while there is none.

        The paired rule decides elsewhere, over all problems: here it is INVALID at the end.
        """
        lost, cut_off = gate.max_lost * self.total, gate.max_cut_off * self.total
        if self.lost > lost or self.cut_off > cut_off:
            return Verdict.INVALID
        if gate.rule != "non-inferior":
            low, high = bounds(gate, self)
            safe = self.lost + self.open <= lost and self.cut_off + self.open <= cut_off
            if low >= gate.min_accuracy and (safe or self.open == 0):
                return Verdict.PASS
            if high < gate.min_accuracy:
                return Verdict.FAIL
        return Verdict.INVALID if self.open == 0 else None


def score(line: Line) -> tuple[Extracted, bool]:
    """What a whole answer says, and whether it is right."""
    return _score(line["text"], line["meta"]["gold"])


@lru_cache(maxsize=8192)
def _score(text: str, gold: str) -> tuple[Extracted, bool]:
    found = extract(text)
    return found, found.rule != "none" and grade(found.answer, gold)


def bounds(gate: Gsm8kGate, tally: Tally) -> tuple[float, float]:
    """(accuracy at least, accuracy at most): what is not known counted wrong, then right."""
    best = tally.correct + tally.lost + tally.cut_off + tally.open
    if gate.rule == "point":
        return tally.correct / tally.total, best / tally.total
    return (
        wilson_low(tally.correct, tally.total, gate.confidence),
        wilson_high(best, tally.total, gate.confidence),
    )


class Running:
    """Watches the answers land and tells when the problems from the first on have decided."""

    def __init__(self, gate: Gsm8kGate, order: Sequence[str]) -> None:
        self.gate, self.order = gate, order
        self.tally = Tally(len(order))

    def decided(self, landed: Mapping[str, Line]) -> bool:
        """Whether the run may stop."""
        while self.tally.verdict(self.gate) is None:
            line = landed.get(self.order[self.tally.seen])
            if line is None:
                return False
            self.tally.add(line)
        return True


def over_limits(gate: Gsm8kGate, tally: Tally) -> list[Reason]:
    """Which of the two limits is passed."""
    found = []
    for code, count, limit in (
        ("lost-requests", tally.lost, gate.max_lost),
        ("cut-off-answers", tally.cut_off, gate.max_cut_off),
    ):
        if count > limit * tally.total:
            detail = f"{count} of {tally.total}, over the limit of {limit:.2%}"
            found.append(Reason(code=code, detail=detail))
    return found


def too_low(gate: Gsm8kGate, tally: Tally) -> Reason:
    """Why it fails."""
    high = bounds(gate, tally)[1]
    open_too = f", the {tally.open} open ones counted right" if tally.open else ""
    return Reason(
        code="accuracy-low",
        detail=f"{tally.correct} of {tally.seen} right{open_too}: at most {high:.4f}"
        f" at {gate.confidence:.0%} confidence, under {gate.min_accuracy}",
    )


def undecided(gate: Gsm8kGate, tally: Tally) -> Reason:
    """Why nothing can be said, and what would decide."""
    if tally.open:
        detail = f"{tally.seen} of {tally.total} problems were answered"
        return Reason(code="unfinished", detail=detail)
    low, high = bounds(gate, tally)
    words = f"accuracy lies between {low:.4f} and {high:.4f}, the threshold {gate.min_accuracy} too"
    needed = samples_to_decide(tally.correct / tally.total, gate.min_accuracy, gate.confidence)
    if needed is not None and needed <= tally.total:
        words += f": {tally.lost} lost and {tally.cut_off} cut-off answers keep it open"
        return Reason(code="undecided", detail=words)
    more = "no number of samples decides" if needed is None else f"{needed} samples would decide"
    words += f": at {tally.correct} of {tally.total} right, {more}. Where the data end before that,"
    words += " pair it with a baseline on the same problems (rule non-inferior)"
    return Reason(code="undecided", detail=words)
