"""Everything that a card is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from tasks.artifacts import Checkpoint, GateReport, Image, PatchState, Record, Source
from tasks.spec import ReleaseSpec


class Sample(Record):
    """One prompt, answered by the source and by the release."""

    prompt: str
    before: str = Field(description="the source's answer")
    after: str = Field(description="the release's answer")


class SampleRun(Record):
    """How the samples were made."""

    engine: str = Field(description="e.g. 'reference 0.1.0, CPU'")
    sampling: dict[str, Any] = Field(description="e.g. {'temperature': 0, 'max_tokens': 256}")


class CardMaterial(Record):
    """All that is written on a card, and nothing that is not measured or recorded.

    A value that is missing where the card needs it is an error when the card is rendered, unless
    `spec.card.not_measured` declares it, with a reason that is printed in its place.
    """

    spec: ReleaseSpec
    source: Source
    checkpoint: Checkpoint
    release_id: str = Field(description="what identifies this release, e.g. the run's id")
    generated: datetime = Field(description="when the release was made, UTC")
    reports: dict[str, GateReport] = Field(description="gate -> report")
    audit_summary: dict[str, Any] = Field(default_factory=dict)
    image: Image | None = None
    patches: tuple[PatchState, ...] = Field(
        default=(), description="of the engine that served; the image's own where there is one"
    )
    endpoint_command: tuple[str, ...] = Field(
        default=(), description="what was executed to serve; empty for an engine at a URL"
    )
    samples: tuple[Sample, ...] = ()
    sample_run: SampleRun | None = None
    samples_skipped: str | None = Field(
        default=None, description="why there are no samples; printed"
    )
    environment: dict[str, Any] = Field(
        default_factory=dict, description="package -> version, and what else the machine says"
    )
    hardware: dict[str, Any] = Field(default_factory=dict, description="the machine of the gates")
    comparisons: dict[str, Any] = Field(
        default_factory=dict,
        description="`draft_heads` and `num_steps`: lists of rows as flows/compare.py writes them",
    )
