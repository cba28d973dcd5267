"""The Prefect tasks that fetch the source and publish the release."""

from __future__ import annotations

import time
from pathlib import Path

from prefect import task

from tasks.artifacts import Card, Checkpoint, Publication, Source
from tasks.hub.fetch import fetch
from tasks.hub.publish import publish_folder
from tasks.run import Run
from tasks.store import file_digest, key_of
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


@task(name="publish", task_run_name="publish release")
def publish_release(run: Run, checkpoint: Checkpoint, card: Card) -> Publication | None:
    """The release where the spec wants it; None for a dry run. Publishing again changes nothing."""
    spec = run.spec.publish
    if spec.to == "nowhere":
        run.note("publish", 0.0, why="skipped: publish.to is nowhere")
        return None
    started = time.monotonic()
    before = _stamp(spec.folder / spec.repo)
    publication = publish_folder(checkpoint.path, card, spec, release_id(checkpoint, card))
    unchanged = before is not None and before == _stamp(spec.folder / spec.repo)
    run.note("publish", time.monotonic() - started, reused=unchanged)
    return publication


def release_id(checkpoint: Checkpoint, card: Card) -> str:
    """What makes this release this release: its weights and its card."""
    return key_of({"checkpoint": checkpoint.digest, "card": file_digest(card.path)})


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Which folder lies there: a release is replaced as a whole, never edited."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
