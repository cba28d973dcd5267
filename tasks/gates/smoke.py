"""Smoke: does it load, speak, stop and speculate?

Reaches ready while the load log is watched; scans the log; compares what was loaded with the
checkpoint; asks questions with known answers, the same greedy prompts twice, a system prompt and a
second turn, and long conversations. docs/gates.md lists every check with its code; they are judged
in smoke_checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tasks.artifacts import Endpoint, GateReport
from tasks.gates.loaded import expected
from tasks.gates.loadlog import doom, read_log
from tasks.gates.problems import Problem, known_answers
from tasks.gates.records import Line, Records, read_records, write_report
from tasks.gates.session import Followup, Plan, header, measure
from tasks.gates.smoke_checks import judge
from tasks.gates.tokens import Tokens
from tasks.progress import Progress, silent
from tasks.serve.dialects import Prompt, Sampling, ServerFacts
from tasks.spec import ServeSpec, SmokeGate

TWICE = 2
"""Questions that are asked twice more, under equal load, to see whether greedy text is stable."""
TWICE_TOKENS = 64
"""Tokens of those answers: on a GPU longer greedy texts part by rounding alone."""
LONG = 2
"""Long conversations that are asked."""
LONG_TOKENS = 8000
"""Tokens of a long conversation, at most; a third of the context where that is less."""
UNKNOWN_CONTEXT = 1024
"""Tokens of a long conversation where the server does not say how much it takes."""


def run_smoke(
    endpoint: Endpoint,
    gate: SmokeGate,
    serve: ServeSpec,
    out: Path,
    checkpoint: Path | None = None,
    progress: Progress = silent,
    *,
    ready_timeout: float | None = None,
) -> GateReport:
    """Measure, record in `out/records.jsonl`, judge, write `out/report.json`.

    Args:
        endpoint: the server, and the log that its load writes.
        gate: known answers and limits.
        serve: what the server was asked to do (speculation, seconds until ready).
        out: folder of the gate; records of the same inputs in it are continued.
        checkpoint: folder that is served; without it loaded scales are not compared.
        ready_timeout: seconds to wait; unset: the spec's.

    Raises:
        BadInputError: malformed URL, unreadable prompts, or `out` holds records of other inputs.
    """
    problems = known_answers(gate.prompts)
    plan = Plan(
        gate="smoke",
        prompts=first_prompts(problems, gate),
        inputs={
            "options": gate.model_dump(mode="json", exclude={"prompts"}),
            "speculation": serve.speculation.model_dump(mode="json"),
            "expected": asdict(expected(checkpoint)) if checkpoint else None,
        },
        concurrency=8,
        timeout=300.0,
        ready_timeout=serve.ready_timeout if ready_timeout is None else ready_timeout,
        tokens=Tokens.open(checkpoint),
        doomed=lambda: doom(endpoint.log),
        followups=(
            once_more(problems, gate, "again"),
            once_more(problems, gate, "more"),
            template(problems, gate),
            long(problems, gate),
        ),
    )
    measure(endpoint, plan, out, lambda _: False, progress)
    with Records(out, header(endpoint, plan)) as records:
        log = read_log(endpoint.log)
        records.append({"record": "log", "log": log.as_dict() if log else None})
        lines = list(records.lines)
    return write_report(out, judge(lines))


def first_prompts(problems: Sequence[Problem], gate: SmokeGate) -> list[Prompt]:
    """The questions with known answers, greedy."""
    sampling = Sampling(max_tokens=gate.max_tokens, temperature=0.0)
    return [
        Prompt(
            f"known-{problem.id}",
            ({"role": "user", "content": problem.question},),
            sampling,
            {"gold": problem.gold},
        )
        for problem in problems
    ]


def once_more(problems: Sequence[Problem], gate: SmokeGate, go: str) -> Followup:
    """The first questions once more, under the ids `known-ID-GO`."""

    def build(_: Mapping[str, Line], __: ServerFacts) -> list[Prompt]:
        short = gate.model_copy(update={"max_tokens": min(TWICE_TOKENS, gate.max_tokens)})
        first = first_prompts(problems[:TWICE], short)
        return [replace(p, id=f"{p.id}-{go}", meta={**p.meta, "twice": p.id}) for p in first]

    return build


def template(problems: Sequence[Problem], gate: SmokeGate) -> Followup:
    """One question under a system prompt, and one as a second turn."""

    def build(landed: Mapping[str, Line], _: ServerFacts) -> list[Prompt]:
        first = problems[0]
        base = first_prompts([first], gate)[0]
        said = (landed.get(base.id) or {}).get("text") or first.gold
        system = {"role": "system", "content": "You are a careful calculator. Answer in English."}
        turn = (
            *base.messages,
            {"role": "assistant", "content": said},
            {"role": "user", "content": problems[-1].question},
        )
        return [
            replace(base, id="template-system", messages=(system, *base.messages)),
            replace(base, id="template-turns", messages=turn, meta={"gold": problems[-1].gold}),
        ]

    return build


def long(problems: Sequence[Problem], gate: SmokeGate) -> Followup:
    """Long conversations: questions and the server's own answers, over and over, then a question.

    Their length in tokens comes from what the server billed for the short prompts.
    """

    def build(landed: Mapping[str, Line], facts: ServerFacts) -> list[Prompt]:
        target = min(LONG_TOKENS, (facts.max_model_len or 3 * UNKNOWN_CONTEXT) // 3)
        return [_conversation(problems, landed, place, target, gate) for place in range(LONG)]

    return build


def _conversation(
    problems: Sequence[Problem],
    landed: Mapping[str, Line],
    place: int,
    target: int,
    gate: SmokeGate,
) -> Prompt:
    asked = problems[place % len(problems)]
    turns: list[dict[str, str]] = []
    size, step, density = 0.0, place, tokens_per_character(problems, landed)
    while True:
        step += 1
        problem = problems[step % len(problems)]
        line = landed.get(f"known-{problem.id}") or {}
        said = line.get("text") or f"#### {problem.gold}"
        size += density * (len(problem.question) + len(said))
        if size > target or step > 4000:
            break
        turns += [
            {"role": "user", "content": problem.question},
            {"role": "assistant", "content": said},
        ]
    turns.append({"role": "user", "content": asked.question})
    sampling = Sampling(max_tokens=gate.max_tokens, temperature=0.0)
    meta = {"gold": asked.gold, "target_tokens": target}
    return Prompt(f"long-{place + 1}", tuple(turns), sampling, meta)


def tokens_per_character(problems: Sequence[Problem], landed: Mapping[str, Line]) -> float:
    """Billed prompt tokens a character of the questions, the template's own tokens included."""
    pairs = [
        (line["prompt_tokens"], len(problem.question))
        for problem in problems
        if (line := landed.get(f"known-{problem.id}")) and line.get("prompt_tokens")
    ]
    return sum(t for t, _ in pairs) / sum(n for _, n in pairs) if pairs else 0.5


def recompute(records: Path) -> GateReport:
    """The report that a records file gives, from nothing else."""
    return judge(read_records(records))
