"""The Prefect task that measures one variant in one round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Checkpoint, GateReport, Image
from tasks.compare.rows import Variant, speculation_of
from tasks.gates.acceptance import run_acceptance
from tasks.gates.task import CODE
from tasks.gpu import serves_on_gpu
from tasks.run import Run
from tasks.serve.engines import serve, wait_ready
from tasks.spec import AcceptanceGate
from tasks.store import code_digest, file_digest
from tasks.task import holding_gpu, is_transient, watched


@task(
    name="measure",
    cache_policy=NO_CACHE,
    task_run_name="measure {variant.words}, round {number}",
    retries=1,
    retry_delay_seconds=5,
    retry_condition_fn=is_transient,
)
def measure_variant(
    run: Run, checkpoint: Checkpoint, image: Image | None, variant: Variant, number: int
) -> tuple[GateReport, Path]:
    """Accept length and speed of one variant on an engine of its own: (report, records)."""
    speculation = speculation_of(run.spec, variant.steps)
    serving = run.spec.serve.model_copy(update={"speculation": speculation})
    asked = run.spec.gates.acceptance or AcceptanceGate()
    gate = asked.model_copy(update={"min_accept": None, "max_accept": None})
    stage = f"compare {variant.words} {number}"

    def build(folder: Path) -> dict[str, Any]:
        log = run.log(f"engine-{variant.head}-{variant.steps}-{number}")
        with (
            holding_gpu(run, stage, wanted=serves_on_gpu(serving)),
            serve(checkpoint.path, serving, image, log, run.id) as endpoint,
        ):
            wait_ready(endpoint, serving.ready_timeout)
            report = run_acceptance(endpoint, gate, speculation, folder, watched(run, stage))
        return report.model_dump(mode="json")

    inputs = {
        "checkpoint": checkpoint.digest,
        "serve": serving,
        "gate": gate,
        "prompts": file_digest(gate.prompts),
        "round": number,
        "image": image.id if image else None,
        "code": code_digest(*CODE, "tasks/compare"),
    }
    entry = run.make("compare", inputs, build)
    report = GateReport.model_validate(entry.record)
    return report, entry.files / (report.records or "records.jsonl")
