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

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.artifacts import Counts, Endpoint, GateReport, Interval, Reason, Verdict
from tasks.gates.accuracy import Running, Tally, bounds, over_limits, score, too_low, undecided
from tasks.gates.counters import pool
from tasks.gates.paired import baseline_record, check_baseline, pair
from tasks.gates.problems import Problem, gsm8k_problems
from tasks.gates.records import Line, Records, answers, last, read_records, write_report
from tasks.gates.reporting import blockers, common, speed
from tasks.gates.sampling import draw
from tasks.gates.session import READY_TIMEOUT, Plan, header, measure
from tasks.gates.tokens import Tokens, other_prompts, other_texts
from tasks.gates.totals import changed
from tasks.gates.trust import doubts, outcome
from tasks.progress import Progress, silent
from tasks.serve.client import prompt_digest
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
        BadInputError: malformed URL, unreadable data or baseline, or `out` holds records of other
            inputs.
    """
    check_baseline(gate.baseline)
    problems = gsm8k_problems(gate.data, gate.limit, out / "data")
    plan = Plan(
        gate="gsm8k",
        prompts=prompts(problems, gate, checkpoint),
        inputs={"options": options(gate)},
        concurrency=gate.concurrency,
        timeout=gate.timeout,
        ready_timeout=ready_timeout,
        tokens=Tokens.open(checkpoint),
        public={"sampling": draw(gate, checkpoint).as_dict()},
    )
    running = Running(gate, [problem.id for problem in problems])
    lines = measure(endpoint, plan, out, running.decided, progress)
    if gate.baseline is not None and last(lines, "baseline") is None:
        lines = _pair_with_baseline(endpoint, gate, plan, out, progress)
    return write_report(out, judge(lines))


def options(gate: Gsm8kGate) -> dict[str, Any]:
    """The gate's options that a resume must have equal; where data lies is not one, its text is."""
    return gate.model_dump(mode="json", exclude={"data", "limit", "concurrency", "timeout"})


def prompts(problems: Sequence[Problem], gate: Gsm8kGate, checkpoint: Path | None) -> list[Prompt]:
    """Zero-shot chats: one user message each, the sampling seed counted up."""
    sampling = draw(gate, checkpoint)
    return [
        Prompt(
            id=problem.id,
            messages=({"role": "user", "content": gate.prompt.format(question=problem.question)},),
            sampling=replace(sampling, seed=gate.seed + place),
            meta={"gold": problem.gold},
        )
        for place, problem in enumerate(problems)
    ]


def _pair_with_baseline(
    endpoint: Endpoint, gate: Gsm8kGate, plan: Plan, out: Path, progress: Progress
) -> list[Line]:
    def ask(url: str, folder: Path) -> None:
        other = Endpoint(url=url, engine=endpoint.engine)
        measure(other, replace(plan, gate="gsm8k-baseline"), folder, lambda _: False, progress)

    digests = {prompt.id: prompt_digest(prompt.messages) for prompt in plan.prompts}
    record = baseline_record(gate, digests, out, ask)
    with Records(out, header(endpoint, plan)) as records:
        if record is not None:
            records.append(record)
        return list(records.lines)


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
    low, high = bounds(gate, tally)
    method = "point" if gate.rule == "point" else "wilson-one-sided"
    interval = Interval(low=low, high=high, confidence=gate.confidence, method=method)
    verdict, reasons = _verdict(gate, tally, used, lines)
    measured = _measured(tally, used, lines)
    baseline = last(lines, "baseline")
    if baseline is not None and used:
        paired, difference, decided, reason = pair(gate, used, baseline)
        measured["paired"] = paired
        if gate.rule == "non-inferior" and [r.code for r in reasons] == ["paired"]:
            verdict, reasons, interval = decided, [reason], difference
    return GateReport(
        gate="gsm8k",
        verdict=verdict,
        reasons=tuple(reasons),
        measured=measured,
        threshold={
            "min_accuracy": gate.min_accuracy,
            "rule": gate.rule,
            "max_lost": gate.max_lost,
            "max_cut_off": gate.max_cut_off,
        },
        interval=interval,
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
    verdict = tally.verdict(gate)
    session = last(lines, "session") or {}
    steps = (session.get("facts") or {}).get("num_steps")
    against = [
        *over_limits(gate, tally),
        *blockers(lines),
        *doubts(used, session.get("model"), steps, gate.max_tokens),
        *other_prompts(used),
        *other_texts(used),
        *changed(lines),
    ]
    if against:
        return Verdict.INVALID, against
    if verdict is Verdict.PASS:
        return verdict, []
    if verdict is Verdict.FAIL:
        return verdict, [too_low(gate, tally)]
    if gate.rule == "non-inferior" and not tally.open:
        return Verdict.INVALID, [Reason(code="paired", detail="judged against the baseline")]
    return Verdict.INVALID, [undecided(gate, tally)]


def _measured(tally: Tally, used: Sequence[Line], lines: Sequence[Line]) -> dict[str, Any]:
    whole = [score(line)[0].rule for line in used if outcome(line) == "ok"]
    rules = {rule: whole.count(rule) for rule in ("boxed", "hashes", "last-number", "none")}
    pooled = pool(used, 0)
    measured: dict[str, Any] = {
        "accuracy": tally.correct / tally.seen if tally.seen else None,
        "accuracy_of_scored": tally.correct / len(whole) if whole else None,
        "problems": tally.total,
        "extraction_rules": rules,
        "reasoning_apart": sum(bool(line.get("reasoning")) for line in used),
        "sampling": lines[0].get("sampling"),
        **speed(used),
    }
    if pooled.verifications:
        measured["accept_length"] = pooled.accept_length
    return {name: value for name, value in measured.items() if value is not None}
