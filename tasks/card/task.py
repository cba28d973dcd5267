"""The Prefect tasks that collect samples and write the card."""

from __future__ import annotations

import os
import platform
import shutil
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.artifacts import Card, Checkpoint, Endpoint, GateReport, Image, Record, Source
from tasks.card.kept import NAME, KeptCard
from tasks.card.material import CardMaterial, Sample, SampleRun
from tasks.card.regions import renew
from tasks.card.render import README, render_card
from tasks.card.samples import answers, sample_prompts, sampling_of
from tasks.compare.keep import comparisons_for
from tasks.errors import TransientError
from tasks.gpu import serves_on_gpu
from tasks.hub.publish import bring_card
from tasks.run import Run
from tasks.serve.engines import serve, wait_ready
from tasks.spec import SpeculationSpec
from tasks.store import code_digest, key_of, write_whole
from tasks.task import holding_gpu

CODE = ("tasks/card", "templates")
SAMPLE_CODE = ("tasks/serve", "tasks/card/samples.py")
PACKAGES = ("quantgate", "prefect", "huggingface_hub", "numpy", "scipy", "httpx", "math-verify")


class ReleaseSamples(Record):
    """The release's answers to the card's prompts, and how its engine was started."""

    answers: tuple[str, ...]
    command: tuple[str, ...]


def has_release_samples(run: Run, checkpoint: Checkpoint, image: Image | None) -> bool:
    """Whether the store has the release's answers."""
    inputs = release_sample_inputs(run, checkpoint, image)
    return run.store.find("sample-release", inputs) is not None


def release_sample_inputs(run: Run, checkpoint: Checkpoint, image: Image | None) -> dict[str, Any]:
    """What decides the release's answers."""
    return {
        "prompts": sample_prompts(run.spec),
        "sampling": sampling_of(run.spec).as_dict(),
        "checkpoint": checkpoint.digest,
        "serve": run.spec.serve,
        "image": image.id if image else None,
        "code": code_digest(*SAMPLE_CODE),
    }


@task(name="sample release", cache_policy=NO_CACHE, task_run_name="sample release")
def sample_release(
    run: Run, checkpoint: Checkpoint, image: Image | None, endpoint: Endpoint | None
) -> ReleaseSamples:
    """The release's answers to the card's prompts; `endpoint` None: they are in the store."""

    def build(folder: Path) -> dict[str, Any]:
        assert endpoint is not None, "answers that are not in the store need an engine"
        wait_ready(endpoint, run.spec.serve.ready_timeout)
        asked = answers(endpoint, sample_prompts(run.spec), sampling_of(run.spec))
        return {"answers": asked, "command": endpoint.command}

    inputs = release_sample_inputs(run, checkpoint, image)
    return ReleaseSamples.model_validate(run.make("sample-release", inputs, build).record)


@task(name="sample source", cache_policy=NO_CACHE, task_run_name="sample source")
def sample_source(run: Run, source: Source) -> list[str] | str:
    """The source's answers on the spec's engine, or why there are none."""
    start = run.spec.serve.start
    if not run.spec.card.samples:
        return "the spec asks for no samples"
    if start.how == "url":
        return "the engine was given by its URL, so it could not be started on the source"
    plain = run.spec.serve.model_copy(update={"speculation": SpeculationSpec(algorithm="none")})
    inputs = {
        "prompts": sample_prompts(run.spec),
        "sampling": sampling_of(run.spec).as_dict(),
        "source": source.revision or source.digest,
        "serve": plain,
        "code": code_digest(*SAMPLE_CODE),
    }

    def build(folder: Path) -> dict[str, Any]:
        with (
            holding_gpu(run, "sample source", wanted=serves_on_gpu(plain)),
            serve(source.path, plain, None, run.log("engine-source"), run.id) as endpoint,
        ):
            wait_ready(endpoint, plain.ready_timeout)
            return {"answers": answers(endpoint, sample_prompts(run.spec), sampling_of(run.spec))}

    try:
        return list(run.make("sample-source", inputs, build).record["answers"])
    except TransientError as error:
        return f"the engine did not answer on the source ({error.code})"


@task(name="write card", cache_policy=NO_CACHE, task_run_name="write card")
def write_card(
    run: Run,
    source: Source,
    checkpoint: Checkpoint,
    image: Image | None,
    reports: dict[str, GateReport],
    before: list[str] | str,
    after: ReleaseSamples,
) -> Card:
    """The model card with its plots and evidence, from everything measured and recorded."""
    spec = run.spec
    made = {
        "spec": spec,
        "source": source.model_dump(mode="json", exclude={"path"}),
        "checkpoint": checkpoint.model_dump(mode="json", exclude={"path"}),
        "image": image,
        "reports": reports,
        "samples": [before, after],
        "environment": environment(),
        "comparisons": comparisons_for(run, checkpoint),
        "code": code_digest(*CODE),
    }

    def build(folder: Path) -> dict[str, Any]:
        material = CardMaterial(
            spec=spec,
            source=source,
            checkpoint=checkpoint,
            release_id=key_of(made),
            generated=datetime.now(UTC),
            reports=reports,
            audit_summary=reports["audit"].measured,
            image=image,
            patches=image.patches if image else (),
            endpoint_command=after.command,
            samples=_pairs(sample_prompts(spec), before, after.answers),
            sample_run=_sample_run(run, reports) if isinstance(before, list) else None,
            samples_skipped=before if isinstance(before, str) else None,
            environment=environment(),
            hardware=reports["gsm8k"].hardware,
            comparisons=made["comparisons"],
        )
        card = render_card(material, folder)
        files = [str(file.relative_to(folder)) for file in card.files]
        return {"files": files, "material": material}

    entry = run.make("card", made, build)
    shutil.copytree(entry.files, run.folder, dirs_exist_ok=True)
    path = run.folder / README
    rendered = path.read_bytes()
    path.unlink()
    if bring_card(spec.publish, run.folder):
        rendered = renew(path.read_bytes(), rendered, f"the README.md of {spec.publish.repo}")
    path.write_bytes(rendered)
    files = tuple(run.folder / name for name in entry.record["files"])
    card = Card(path=path, files=files, digest=entry.digest)
    material = CardMaterial.model_validate(entry.record["material"])
    material = material.model_copy(update={"source": source, "checkpoint": checkpoint})
    kept = KeptCard(card=card, material=material)
    write_whole(run.folder / NAME, kept.model_dump_json(indent=2))
    return card


def environment() -> dict[str, Any]:
    """Package versions and what else the machine says of itself."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
    }


def _pairs(
    prompts: list[str], before: list[str] | str, after: tuple[str, ...]
) -> tuple[Sample, ...]:
    if isinstance(before, str):
        return ()
    triples = zip(prompts, before, after, strict=True)
    return tuple(Sample(prompt=p, before=b, after=a) for p, b, a in triples)


def _sample_run(run: Run, reports: dict[str, GateReport]) -> SampleRun:
    engine = reports["smoke"].engine
    version = engine.get("version")
    name = (
        f"{engine.get('name', run.spec.serve.engine)} {version}"
        if version
        else str(engine.get("name", run.spec.serve.engine))
    )
    sampling = {k: v for k, v in sampling_of(run.spec).as_dict().items() if v is not None}
    return SampleRun(engine=name, sampling=sampling)
