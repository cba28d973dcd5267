"""`quantgate gate smoke|gsm8k|acceptance`: one gate on a server that already runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import typer
from pydantic import BaseModel, ValidationError

from flows.bars import bars
from flows.console import EXIT_CODES, Outcome, command, table
from tasks.artifacts import Endpoint, GateReport
from tasks.errors import BadInputError
from tasks.progress import Progress
from tasks.spec import AcceptanceGate, Gsm8kGate, ServeSpec, SmokeGate, SpeculationSpec

EngineName = Literal["sglang", "vllm", "reference"]
Url = Annotated[str, typer.Option(help="Base URL of the server.")]
EngineOption = Annotated[EngineName, typer.Option(help="Dialect the server speaks.")]
Model = Annotated[str | None, typer.Option(help="Served model name; unset: ask the server.")]
Log = Annotated[Path | None, typer.Option(help="The server's load log.")]
CheckpointDir = Annotated[Path | None, typer.Option(help="The checkpoint that is served.")]
Out = Annotated[Path | None, typer.Option(help="New folder for report and records.")]
Resume = Annotated[Path | None, typer.Option(help="Continue the measurement in this folder.")]
Concurrency = Annotated[int, typer.Option(help="Requests under way at once.")]
Timeout = Annotated[float, typer.Option(help="Seconds a request, at most.")]

Part = TypeVar("Part", bound=BaseModel)
Measure = Callable[[Endpoint, Path, Progress], GateReport]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "smoke")(smoke_command)
    command(app, "gsm8k")(gsm8k_command)
    command(app, "acceptance")(acceptance_command)


def smoke_command(
    url: Url,
    engine: EngineOption = "sglang",
    model: Model = None,
    log: Log = None,
    checkpoint: CheckpointDir = None,
    prompts: Annotated[Path | None, typer.Option(help="Known-answer JSONL.")] = None,
    min_known: Annotated[float, typer.Option(help="Share of known answers to get right.")] = 0.75,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer, at most.")] = 2048,
    num_steps: Annotated[int, typer.Option(help="Draft steps asked; 0: no speculation.")] = 2,
    draft_tokens: Annotated[int, typer.Option(help="Tokens a verification.")] = 3,
    ready_timeout: Annotated[float, typer.Option(help="Seconds until it must be ready.")] = 60,
    out: Out = None,
    resume: Resume = None,
) -> Outcome:
    """Does it load, speak, stop, and speculate?"""
    from tasks.gates.smoke import run_smoke

    _readable("--prompts", prompts)
    gate = _options(
        SmokeGate,
        prompts=prompts,
        min_known=min_known,
        max_tokens=max_tokens,
        require_log=False,
    )
    speculation = _speculation(num_steps, draft_tokens)
    serve = _options(ServeSpec, engine=engine, speculation=speculation, ready_timeout=ready_timeout)

    def measure(endpoint: Endpoint, folder: Path, progress: Progress) -> GateReport:
        return run_smoke(endpoint, gate, serve, folder, checkpoint, progress)

    return _gate("smoke", _endpoint(url, engine, model, log, checkpoint), out, resume, measure)


def gsm8k_command(
    url: Url,
    engine: EngineOption = "sglang",
    model: Model = None,
    log: Log = None,
    checkpoint: CheckpointDir = None,
    data: Annotated[Path | None, typer.Option(help="JSONL in GSM8K's form; unset: Hub.")] = None,
    limit: Annotated[int | None, typer.Option(help="First N problems.")] = None,
    min_accuracy: Annotated[float, typer.Option(help="Accuracy the bound must reach.")] = 0.95,
    rule: Annotated[
        Literal["wilson", "point", "non-inferior"], typer.Option(help="What decides.")
    ] = "wilson",
    baseline: Annotated[
        str | None, typer.Option(help="URL or records of a run to pair with.")
    ] = None,
    margin: Annotated[float, typer.Option(help="Loss that non-inferior allows.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="One-sided confidence.")] = 0.95,
    max_lost: Annotated[float, typer.Option(help="Lost requests allowed, share.")] = 0.01,
    max_cut_off: Annotated[float, typer.Option(help="Cut-off answers allowed, share.")] = 0.01,
    concurrency: Concurrency = 64,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer, at most.")] = 16384,
    timeout: Timeout = 900,
    temperature: Annotated[float | None, typer.Option(help="Unset: generation config.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Unset: generation config.")] = None,
    seed: Annotated[int, typer.Option(help="Sampling seed.")] = 0,
    thinking: Annotated[
        Literal["default", "on", "off"], typer.Option(help="Chat template's thinking switch.")
    ] = "default",
    out: Out = None,
    resume: Resume = None,
) -> Outcome:
    """Answer accuracy on grade-school math."""
    from tasks.gates.gsm8k import run_gsm8k

    _readable("--data", data)
    gate = _options(
        Gsm8kGate,
        data=data,
        limit=limit,
        min_accuracy=min_accuracy,
        rule=rule,
        baseline=baseline,
        margin=margin,
        confidence=confidence,
        max_lost=max_lost,
        max_cut_off=max_cut_off,
        concurrency=concurrency,
        max_tokens=max_tokens,
        timeout=timeout,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        thinking=thinking,
    )

    def measure(endpoint: Endpoint, folder: Path, progress: Progress) -> GateReport:
        return run_gsm8k(endpoint, gate, folder, checkpoint, progress)

    return _gate("gsm8k", _endpoint(url, engine, model, log, checkpoint), out, resume, measure)


def acceptance_command(
    url: Url,
    draft_tokens: Annotated[int, typer.Option(help="Tokens a verification.")],
    num_steps: Annotated[int | None, typer.Option(help="Unset: draft_tokens - 1.")] = None,
    engine: EngineOption = "sglang",
    model: Model = None,
    log: Log = None,
    checkpoint: CheckpointDir = None,
    min_accept: Annotated[float | None, typer.Option(help="Mean accept length, at least.")] = None,
    max_accept: Annotated[float | None, typer.Option(help="Unset: 0.99 x draft tokens.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL: id, kind, prompt.")] = None,
    concurrency: Concurrency = 16,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer, at most.")] = 512,
    timeout: Timeout = 900,
    feed: Annotated[
        Path | None, typer.Option(help="records.jsonl of a GSM8K run: judged, nothing asked.")
    ] = None,
    out: Out = None,
    resume: Resume = None,
) -> Outcome:
    """How many draft tokens the model accepts, under load."""
    from tasks.gates.acceptance import run_acceptance

    _readable("--prompts", prompts)
    _readable("--feed", feed)
    gate = _options(
        AcceptanceGate,
        min_accept=min_accept,
        max_accept=max_accept,
        prompts=prompts,
        concurrency=concurrency,
        max_tokens=max_tokens,
        timeout=timeout,
    )
    speculation = _options(
        SpeculationSpec, draft_tokens=draft_tokens, num_steps=num_steps or max(1, draft_tokens - 1)
    )

    def measure(endpoint: Endpoint, folder: Path, progress: Progress) -> GateReport:
        return run_acceptance(endpoint, gate, speculation, folder, progress, feed=feed)

    return _gate("acceptance", _endpoint(url, engine, model, log, checkpoint), out, resume, measure)


def _gate(
    gate: str, endpoint: Endpoint, out: Path | None, resume: Path | None, measure: Measure
) -> Outcome:
    folder = _folder(gate, out, resume)
    try:
        with bars() as bar:
            report = measure(endpoint, folder, bar(gate))
    except BadInputError:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    return Outcome(
        payload=report.model_dump(mode="json"),
        code=EXIT_CODES[report.verdict],
        shown=[*_report_tables(report), f"report and records: {folder}"],
    )


def _report_tables(report: GateReport) -> list[Any]:
    from flows.show import gate_table

    reasons = [(reason.code, reason.detail) for reason in report.reasons]
    shown: list[Any] = [gate_table({report.gate: report})]
    return [*shown, table("why", ("code", "detail"), reasons)] if reasons else shown


def _folder(gate: str, out: Path | None, resume: Path | None) -> Path:
    if out and resume:
        raise BadInputError("bad-out", "--out and --resume exclude each other.", "Give one.")
    if resume:
        if not resume.is_dir():
            raise BadInputError("bad-resume", f"--resume {resume}: no such folder.", "Give --out.")
        return resume
    folder = out or Path(f"gate-{gate}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError(
            "bad-out", f"--out {folder} is not an empty folder.", "Name a new one, or use --resume."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _endpoint(
    url: str, engine: EngineName, model: str | None, log: Path | None, checkpoint: Path | None
) -> Endpoint:
    parts = urlsplit(url)
    try:
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise BadInputError("bad-url", f"--url {url}: no URL.", "Write http://HOST:PORT.")
    if checkpoint is not None and not checkpoint.is_dir():
        raise BadInputError(
            "bad-checkpoint", f"--checkpoint {checkpoint}: no such folder.", "Give its folder."
        )
    _readable("--log", log)
    return Endpoint(url=url.rstrip("/"), engine=engine, model=model, log=log)


def _speculation(num_steps: int, draft_tokens: int) -> SpeculationSpec:
    if num_steps == 0:
        return SpeculationSpec(algorithm="none")
    return _options(SpeculationSpec, num_steps=num_steps, draft_tokens=draft_tokens)


def _options(model: type[Part], **values: Any) -> Part:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        said = str(first["msg"]).removeprefix("Value error, ")
        name = f"--{first['loc'][0]}: ".replace("_", "-") if first["loc"] else "--"
        raise BadInputError("bad-option", f"{name}{said}.", "See --help.") from error


def _readable(option: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise BadInputError(
            "file-unreadable", f"{option} {path}: {error.strerror}.", "Give a file to read."
        ) from error
