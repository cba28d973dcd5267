"""What a run will do, reuse or skip, and why: told before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tasks.artifacts import Image, Source
from tasks.gates.task import audit_inputs, gate_inputs, served_gates
from tasks.quantize.task import quantize_inputs
from tasks.requant.task import requant_inputs
from tasks.run import Run


@dataclass(frozen=True)
class Step:
    """One stage of the plan."""

    stage: str
    action: Literal["run", "reuse", "skip"]
    why: str


def plan(run: Run, source: Source) -> list[Step]:
    """The steps of a release in their order; a stage after one that runs has to run too."""
    spec = run.spec
    steps = [_planned(run, "quantize", quantize_inputs(spec, source))]
    checkpoint = _digest(run, "quantize", quantize_inputs(spec, source))
    if spec.draft.precision == "none":
        steps.append(Step("requant", "skip", "draft.precision is none"))
    else:
        inputs = requant_inputs(spec, source, checkpoint) if checkpoint else None
        steps.append(_planned(run, "requant", inputs))
        checkpoint = _digest(run, "requant", inputs)
    audited = audit_inputs(spec, source, checkpoint) if checkpoint else None
    steps.append(_planned(run, "gate-audit", audited))
    steps.append(_image_step(run))
    gates = [
        _planned(run, f"gate-{gate}", _gate(run, gate, checkpoint)) for gate in served_gates(spec)
    ]
    steps.append(_serve_step(gates))
    steps += gates
    steps.append(Step("card", "run", "rendered when the gates have passed"))
    if spec.publish.to == "nowhere":
        steps.append(Step("publish", "skip", "publish.to is nowhere"))
    else:
        steps.append(Step("publish", "run", f"to {spec.publish.to}, only on passed gates"))
    return steps


def _planned(run: Run, stage: str, inputs: dict[str, Any] | None) -> Step:
    if inputs is None:
        return Step(stage, "run", "what it starts from is made anew")
    found = run.store.find(stage, inputs)
    if found is None:
        return Step(stage, "run", "not in the store for these inputs")
    return Step(stage, "reuse", f"made {found.created:%Y-%m-%d %H:%M} UTC, verified")


def _digest(run: Run, stage: str, inputs: dict[str, Any] | None) -> str | None:
    found = run.store.find(stage, inputs) if inputs else None
    return found.digest if found else None


def _gate(run: Run, gate: str, checkpoint: str | None) -> dict[str, Any] | None:
    image: Image | None = None
    known = checkpoint and run.spec.image is None and run.spec.serve.start.how != "url"
    return gate_inputs(run.spec, gate, checkpoint, image) if known and checkpoint else None


def _image_step(run: Run) -> Step:
    if run.spec.serve.start.how != "container":
        return Step("image", "skip", f"serve.start is {run.spec.serve.start.how}, not a container")
    if run.spec.image is None:
        return Step("image", "skip", "the spec names an image to start, none to build")
    return Step("image", "run", f"from {run.spec.image.base}; the engine reuses what it has")


def _serve_step(gates: list[Step]) -> Step:
    if all(step.action == "reuse" for step in gates):
        return Step("serve", "skip", "every served gate is reused")
    return Step("serve", "run", "once, for all gates")
