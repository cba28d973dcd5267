"""What many tests share: the demo's source, its release checkpoint, and an engine that serves it.

The checkpoint is built once by the product's own stages and kept in `.cache/tests`, addressed by
source, recipe and code like every artifact.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.artifacts import Checkpoint, Endpoint, Source
from tasks.run import Run
from tasks.spec import ReleaseSpec, load_spec
from tasks.store import PROJECT

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "180"


@pytest.fixture(scope="session", autouse=True)
def at_the_project() -> None:
    """Paths in the shipped specs are relative to the project."""
    os.chdir(PROJECT)


@pytest.fixture(scope="session")
def demo_spec() -> ReleaseSpec:
    return load_spec(Path("deployments/demo/release.yaml"))


@pytest.fixture(scope="session")
def demo_run(demo_spec: ReleaseSpec) -> Run:
    return Run.start(demo_spec, PROJECT / ".cache" / "tests")


@pytest.fixture(scope="session")
def demo_source_record(demo_run: Run) -> Source:
    from tasks.hub.task import fetch_source

    return fetch_source.fn(demo_run)


@pytest.fixture(scope="session")
def demo_source(demo_source_record: Source) -> Path:
    return demo_source_record.path


@pytest.fixture(scope="session")
def demo_quantized(demo_run: Run, demo_source_record: Source) -> Checkpoint:
    """The export of ModelOpt, before the draft head's turn."""
    from tasks.quantize.task import quantize_checkpoint

    return quantize_checkpoint.fn(demo_run, demo_source_record)


@pytest.fixture(scope="session")
def demo_checkpoint(
    demo_run: Run, demo_source_record: Source, demo_quantized: Checkpoint
) -> Checkpoint:
    from tasks.requant.task import requantize_draft

    return requantize_draft.fn(demo_run, demo_source_record, demo_quantized)


@pytest.fixture(scope="session")
def demo_release(demo_checkpoint: Checkpoint) -> Path:
    return demo_checkpoint.path


@pytest.fixture(scope="session")
def demo_engine(demo_run: Run, demo_checkpoint: Checkpoint) -> Iterator[Endpoint]:
    """The reference engine serving the demo's release, ready."""
    from tasks.serve.engines import serve, wait_ready

    spec, log = demo_run.spec.serve, demo_run.log("engine")
    with serve(demo_checkpoint.path, spec, None, log, demo_run.id) as endpoint:
        wait_ready(endpoint, spec.ready_timeout)
        yield endpoint
