"""Runs whose process died without a word: the next run below the same root says so to the server.

A process worker that is told to stop kills its runs, and reports nothing; each would stay Running.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.hooks import NAME
from tasks.locks import HeldError, locked
from tasks.run import Run

ALIVE = "alive.lock"
"""In a run's folder: held while its process lives; left behind only by one that was killed."""
WHY = "Its process died; another run goes on where it stopped."


@contextmanager
def living(run: Run) -> Iterator[None]:
    """Hold the run's sign of life for the length of a `with` block."""
    file = run.folder / ALIVE
    with locked(file, run.id, patience=0):
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def report_dead_runs(root: Path) -> list[str]:
    """Mark as Crashed what still counts as running on the server and does not run any more.

    Returns:
        The flow runs that were marked.
    """
    dead = list(_dead(root))
    if not dead:
        return []
    with get_client(sync_client=True) as client:
        reported = [found for folder in dead if (found := _report(client, folder)) is not None]
    for folder in dead:
        (folder / ALIVE).unlink(missing_ok=True)
    return reported


def _dead(root: Path) -> Iterator[Path]:
    for file in sorted((root / "releases").glob(f"*/*/{ALIVE}")):
        try:
            with locked(file, "", patience=0):
                yield file.parent
        except HeldError:
            continue


def _report(client: SyncPrefectClient, folder: Path) -> str | None:
    try:
        flow_run = (folder / NAME).read_text(encoding="utf-8")
        state = client.read_flow_run(UUID(flow_run)).state
    except (FileNotFoundError, ObjectNotFound):
        return None
    if state is None or state.is_final():
        return None
    client.set_flow_run_state(UUID(flow_run), Crashed(message=WHY), force=True)
    return flow_run
