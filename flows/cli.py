"""`quantgate`: the command line calls the same functions and the same flow as the Prefect UI.

Imports are late: a command loads only what it needs, and never torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows import cli_gates, cli_store
from flows.console import EXIT_CODES, Outcome, command, quiet_tracebacks, run, table
from tasks.errors import BadInputError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
gate_app = typer.Typer(no_args_is_help=True, help="Measure one gate on a running server.")
store_app = typer.Typer(no_args_is_help=True, help="List and prune cached artifacts.")
app.add_typer(gate_app, name="gate")
app.add_typer(store_app, name="store")
cli_gates.register(gate_app)
cli_store.register(store_app)

Root = Annotated[
    Path | None,
    typer.Option(help="Folder for releases/ and .quantgate/; QUANTGATE_ROOT, else here."),
]


def main() -> None:
    """The console script."""
    sys.exit(run(app, sys.argv[1:]))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"quantgate {importlib.metadata.version('quantgate')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """From a source model to a published NVFP4 release, on measured thresholds."""


@command(app, "release")
def release_command(
    spec: Annotated[Path, typer.Argument(help="Release spec (YAML).")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field: section.field=value.")
    ] = None,
    root: Root = None,
) -> Outcome:
    """Carry out a release: quantize, gate, document, publish."""
    from tasks.spec import load_spec, parse_override

    overrides = dict(parse_override(text) for text in settings or [])
    loaded = load_spec(spec, overrides)
    _prefect_defaults()
    from flows.own_server import start_own_server
    from flows.preflight import preflight
    from flows.release import release
    from tasks.run import default_root

    folder = root or default_root()
    preflight(loaded, folder)
    quiet_tracebacks()
    start_own_server()
    decision = release(loaded, folder)
    from flows.show import decision_tables

    return Outcome(
        payload=decision.model_dump(mode="json"),
        code=EXIT_CODES[decision.verdict],
        shown=decision_tables(decision),
    )


@command(app, "audit")
def audit_command(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder.")],
    source: Annotated[Path | None, typer.Option(help="BF16 source to compare with.")] = None,
) -> Outcome:
    """Check a checkpoint's files: structure, coverage, values, metadata."""
    from tasks.gates.audit import audit

    result = audit(checkpoint, source)
    rows = [(fault.code, fault.tensor or "-", fault.detail) for fault in result.faults]
    shown = [table("faults", ("code", "tensor", "what would go wrong"), rows)] if rows else []
    return Outcome(
        payload=result.model_dump(mode="json"),
        code=EXIT_CODES[result.verdict],
        shown=[*shown, f"{result.verdict}: {len(rows)} faults in {checkpoint}"],
    )


@command(app, "requant")
def requant_command(
    source: Annotated[Path, typer.Option(help="BF16 source folder with mtp.*.")],
    quantized: Annotated[Path, typer.Option(help="ModelOpt NVFP4 export of the same model.")],
    out: Annotated[Path, typer.Option(help="New folder for the checkpoint.")],
    scales: Annotated[str, typer.Option(help="heuristic or calibrated.")] = "heuristic",
    precision: Annotated[str, typer.Option(help="nvfp4 or bf16.")] = "nvfp4",
    calibration: Annotated[
        Path | None, typer.Option(help="JSONL calibration text (for calibrated).")
    ] = None,
) -> Outcome:
    """Put the draft head back into a ModelOpt export."""
    from tasks.requant.standalone import requant_folder

    record = requant_folder(source, quantized, out, precision, scales, calibration)
    return Outcome(
        payload={"checkpoint": str(out), "draft": record.model_dump(mode="json")},
        shown=[f"Draft head ({record.precision}, {record.scales} scales) written to {out}"],
    )


@command(app, "patches")
def patches_command(
    sglang: Annotated[Path, typer.Option(help="site-packages folder that holds sglang.")],
    check: Annotated[bool, typer.Option("--check", help="Look only; change nothing.")] = False,
) -> Outcome:
    """Apply the SGLang source patches, all or none; a drifted one is refused."""
    from tasks.image.patching import patches

    result = patches(sglang, check)
    rows = [
        (item["name"], item["state"], str(item["sites"]), item["reason"])
        for item in result["patches"]
    ]
    drifted = any(item["state"] == "drifted" for item in result["patches"])
    return Outcome(
        payload=result,
        code=3 if drifted else 0,
        shown=[
            table(f"SGLang {result['sglang_version']}", ("patch", "state", "sites", "why"), rows)
        ],
    )


@command(app, "card")
def card_command(
    release: Annotated[Path, typer.Option(help="Folder of a run: releases/NAME/RUN.")],
) -> Outcome:
    """Render a run's card again; what people wrote outside its regions is kept."""
    from flows.again import render_again

    card = render_again(release)
    files = [str(file) for file in card.files]
    return Outcome(payload={"card": str(card.path), "files": files}, shown=[f"card: {card.path}"])


@command(app, "publish")
def publish_command(
    release: Annotated[Path, typer.Option(help="Folder of a run: releases/NAME/RUN.")],
) -> Outcome:
    """Publish what a run released; publishing again changes nothing."""
    from flows.again import publish_again
    from flows.show import decision_tables

    decision = publish_again(release)
    return Outcome(
        payload=decision.model_dump(mode="json"),
        code=EXIT_CODES[decision.verdict],
        shown=decision_tables(decision),
    )


@command(app, "deploy")
def deploy_command() -> Outcome:
    """Register the deployments with the Prefect server that PREFECT_API_URL names."""
    if not os.environ.get("PREFECT_API_URL"):
        raise BadInputError(
            "no-server",
            "PREFECT_API_URL is not set.",
            "Start `prefect server start` and set PREFECT_API_URL=http://127.0.0.1:4200/api.",
        )
    from flows.deploy import deploy

    names = deploy()
    return Outcome(payload={"deployments": names}, shown=[f"registered: {', '.join(names)}"])


def _prefect_defaults() -> None:
    """Settings that Prefect reads at import: patience for its own server, and no telemetry."""
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")


if __name__ == "__main__":
    main()
