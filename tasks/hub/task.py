"""The Prefect tasks that fetch the source and publish the release."""

from __future__ import annotations

import time

from prefect import task

from tasks.artifacts import Card, Checkpoint, Publication, Source
from tasks.hub.fetch import fetch
from tasks.hub.publish import publish_folder, publish_hub
from tasks.run import Run
from tasks.task import is_transient, watched


@task(
    name="fetch source",
    task_run_name="fetch source",
    retries=3,
    retry_delay_seconds=[5, 30, 120],
    retry_jitter_factor=0.5,
    retry_condition_fn=is_transient,
)
def fetch_source(run: Run) -> Source:
    """The source model on disk, at a resolved revision, checked."""
    started = time.monotonic()
    source = fetch(run.spec.source, run.store.home / "sources", watched(run, "fetch"))
    run.note("fetch", time.monotonic() - started)
    return source
