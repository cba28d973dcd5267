"""The Prefect task that builds the serving image."""

from __future__ import annotations

import time

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from tasks.artifacts import Image
from tasks.image.build import build
from tasks.run import Run
from tasks.task import is_transient


@task(
    name="build image",
    cache_policy=NO_CACHE,
    task_run_name="build image",
    retries=2,
    retry_delay_seconds=30,
    retry_condition_fn=is_transient,
)
def build_image(run: Run) -> Image | None:
    """The patched serving image; None, and the reason in the ledger, when none is needed."""
    start, spec = run.spec.serve.start, run.spec.image
    if start.how != "container":
        run.note("image", 0.0, why=f"skipped: serve.start is {start.how}")
        return None
    if spec is None:
        run.note("image", 0.0, why="skipped: the spec names an image to start, none to build")
        return None
    started = time.monotonic()
    with run.log("image").open("a", encoding="utf-8") as log:
        logger = get_run_logger()

        def tell(line: str) -> None:
            logger.info(line)
            log.write(line + "\n")
            log.flush()

        image = build(spec, tell)
    run.note("image", time.monotonic() - started)
    return image
