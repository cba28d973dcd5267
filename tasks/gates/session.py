"""One measuring session: reach the server, ask what is not answered yet, record all of it."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.artifacts import Endpoint
from tasks.errors import BadInputError
from tasks.gates.problems import content_digest
from tasks.gates.records import Line, Records, last, uncounted
from tasks.gates.tokens import Tokens
from tasks.progress import Progress, silent
from tasks.serve.client import Client, StalledError, base_url, prompt_digest
from tasks.serve.dialects import Prompt, ServerFacts
from tasks.serve.engines import alive

READY_TIMEOUT = 60.0
"""Seconds that a stand-alone gate waits for a server to become ready."""

FOLLOWUPS = 2
"""Requests under way at once while prompts that depend on answers are asked."""

Stop = Callable[[Mapping[str, Line]], bool]
"""Given the answers so far by id: whether the outcome is decided."""

Followup = Callable[[Mapping[str, Line], ServerFacts], Sequence[Prompt]]
"""Given the answers so far and what the server says of itself: what to ask next."""


@dataclass(frozen=True)
class Plan:
    """What a gate wants asked. `inputs` are what a resume must have equal."""

    gate: str
    prompts: Sequence[Prompt]
    inputs: dict[str, Any]
    concurrency: int
    timeout: float
    ready_timeout: float = READY_TIMEOUT
    doomed: Callable[[], str | None] = lambda: None
    followups: Sequence[Followup] = ()
    """Prompts that depend on the answers so far; asked afterwards, `FOLLOWUPS` at a time."""
    wave: int | None = None
    """Prompts asked between two looks at the server's totals; None: all at once."""
    tokens: Tokens | None = None
    """Counts each request's tokens again, into its record."""
    public: dict[str, Any] = field(default_factory=dict)
    """More of the header, which a resume need not have equal."""


def measure(
    endpoint: Endpoint,
    plan: Plan,
    out: Path,
    stop: Stop,
    progress: Progress = silent,
) -> list[Line]:
    """Ask what `out` does not hold yet and give all its records.

    Never raises for what a server does: an unreachable, wrong or hung server is a record.

    Raises:
        BadInputError: malformed URL, or `out` holds records of other inputs.
    """
    base_url(endpoint.url)
    with Records(out, header(endpoint, plan)) as records:
        asyncio.run(_measure(endpoint, plan, records, stop, progress))
        return list(records.lines)


def started_here(endpoint: Endpoint) -> bool:
    """Whether this program started the engine, so that its port means nothing."""
    return bool(endpoint.command or endpoint.pidfile or endpoint.container)


def header(endpoint: Endpoint, plan: Plan) -> Line:
    """The first record. An engine that we started ourselves may come back on another port."""
    inputs = {
        "url": None if started_here(endpoint) else base_url(endpoint.url),
        "engine": endpoint.engine,
        "model": endpoint.model,
        **plan.inputs,
        "data": content_digest(
            [[p.id, p.messages, p.sampling.as_dict(), p.meta] for p in plan.prompts]
        ),
    }
    listed = [
        {"id": p.id, "sha256": prompt_digest(p.messages), "meta": p.meta} for p in plan.prompts
    ]
    return {"gate": plan.gate, "inputs": inputs, "prompts": listed, **plan.public}


async def _measure(
    endpoint: Endpoint, plan: Plan, records: Records, stop: Stop, progress: Progress
) -> None:
    if plan.wave is not None and (cut_short := uncounted(records.lines)):
        records.append({"record": "discard", "ids": cut_short})
    answered = records.answers
    number = 1 + sum(line["record"] == "session" for line in records.lines)
    open_prompts = [prompt for prompt in plan.prompts if prompt.id not in answered]
    started = datetime.now(UTC).isoformat(timespec="seconds")
    if number > 1 and (last(records.lines, "end") or stop(answered)):
        return
    async with Client(endpoint, concurrency=plan.concurrency, timeout=plan.timeout) as client:
        why = await client.wait_ready(plan.ready_timeout, lambda: plan.doomed() or _ended(endpoint))
        facts = await client.facts() if why is None else ServerFacts()
        _same_model(records, client.model)
        records.append(
            {
                "record": "session",
                "number": number,
                "started": started,
                "unreachable": why,
                "model": client.model or None,
                "facts": facts.as_dict(),
                "hardware": hardware(client.url, facts) if why is None else {},
                "totals": await client.totals() if why is None else None,
            }
        )
        if why is not None or _wrong_model(endpoint, facts):
            return
        await _ask(client, facts, plan, open_prompts, records, number, stop, progress)


async def _ask(
    client: Client,
    facts: ServerFacts,
    plan: Plan,
    prompts: Sequence[Prompt],
    records: Records,
    session: int,
    stop: Stop,
    progress: Progress,
) -> None:
    answered = records.answers
    asked = {prompt.id: prompt for prompt in [*plan.prompts, *prompts]}

    def land(record: Line) -> bool:
        record["session"] = session
        if plan.tokens is not None and record["status"] == "ok":
            record["own_tokens"] = plan.tokens.count(asked[record["id"]], record)
        records.append(record)
        answered[record["id"]] = record
        progress(len(answered) / len(asked), f"{len(answered)} answers of {len(asked)}")
        return stop(answered)

    wave = plan.wave or max(1, len(prompts))
    try:
        for start in range(0, len(prompts), wave):
            await client.ask_all(fit(prompts[start : start + wave], facts), land)
            totals = await client.totals()
            records.append({"record": "totals", "session": session, "totals": totals})
            if stop(answered):
                break
        client.concurrency = FOLLOWUPS
        for followup in plan.followups:
            more = [prompt for prompt in followup(answered, facts) if prompt.id not in answered]
            asked |= {prompt.id: prompt for prompt in more}
            await client.ask_all(fit(more, facts), land)
        ended = (await client.facts()).as_dict()
        records.append({"record": "end", "session": session, "facts": ended})
    except StalledError as error:
        records.append({"record": "hung", "session": session, "why": str(error)})


def fit(prompts: Sequence[Prompt], facts: ServerFacts) -> list[Prompt]:
    """Lower `max_tokens` where prompt and answer would not fit into the server's context.

    A server refuses such a request outright. A prompt is taken to have at most as many tokens as
    bytes (and 64 for the template), and never to need more than half of the context.
    """
    if facts.max_model_len is None:
        return list(prompts)
    fitted = []
    for prompt in prompts:
        size = 64 + sum(len(message["content"].encode()) for message in prompt.messages)
        room = facts.max_model_len - min(size, facts.max_model_len // 2)
        limit = max(1, min(prompt.sampling.max_tokens, room))
        fitted.append(replace(prompt, sampling=replace(prompt.sampling, max_tokens=limit)))
    return fitted


def _ended(endpoint: Endpoint) -> str | None:
    return None if alive(endpoint) else "the engine's process ended"


def _same_model(records: Records, model: str) -> None:
    for line in records.lines:
        if line["record"] == "session" and line["model"] and model and line["model"] != model:
            raise BadInputError(
                "resume-mismatch",
                f"{records.path}: was measured on model {line['model']}, served now: {model}.",
                "Give a new --out folder.",
            )


def _wrong_model(endpoint: Endpoint, facts: ServerFacts) -> bool:
    return bool(endpoint.model and facts.models and endpoint.model not in facts.models)


def hardware(url: str, facts: ServerFacts) -> dict[str, Any]:
    """What the server runs on: as it says, and this machine's parts when it is on loopback."""
    found: dict[str, Any] = {"device": facts.device_name or facts.device}
    if any(host in url for host in ("//127.", "//localhost", "//[::1]")):
        found |= {"machine": platform.machine(), "cpu": _cpu(), "gpus": _gpus()}
    return {name: value for name, value in found.items() if value}


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or None


def _gpus() -> list[str]:
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                found.append(line.partition(":")[2].strip())
    return found
