"""The Prefect task that starts the engine on which all gates are measured."""

from __future__ import annotations

from contextlib import ExitStack

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Checkpoint, Endpoint, Image
from tasks.gpu import serves_on_gpu
from tasks.run import Run
from tasks.serve.engines import serve
from tasks.task import holding_gpu, is_transient


@task(
    name="start engine",
    cache_policy=NO_CACHE,
    task_run_name="start engine {run.spec.serve.engine}",
    retries=2,
    retry_delay_seconds=5,
    retry_condition_fn=is_transient,
)
def start_engine(
    run: Run, checkpoint: Checkpoint, image: Image | None, engines: ExitStack
) -> Endpoint:
    """Start serving the checkpoint; `engines` stops it when the flow leaves it.

    The engine may still be loading: the smoke gate watches it become ready.
    """
    spec = run.spec.serve
    with ExitStack() as starting:
        starting.enter_context(holding_gpu(run, "serve", wanted=serves_on_gpu(spec)))
        engine = serve(checkpoint.path, spec, image, run.log("engine"), run.id)
        endpoint = starting.enter_context(engine)
        engines.push(starting.pop_all())
    return endpoint
