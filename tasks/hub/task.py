"""The Prefect tasks that fetch the source and publish the release."""

from __future__ import annotations

import time
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Card, Checkpoint, Publication, Source
from tasks.hub.fetch import fetch
from tasks.hub.publish import begin_upload, discard, publish
from tasks.hub.upload import Upload
from tasks.run import Run
from tasks.store import file_digest, key_of
from tasks.task import is_transient, watched


@task(
    name="fetch source",
    cache_policy=NO_CACHE,
    task_run_name="fetch source",
    retries=3,
    retry_delay_seconds=[5, 30, 120],
    retry_jitter_factor=0.5,
    retry_condition_fn=is_transient,
)
def fetch_source(run: Run) -> Source:
    """The source model on disk, at a resolved revision, checked."""
    started, cache = time.monotonic(), run.store.home / "sources"
    before = _newest(cache)
    source = fetch(run.spec.source, cache, watched(run, "fetch"))
    run.note("fetch", time.monotonic() - started, reused=before == _newest(cache))
    return source


def start_upload(run: Run, checkpoint: Checkpoint) -> Upload | None:
    """Send the weights ahead while the gates run; None where nothing goes to the Hub.

    Runs beside the tasks, in a thread of its own; nothing is visible before the decision.
    """
    if run.spec.publish.to != "hub":
        return None
    return begin_upload(checkpoint.path, run.spec.publish, _state(run), progress=run.bar("upload"))


@task(
    name="take back",
    cache_policy=NO_CACHE,
    task_run_name="take back upload",
    retries=2,
    retry_delay_seconds=10,
)
def take_back(run: Run, upload: Upload | None) -> None:
    """Stop the upload of a release that may not go out; delete the repository it created."""
    if run.spec.publish.to == "hub":
        discard(run.spec.publish, _state(run), upload)


@task(
    name="publish",
    cache_policy=NO_CACHE,
    task_run_name="publish release",
    retries=3,
    retry_delay_seconds=[10, 60, 300],
    retry_jitter_factor=0.5,
    retry_condition_fn=is_transient,
)
def publish_release(
    run: Run, checkpoint: Checkpoint, card: Card, upload: Upload | None
) -> Publication | None:
    """The release where the spec wants it; None for a dry run. Publishing again changes nothing."""
    spec = run.spec.publish
    if spec.to == "nowhere":
        run.note("publish", 0.0, why="skipped: publish.to is nowhere")
        return None
    started = time.monotonic()
    before = _stamp(spec.folder / spec.repo)
    publication = publish(
        checkpoint.path,
        card,
        spec,
        release_id(checkpoint, card),
        _state(run),
        upload,
        progress=watched(run, "publish"),
    )
    unchanged = before is not None and before == _stamp(spec.folder / spec.repo)
    run.note("publish", time.monotonic() - started, reused=unchanged)
    return publication


def _newest(folder: Path) -> int:
    """When anything below was last written (ns); 0 for an empty or absent folder."""
    return max((file.stat().st_mtime_ns for file in folder.rglob("*")), default=0)


def _state(run: Run) -> Path:
    return run.store.home / "hub"


def release_id(checkpoint: Checkpoint, card: Card) -> str:
    """What makes this release this release: its weights and its card as it was rendered."""
    rendered = (checkpoint.digest, card.digest or file_digest(card.path))
    return key_of({"checkpoint": rendered[0], "card": rendered[1]})


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Which folder lies there: a release is replaced as a whole, never edited."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
