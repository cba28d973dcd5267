"""What happens when a run fails, crashes or is cancelled; some of it in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate

from flows.console import quiet_tracebacks
from tasks.errors import QuantgateError
from tasks.run import Run, default_root
from tasks.serve.engines import stop_engines
from tasks.store import write_whole

NAME = "flow-run.txt"
"""In a run's folder: the id of its Prefect flow run, by which a hook finds the folder."""

quiet_tracebacks()


def remember(run: Run) -> None:
    """Leave the flow run's id in the run's folder."""
    write_whole(run.folder / NAME, str(runtime.flow_run.id))


def folders_of(flow_run: Any) -> list[Path]:
    """The folders that a flow run made (one for each of its tries)."""
    given = flow_run.parameters
    root = Path(given.get("root") or default_root())
    spec = given.get("spec")
    name = spec.get("name", "*") if isinstance(spec, dict) else getattr(spec, "name", "*")
    marks = (root / "releases").glob(f"{name}/*/{NAME}")
    wanted = str(flow_run.id)
    return [mark.parent for mark in marks if mark.read_text(encoding="utf-8") == wanted]


def stop_its_engines(flow: Any, flow_run: Any, state: Any) -> None:
    """Stop what a cancelled or crashed run left running; harmless when there is nothing."""
    for folder in folders_of(flow_run):
        stop_engines(folder)


def show_failure(flow: Any, flow_run: Any, state: Any) -> None:
    """Keep the failure as an artifact of the run: what is wrong, and what to do about it."""
    error = state.result(raise_on_failure=False)
    artifact = ArtifactCreate(
        key="error",
        type="markdown",
        description="Why this run failed",
        data=failure_markdown(error),
        flow_run_id=flow_run.id,
    )
    with get_client(sync_client=True) as client:
        client.create_artifact(artifact)


def failure_markdown(error: object) -> str:
    """The failure in a few lines."""
    if isinstance(error, QuantgateError):
        return f"## {error.code}\n\n{error.message}\n\n**What to do:** {error.remedy}\n"
    return f"## {type(error).__name__}\n\n```\n{error}\n```\n"
