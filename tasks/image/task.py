"""The Prefect task that builds the serving image."""

from __future__ import annotations

from prefect import task

from tasks.artifacts import Image
from tasks.run import Run


@task(name="build image", task_run_name="build image")
def build_image(run: Run) -> Image | None:
    """The patched serving image; None when the spec serves without one."""
    start, spec = run.spec.serve.start, run.spec.image
    if start.how != "container" or spec is None:
        run.note("image", 0.0, why=f"skipped: serve.start is {start.how}")
        return None
    from tasks.image.build import build

    raise AssertionError(build)
