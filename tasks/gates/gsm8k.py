"""GSM8K: accuracy on grade-school math, judged by one-sided Wilson bounds.

In this order (docs/gates.md gives the reasons):

1. INVALID when lost or cut-off requests exceed their limits, or the answers are not to be trusted.
2. PASS when the lower bound reaches the threshold with every lost or cut-off problem counted wrong.
3. FAIL when the upper bound is under it with all of them counted right.
4. Else INVALID, with the number of samples that would decide.

The verdict is taken over the shortest run of problems, in the order of the data, that decides it;
so it does not depend on concurrency, nor on having been killed and resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.artifacts import Counts, Endpoint, GateReport, Interval, Reason, Verdict
from tasks.gates.answers import extract, grade
from tasks.gates.counters import pool
from tasks.gates.problems import Problem, gsm8k_problems
from tasks.gates.records import Line, answers, read_records, write_report
from tasks.gates.reporting import blockers, common, speed
from tasks.gates.sampling import draw
from tasks.gates.session import READY_TIMEOUT, Plan, measure
from tasks.gates.statistics import samples_to_decide, wilson_high, wilson_low
from tasks.gates.trust import doubts, outcome
from tasks.progress import Progress, silent
from tasks.serve.dialects import Prompt
from tasks.spec import Gsm8kGate


def run_gsm8k(
    endpoint: Endpoint,
    gate: Gsm8kGate,
    out: Path,
    checkpoint: Path | None = None,
    progress: Progress = silent,
    *,
    ready_timeout: float = READY_TIMEOUT,
) -> GateReport:
    """Ask the problems, record the answers in `out/records.jsonl`, judge, write `out/report.json`.

    Args:
        endpoint: the server; nothing but its URL and dialect is used.
        gate: data, limits, threshold and sampling.
        out: folder of the gate; records of the same inputs in it are continued.
        checkpoint: folder whose generation config gives the sampling that the gate leaves open.
        ready_timeout: seconds to wait for the server.

    Raises:
        BadInputError: malformed URL, unreadable data, or `out` holds records of other inputs.
    """
    problems = gsm8k_problems(gate.data, gate.limit, out / "data")
    plan = Plan(
        gate="gsm8k",
        prompts=prompts(problems, gate, checkpoint),
        inputs={"options": options(gate)},
        concurrency=gate.concurrency,
        timeout=gate.timeout,
        ready_timeout=ready_timeout,
        public={"sampling": draw(gate, checkpoint).as_dict()},
    )
    running = Running(gate, [problem.id for problem in problems])
    lines = measure(endpoint, plan, out, running.decided, progress)
    return write_report(out, judge(lines))


def options(gate: Gsm8kGate) -> dict[str, Any]:
    """The gate's options that a resume must have equal; where data lies is not one, its text is."""
    return gate.model_dump(mode="json", exclude={"data", "limit", "concurrency", "timeout"})


def prompts(problems: Sequence[Problem], gate: Gsm8kGate, checkpoint: Path | None) -> list[Prompt]:
    """Zero-shot chats: one user message each, the sampling seed counted up."""
    asked, sampling = [], draw(gate, checkpoint)
    for place, problem in enumerate(problems):
        content = gate.prompt.format(question=problem.question)
        asked.append(
            Prompt(
                id=problem.id,
                messages=({"role": "user", "content": content},),
                sampling=replace(sampling, seed=gate.seed + place),
                meta={"gold": problem.gold},
            )
        )
    return asked


@dataclass
class Tally:
    """Counts over a run of problems of which `total - seen` are still open."""

    total: int
    correct: int = 0
    lost: int = 0
    cut_off: int = 0
    seen: int = 0

    def add(self, line: Line) -> None:
        """Count one answer."""
        kind = outcome(line)
        self.seen += 1
        self.lost += kind == "lost"
        self.cut_off += kind == "cut_off"
        self.correct += kind == "ok" and score(line)["correct"]

    def verdict(self, gate: Gsm8kGate) -> Verdict | None:
        """The verdict that no open problem can change; None while there is none."""
        still = self.total - self.seen
        limits = gate.max_lost * self.total, gate.max_cut_off * self.total
        if self.lost > limits[0] or self.cut_off > limits[1]:
            return Verdict.INVALID
        low, high = bounds(gate, self, still)
        safe = self.lost + still <= limits[0] and self.cut_off + still <= limits[1]
        if low >= gate.min_accuracy and (safe or still == 0):
            return Verdict.PASS
        if high < gate.min_accuracy:
            return Verdict.FAIL
        return Verdict.INVALID if still == 0 else None


def bounds(gate: Gsm8kGate, tally: Tally, still: int = 0) -> tuple[float, float]:
    """(accuracy at least, accuracy at most): all that is not known wrong, then all right."""
    best = tally.correct + tally.lost + tally.cut_off + still
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


def score(line: Line) -> dict[str, Any]:
    """What a whole answer says and whether it is right: {answer, rule, correct}."""
    found = extract(line["text"])
    right = found.rule != "none" and grade(found.answer, line["meta"]["gold"])
    return {"answer": found.answer, "rule": found.rule, "correct": right}


def recompute(records: Path) -> GateReport:
    """The report that a records file gives, from nothing else."""
    return judge(read_records(records))


def judge(lines: Sequence[Line]) -> GateReport:
    """Judge the records of a run (see the module's rules)."""
    gate = Gsm8kGate(**lines[0]["inputs"]["options"])
    order = [prompt["id"] for prompt in lines[0]["prompts"]]
    landed = answers(lines)
    running = Running(gate, order)
    running.decided(landed)
    tally = running.tally
    used = [landed[name] for name in order[: tally.seen]]
    verdict, reasons = _verdict(gate, tally, used, lines)
    low, high = bounds(gate, tally, tally.total - tally.seen)
    return GateReport(
        gate="gsm8k",
        verdict=verdict,
        reasons=tuple(reasons),
        measured=_measured(gate, tally, used, lines),
        threshold={
            "min_accuracy": gate.min_accuracy,
            "rule": gate.rule,
            "max_lost": gate.max_lost,
            "max_cut_off": gate.max_cut_off,
        },
        interval=Interval(
            low=low,
            high=high,
            confidence=gate.confidence,
            method="point" if gate.rule == "point" else "wilson-one-sided",
        ),
        counts=Counts(
            asked=tally.seen,
            scored=tally.seen - tally.lost - tally.cut_off,
            correct=tally.correct,
            lost=tally.lost,
            cut_off=tally.cut_off,
        ),
        **common(lines, used),
    )


def _verdict(
    gate: Gsm8kGate, tally: Tally, used: Sequence[Line], lines: Sequence[Line]
) -> tuple[Verdict, list[Reason]]:
    blocked = blockers(lines)
    limits = _limits(gate, tally)
    if limits or (blocked and tally.verdict(gate) is None):
        return Verdict.INVALID, [*limits, *blocked]
    session = next((line for line in lines if line["record"] == "session"), {})
    steps = (session.get("facts") or {}).get("num_steps")
    distrust = doubts(used, session.get("model"), steps, gate.max_tokens)
    if blocked or distrust:
        return Verdict.INVALID, [*blocked, *distrust]
    verdict = tally.verdict(gate)
    if verdict is Verdict.PASS:
        return verdict, []
    if verdict is Verdict.FAIL:
        return verdict, [_failed(gate, tally)]
    return Verdict.INVALID, [_undecided(gate, tally)]


def _limits(gate: Gsm8kGate, tally: Tally) -> list[Reason]:
    found = []
    for code, count, limit in (
        ("lost-requests", tally.lost, gate.max_lost),
        ("cut-off-answers", tally.cut_off, gate.max_cut_off),
    ):
        if count > limit * tally.total:
            detail = f"{count} of {tally.total}, over the limit of {limit:.2%}"
            found.append(Reason(code=code, detail=detail))
    return found


def _failed(gate: Gsm8kGate, tally: Tally) -> Reason:
    _, high = bounds(gate, tally, tally.total - tally.seen)
    still = tally.total - tally.seen
    open_too = f", {still} open ones counted right" if still else ""
    return Reason(
        code="accuracy-low",
        detail=f"{tally.correct} of {tally.seen} right{open_too}: at most {high:.4f}"
        f" at {gate.confidence:.0%} confidence, under {gate.min_accuracy}",
    )


def _undecided(gate: Gsm8kGate, tally: Tally) -> Reason:
    if tally.seen < tally.total:
        detail = f"{tally.seen} of {tally.total} problems were answered"
        return Reason(code="unfinished", detail=detail)
    low, high = bounds(gate, tally)
    words = f"accuracy lies between {low:.4f} and {high:.4f}; the threshold {gate.min_accuracy}"
    share = tally.correct / tally.total
    needed = samples_to_decide(share, gate.min_accuracy, gate.confidence)
    if needed is None or needed > tally.total:
        more = "no number of samples decides" if needed is None else f"{needed} samples decide"
        words += f" lies between; at {share:.4f} right {more}, {tally.total} were asked. Where the"
        words += " data end before, compare with a baseline on the same problems: the paired"
        words += " non-inferiority test (rule non-inferior, with baseline)"
    else:
        words += f" lies between because {tally.lost} were lost and {tally.cut_off} cut off"
    return Reason(code="undecided", detail=words)


def _measured(
    gate: Gsm8kGate, tally: Tally, used: Sequence[Line], lines: Sequence[Line]
) -> dict[str, Any]:
    scored = [score(line) for line in used if outcome(line) == "ok"]
    rules = dict.fromkeys(("boxed", "hashes", "last-number", "none"), 0)
    for one in scored:
        rules[one["rule"]] += 1
    known = tally.seen - tally.lost - tally.cut_off
    pooled = pool(used, 0)
    measured: dict[str, Any] = {
        "accuracy": tally.correct / tally.seen if tally.seen else None,
        "accuracy_of_scored": tally.correct / known if known else None,
        "problems": tally.total,
        "extraction_rules": rules,
        "reasoning_apart": sum(bool(line.get("reasoning")) for line in used),
        "sampling": lines[0].get("sampling"),
        **speed(used),
    }
    if pooled.verifications:
        measured["accept_length"] = pooled.accept_length
    return {name: value for name, value in measured.items() if value is not None}
