"""The Prefect task that puts the draft head back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Checkpoint, Source
from tasks.child import call_in_child
from tasks.quantize.task import checkpoint_of
from tasks.run import Run
from tasks.spec import ReleaseSpec
from tasks.store import code_digest, file_digest
from tasks.task import watched

CODE = (
    "tasks/requant",
    "tasks/quantize",
    "tasks/draft_head.py",
    "tasks/architectures.py",
    "tasks/draft_layouts.py",
    "tasks/checkpoint",
)


def requant_inputs(spec: ReleaseSpec, source: Source, quantized: str) -> dict[str, Any]:
    """What decides the bytes of the checkpoint with its draft head; `quantized` is a digest."""
    calibrated = spec.draft.precision == "nvfp4" and spec.draft.scales == "calibrated"
    calibration = spec.quantize.calibration
    return {
        "source": source.revision or source.digest,
        "quantized": quantized,
        "draft": spec.draft,
        "calibration": calibration if calibrated else None,
        "rows": file_digest(calibration.file) if calibrated else None,
        "code": code_digest(*CODE),
    }


@task(name="requantize draft head", cache_policy=NO_CACHE, task_run_name="requantize draft head")
def requantize_draft(run: Run, source: Source, quantized: Checkpoint) -> Checkpoint:
    """The quantized checkpoint with its draft head, or as it is when none is asked for."""
    spec = run.spec
    if spec.draft.precision == "none":
        run.note("requant", 0.0, why="skipped: draft.precision is none")
        return quantized

    def build(folder: Path) -> dict[str, Any]:
        draft = call_in_child(
            "tasks.requant.requant:requant",
            {
                "source": source.path,
                "quantized": quantized,
                "spec": spec.draft,
                "calibration": spec.quantize.calibration,
                "out": folder,
            },
            run.log("requant"),
            watched(run, "requant"),
        )
        return {"quantization": quantized.quantization, "draft": draft}

    inputs = requant_inputs(spec, source, quantized.digest)
    return checkpoint_of(run.make("requant", inputs, build))
