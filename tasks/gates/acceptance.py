"""Acceptance: the mean accept length under load, 1 + accepted drafts / verifications.

In this order (docs/gates.md gives the reasons):

1. INVALID when the server is not reached, speculation is off or another than asked, counters are
   missing or contradict themselves, requests are lost, or there are too few of either.
2. FAIL when all verifications accept the same number of drafts, or nearly none.
3. PASS when the bootstrap interval over requests lies inside the bounds, FAIL when it lies wholly
   under the lower or wholly over the upper one (a ceiling), else INVALID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.artifacts import Counts, Endpoint, GateReport, Interval, Reason, Verdict
from tasks.gates.counters import Pooled, counted, pool, too_even
from tasks.gates.problems import Writing, writings
from tasks.gates.records import Line, Records, answers, last, read_records, write_report
from tasks.gates.reporting import blockers, common, speed
from tasks.gates.session import READY_TIMEOUT, Plan, measure
from tasks.gates.statistics import bootstrap_accept_length
from tasks.gates.totals import changed, disagreement, waves
from tasks.gates.trust import doubts, outcome
from tasks.progress import Progress, silent
from tasks.serve.dialects import Prompt, Sampling
from tasks.spec import AcceptanceGate, SpeculationSpec

MAX_LOST = 0.01
"""Share of lost requests over which it is INVALID."""
ONE_BIN = 0.98
"""Share of verifications in one bin of the histogram from which all mass counts as in one bin."""
NEAR_ONE = 1.1
"""Accept length under which drafts count as not accepted at all."""


def run_acceptance(
    endpoint: Endpoint,
    gate: AcceptanceGate,
    speculation: SpeculationSpec,
    out: Path,
    progress: Progress = silent,
    *,
    ready_timeout: float = READY_TIMEOUT,
    feed: Path | None = None,
) -> GateReport:
    """Ask the prompts, record answers and counters in `out/records.jsonl`, judge, report.

    Args:
        endpoint: the server.
        gate: bounds, prompts, load and minimum numbers.
        speculation: what the server was asked to do; `draft_tokens` is the accept length's ceiling.
        out: folder of the gate; records of the same inputs in it are continued.
        ready_timeout: seconds to wait for the server.
        feed: records of a GSM8K run on the same server; its answers are judged, none are asked.

    Raises:
        BadInputError: malformed URL, unreadable prompts, or `out` holds records of other inputs.
    """
    inputs = {
        "options": gate.model_dump(mode="json", exclude={"prompts", "concurrency", "timeout"}),
        "speculation": speculation.model_dump(mode="json"),
    }
    if feed is not None:
        return write_report(out, judge(_fed(feed, inputs, out)))
    plan = Plan(
        gate="acceptance",
        prompts=prompts(writings(gate.prompts), gate),
        inputs=inputs,
        concurrency=gate.concurrency,
        timeout=gate.timeout,
        ready_timeout=ready_timeout,
        wave=gate.concurrency if endpoint.engine == "vllm" else None,
    )
    lines = measure(endpoint, plan, out, lambda _: False, progress)
    return write_report(out, judge(lines))


def prompts(rows: Sequence[Writing], gate: AcceptanceGate) -> list[Prompt]:
    """One greedy user message each, kinds interleaved as they stand."""
    sampling = Sampling(max_tokens=gate.max_tokens, temperature=0.0)
    return [
        Prompt(
            id=row.id,
            messages=({"role": "user", "content": row.prompt},),
            sampling=sampling,
            meta={"kind": row.kind},
        )
        for row in rows
    ]


def _fed(feed: Path, inputs: Mapping[str, Any], out: Path) -> list[Line]:
    """Take over the sessions and answers of another gate's records."""
    given = read_records(feed)
    head = given[0]
    own = {k: v for k, v in head["inputs"].items() if k not in ("options", "speculation")}
    header = {
        "gate": "acceptance",
        "inputs": {**own, **inputs, "fed_by": head["gate"]},
        "prompts": head["prompts"],
    }
    with Records(out, header) as records:
        if len(records.lines) == 1:
            for line in given[1:]:
                records.append(line)
        return list(records.lines)


def recompute(records: Path) -> GateReport:
    """The report that a records file gives, from nothing else."""
    return judge(read_records(records))


def judge(lines: Sequence[Line]) -> GateReport:
    """Judge the records of a run (see the module's rules)."""
    inputs = lines[0]["inputs"]
    gate = AcceptanceGate(**inputs["options"])
    speculation = SpeculationSpec(**inputs["speculation"])
    landed = answers(lines)
    order = [prompt["id"] for prompt in lines[0]["prompts"]]
    used = [landed[name] for name in order if name in landed]
    pooled, units = _pooled(lines, used, speculation)
    interval = _interval(gate, units)
    low, high = limits(gate, speculation)
    verdict, reasons = _verdict(gate, speculation, lines, used, pooled, interval)
    lost = sum(outcome(line) == "lost" for line in used)
    cut = sum(outcome(line) == "cut_off" for line in used)
    return GateReport(
        gate="acceptance",
        verdict=verdict,
        reasons=tuple(reasons),
        measured=_measured(lines, used, pooled),
        threshold={
            "min_accept": low,
            "max_accept": high,
            "min_requests": gate.min_requests,
            "min_verifications": gate.min_verifications,
        },
        interval=interval,
        counts=Counts(asked=len(used), scored=pooled.requests, correct=0, lost=lost, cut_off=cut),
        **common(lines, used),
    )


def limits(gate: AcceptanceGate, speculation: SpeculationSpec) -> tuple[float | None, float]:
    """(lowest, highest) accept length that passes; the highest is 0.99 x draft tokens if unset."""
    ceiling = 0.99 * speculation.draft_tokens
    return gate.min_accept, ceiling if gate.max_accept is None else gate.max_accept


def steps_of(speculation: SpeculationSpec) -> int:
    """Draft tokens that one verification can accept: along one branch, all but the verified one."""
    return speculation.draft_tokens - 1 if speculation.topk == 1 else speculation.num_steps


def _pooled(
    lines: Sequence[Line], used: Sequence[Line], speculation: SpeculationSpec
) -> tuple[Pooled, tuple[list[int], list[int]]]:
    """Pooled counters, and (correct, verifications) of each unit that the bootstrap draws."""
    steps = steps_of(speculation)
    if lines[0]["inputs"]["engine"] == "vllm":
        blocks = waves(lines, steps)
        bins = [sum(column) for column in zip(*(b.histogram for b in blocks), strict=True)]
        whole = Pooled(
            requests=sum(line["status"] == "ok" for line in used) if blocks else 0,
            verifications=sum(b.verifications for b in blocks),
            correct=sum(b.correct for b in blocks),
            histogram=tuple(bins),
        )
        return whole, ([b.correct for b in blocks], [b.verifications for b in blocks])
    whole_lines = counted(line for line in used if outcome(line) != "lost")
    correct = [line["speculation"]["correct"] for line in whole_lines]
    verified = [line["speculation"]["verify_ct"] for line in whole_lines]
    return pool(whole_lines, steps), (correct, verified)


def _interval(gate: AcceptanceGate, units: tuple[list[int], list[int]]) -> Interval | None:
    correct, verified = units
    if not verified:
        return None
    low, high = bootstrap_accept_length(correct, verified, gate.confidence)
    return Interval(
        low=low, high=high, confidence=gate.confidence, method="bootstrap-over-requests"
    )


def _verdict(
    gate: AcceptanceGate,
    speculation: SpeculationSpec,
    lines: Sequence[Line],
    used: Sequence[Line],
    pooled: Pooled,
    interval: Interval | None,
) -> tuple[Verdict, list[Reason]]:
    invalid = [
        *blockers(lines),
        *_speculation(speculation, lines, used, pooled),
        *_numbers(gate, lines, used, pooled),
        *doubts(used, _session(lines).get("model"), steps_of(speculation), gate.max_tokens),
        *disagreement(lines, used),
        *changed(lines),
        *_even(used, steps_of(speculation)),
    ]
    if invalid or interval is None:
        return Verdict.INVALID, invalid
    failed = [*_one_bin(pooled), *_bounds(gate, speculation, interval)]
    if failed:
        return Verdict.FAIL, failed
    low, high = limits(gate, speculation)
    if (low is None or interval.low >= low) and interval.high <= high:
        return Verdict.PASS, []
    detail = (
        f"the interval {interval.low:.4f} to {interval.high:.4f} crosses a bound"
        f" ({low if low is not None else 'none'} to {high:g}); more requests narrow it"
    )
    return Verdict.INVALID, [Reason(code="undecided", detail=detail)]


def _session(lines: Sequence[Line]) -> Line:
    return last(lines, "session") or {}


def _speculation(
    speculation: SpeculationSpec, lines: Sequence[Line], used: Sequence[Line], pooled: Pooled
) -> list[Reason]:
    facts = _session(lines).get("facts") or {}
    found = []
    if used and pooled.verifications == 0:
        off = "the server reports no speculation" if facts.get("algorithm") is None else "none sent"
        found.append(Reason(code="no-counters", detail=f"no speculation counters: {off}"))
    elif used and facts.get("device") and facts.get("algorithm") is None:
        detail = "counters came, but the server reports no speculation"
        found.append(Reason(code="other-speculation", detail=detail))
    for name, asked in (
        ("draft_tokens", speculation.draft_tokens),
        ("num_steps", steps_of(speculation)),
    ):
        served = facts.get(name)
        if served is not None and served != asked:
            detail = f"{name} is {served} on the server, asked {asked}"
            found.append(Reason(code="other-speculation", detail=detail))
    return found


def _even(used: Sequence[Line], steps: int) -> list[Reason]:
    scatter = too_even(used, steps)
    if scatter is None:
        return []
    detail = f"requests scatter {scatter:.2f} times as much as chance does: made up, not counted"
    return [Reason(code="counters-too-even", detail=detail)]


def _numbers(
    gate: AcceptanceGate, lines: Sequence[Line], used: Sequence[Line], pooled: Pooled
) -> list[Reason]:
    found = []
    lost = sum(outcome(line) == "lost" for line in used)
    whole = len(used) - lost
    if lost > MAX_LOST * max(1, len(lines[0]["prompts"])):
        detail = f"{lost} of {len(used)}, over the limit of {MAX_LOST:.0%}"
        found.append(Reason(code="lost-requests", detail=detail))
    if 0 < pooled.requests < (1 - MAX_LOST) * whole:
        detail = f"{whole - pooled.requests} of {whole} answers have no counters"
        found.append(Reason(code="counters-missing", detail=detail))
    if pooled.requests < gate.min_requests:
        detail = f"{pooled.requests} measured, {gate.min_requests} needed"
        found.append(Reason(code="too-few-requests", detail=detail))
    if pooled.verifications < gate.min_verifications:
        detail = f"{pooled.verifications} measured, {gate.min_verifications} needed"
        found.append(Reason(code="too-few-verifications", detail=detail))
    return found


def _one_bin(pooled: Pooled) -> list[Reason]:
    total = sum(pooled.histogram)
    if total == 0 or max(pooled.histogram) < ONE_BIN * total:
        return []
    accepted = pooled.histogram.index(max(pooled.histogram))
    share = pooled.histogram[accepted] / total
    detail = f"{share:.2%} of verifications accept exactly {accepted} drafts. {CAUSES}"
    return [Reason(code="one-bin", detail=detail)]


CAUSES = (
    "Near 1 the draft weights were dropped or broken at load; at the ceiling draft and target"
    " read the same garbage. A healthy head scatters"
)


def _bounds(gate: AcceptanceGate, speculation: SpeculationSpec, interval: Interval) -> list[Reason]:
    low, high = limits(gate, speculation)
    span = f"{interval.low:.4f} to {interval.high:.4f}"
    found = []
    if interval.high < NEAR_ONE:
        found.append(Reason(code="accept-near-one", detail=f"{span}: no draft counts. {CAUSES}"))
    if low is not None and interval.high < low:
        found.append(Reason(code="accept-low", detail=f"{span} lies under {low:g}"))
    if interval.low > high:
        detail = f"{span} lies over {high:g} of {speculation.draft_tokens}. {CAUSES}"
        found.append(Reason(code="accept-ceiling", detail=detail))
    return found


def _measured(lines: Sequence[Line], used: Sequence[Line], pooled: Pooled) -> dict[str, Any]:
    ended = last(lines, "end")
    average = ((ended or {}).get("facts") or {}).get("average_accept_length")
    measured: dict[str, Any] = {"prompts": len(lines[0]["prompts"]), **speed(used)}
    if pooled.verifications:
        measured |= {
            "accept_length": pooled.accept_length,
            "verifications": pooled.verifications,
            "accepted_drafts": pooled.correct,
            "histogram": list(pooled.histogram),
            "position_rates": [round(rate, 6) for rate in pooled.position_rates],
            "by_kind": _by_kind(used, len(pooled.histogram) - 1),
        }
    if average is not None:
        measured["server_average_not_judged"] = average
    return measured


def _by_kind(used: Sequence[Line], steps: int) -> dict[str, float]:
    kinds = sorted({line["meta"].get("kind", "prompt") for line in used})
    by_kind = {}
    for kind in kinds:
        part = pool((x for x in used if x["meta"].get("kind", "prompt") == kind), steps)
        if part.verifications:
            by_kind[kind] = part.accept_length
    return by_kind


def units_of(lines: Sequence[Line]) -> tuple[list[int], list[int]]:
    """(correct drafts, verifications) of each unit that the bootstrap draws, from the records."""
    speculation = SpeculationSpec(**lines[0]["inputs"]["speculation"])
    landed = answers(lines)
    return _pooled(lines, list(landed.values()), speculation)[1]
