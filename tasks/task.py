"""What the rooms' Prefect tasks share: progress that terminal and UI show, and the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.context import TaskRunContext

from tasks.errors import TransientError
from tasks.gpu import gpu_lock, visible_gpus
from tasks.progress import Progress, both, silent, throttled
from tasks.run import Run

SECONDS_BETWEEN_UPDATES = 2.0
GPU_LIMIT = "quantgate-gpu"
"""The server's global concurrency limit: where people see who uses and who waits."""


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


@contextmanager
def holding_gpu(run: Run, stage: str, *, wanted: bool) -> Iterator[None]:
    """Hold this machine's GPUs while a stage uses them; nothing where it needs or has none.

    The server's limit is what people see; a lease of it can be lost, so the lock is what holds.
    """
    gpus = visible_gpus() if wanted else ()
    if not gpus:
        yield
        return
    locks = run.root / ".quantgate" / "locks"
    with concurrency(GPU_LIMIT), gpu_lock(locks, run.id, gpus, watched(run, f"{stage}: GPU")):
        yield


def is_transient(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Whether another try may cure it; a bad spec or a failed threshold is never tried again."""
    try:
        state.result()
    except TransientError:
        return True
    except BaseException:
        return False
    return False
