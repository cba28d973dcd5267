"""The Prefect task that quantizes the main model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Checkpoint, Source
from tasks.child import call_in_child
from tasks.gpu import quantizes_on_gpu
from tasks.run import Run
from tasks.spec import LaunchSpec, ReleaseSpec
from tasks.store import Entry, code_digest, file_digest
from tasks.task import holding_gpu, watched

CODE = (
    "tasks/quantize",
    "tasks/architectures.py",
    "tasks/draft_layouts.py",
    "tasks/checkpoint",
)


def quantize_inputs(spec: ReleaseSpec, source: Source) -> dict[str, Any]:
    """What decides the bytes of the quantized checkpoint."""
    calibration = spec.quantize.calibration
    return {
        "source": source.revision or source.digest,
        "quantize": spec.quantize.model_dump(mode="json", exclude={"launch"}),
        "rows": file_digest(calibration.file),
        "code": code_digest(*CODE),
    }


@task(name="quantize", cache_policy=NO_CACHE, task_run_name="quantize {source.architecture}")
def quantize_checkpoint(run: Run, source: Source) -> Checkpoint:
    """The source as an NVFP4 checkpoint, from the store where it is there already."""

    def build(folder: Path) -> dict[str, Any]:
        with holding_gpu(run, "quantize", wanted=quantizes_on_gpu(run.spec)):
            made = call_in_child(
                "tasks.quantize.quantize:quantize",
                {"source": source, "spec": run.spec.quantize, "out": folder},
                run.log("quantize"),
                watched(run, "quantize"),
                torchrun(run.spec.quantize.launch),
            )
        return dict(made)

    return checkpoint_of(run.make("quantize", quantize_inputs(run.spec, source), build))


def torchrun(launch: LaunchSpec) -> tuple[str, ...]:
    """Arguments of Python that start a module in every process of this node; none for one."""
    if launch.processes * launch.nodes == 1:
        return ()
    where: tuple[str, ...] = ("--standalone",)
    if launch.nodes > 1:
        host, _, port = (launch.address or "").partition(":")
        where = ("--nnodes", str(launch.nodes), "--node-rank", "0")
        where += ("--master-addr", host, "--master-port", port)
    return ("-m", "torch.distributed.run", *where, "--nproc-per-node", str(launch.processes))


def checkpoint_of(entry: Entry) -> Checkpoint:
    """The store's entry as a Checkpoint: path and digest are the store's own."""
    record = {**entry.record, "path": entry.files, "digest": entry.digest}
    return Checkpoint.model_validate(record)
