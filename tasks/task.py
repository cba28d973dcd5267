"""What the rooms' Prefect tasks share: progress that both the terminal and the UI show."""

from __future__ import annotations

from typing import Any

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext
from prefect.client.schemas.objects import State

from tasks.errors import TransientError
from tasks.progress import Progress, both, silent, throttled
from tasks.run import Run

SECONDS_BETWEEN_UPDATES = 2.0


def watched(run: Run, stage: str) -> Progress:
    """A listener that moves the terminal's bar and the task run's progress artifact."""
    return both(throttled(run.bar(stage), 0.1), _artifact(stage))


def _artifact(stage: str) -> Progress:
    """A listener that creates a progress artifact at its first call and updates it after."""
    if TaskRunContext.get() is None:
        return silent
    artifact: Any = None

    def tell(fraction: float, words: str) -> None:
        nonlocal artifact
        percent = round(100 * min(max(fraction, 0.0), 1.0), 1)
        if artifact is None:
            artifact = create_progress_artifact(percent, description=f"{stage}: {words}")
        else:
            update_progress_artifact(artifact, percent, description=f"{stage}: {words}")

    return throttled(tell, SECONDS_BETWEEN_UPDATES)


def is_transient(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Whether another try may cure it; a bad spec or a failed threshold is never tried again."""
    try:
        state.result()
    except TransientError:
        return True
    except BaseException:
        return False
    return False
