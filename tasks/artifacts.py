"""The frozen records that pass from one room to the next; big bytes stay on disk.

spec -> Source -> Checkpoint -> Checkpoint with draft -> Image -> Endpoint -> GateReports -> Card ->
Publication.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A frozen value with named parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(Record):
    """A source model on disk, checked."""

    path: Path
    repo: str | None = Field(description="Hub repository, None for a local folder")
    revision: str | None = Field(description="resolved commit on the Hub, None for a local folder")
    digest: str = Field(description="sha256 over names, sizes and digests of the files")
    architecture: str
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None


class CalibrationRecord(Record):
    """What was really run through the model when scales were measured."""

    dataset: str = Field(description="file name or Hub data set id")
    sha256: str = Field(description="digest of the rows as they were read")
    rows: int
    tokens: int
    sequence_length: int
    batch_size: int
    seed: int
    device: str = Field(description="the device's own name, e.g. 'NVIDIA H200' or the CPU model")
    processes: int = 1
    started: datetime
    ended: datetime
    packages: dict[str, str] = Field(description="package name -> version")


class QuantizationRecord(Record):
    """How the main model was quantized."""

    qformat: str
    kv_cache: Literal["fp8", "none"]
    source_repo: str | None
    source_revision: str | None
    source_digest: str
    calibration: CalibrationRecord | None = Field(description="None when nothing was calibrated")


class DraftRecord(Record):
    """How the draft head was made."""

    precision: Literal["nvfp4", "bf16", "none"]
    scales: Literal["heuristic", "calibrated", "none"]
    layout: str = Field(description="the source's key layout, by its name in the layout table")
    borrowed_from: str | None = Field(
        default=None, description="module whose KV scales were borrowed; None when calibrated"
    )
    k_scale: float | None = None
    v_scale: float | None = None
    quantized_modules: int = 0
    unseen_experts: tuple[str, ...] = Field(
        default=(), description="experts that no calibration token reached"
    )
    rule: str | None = Field(default=None, description="the heuristic's rule, in words")
    calibration: CalibrationRecord | None = None


class Checkpoint(Record):
    """A quantized checkpoint on disk with how it was made."""

    path: Path
    digest: str
    quantization: QuantizationRecord
    draft: DraftRecord | None = Field(default=None, description="None before the draft head's turn")


class PatchState(Record):
    """One source patch on one SGLang tree."""

    name: str
    state: Literal["applied", "upstream", "needed", "drifted", "not-applicable"]
    reason: str
    sites: int = Field(description="places that the patch edits in this version")


class Image(Record):
    """A serving image as the engine knows it."""

    reference: str
    id: str
    digest: str | None = Field(description="repository digest once pushed, else None")
    base: str = Field(description="name@digest or image id of the base, as read from the engine")
    architecture: str = Field(description="os/arch as the engine reports it")
    engine_version: str | None = Field(description="SGLang's version in the image")
    patches: tuple[PatchState, ...] = ()


class Endpoint(Record):
    """A served checkpoint: where it answers, and the log that its load wrote."""

    url: str
    engine: Literal["sglang", "vllm", "reference"]
    model: str | None = Field(default=None, description="served model name; None: ask the server")
    log: Path | None = None
    command: tuple[str, ...] = Field(default=(), description="what was executed to start it")
    pidfile: Path | None = Field(
        default=None, description="names the process, where this program started one"
    )
    container: str | None = Field(
        default=None, description="id of the container, where this program started one"
    )


class Verdict(StrEnum):
    """A gate's end. INVALID: the measurement is not to be trusted; it never counts as a pass."""

    PASS = "PASS"
    FAIL = "FAIL"
    INVALID = "INVALID"


class ReleaseVerdict(StrEnum):
    """A release's end."""

    RELEASED = "RELEASED"
    REJECTED = "REJECTED"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNCHANGED = "UNCHANGED"


class Reason(Record):
    """One sentence of a verdict, with a stable code."""

    code: str
    detail: str


class Interval(Record):
    """A confidence interval with the method that made it."""

    low: float
    high: float
    confidence: float
    method: str


class Counts(Record):
    """How many requests a gate made and what became of them."""

    asked: int = 0
    scored: int = 0
    correct: int = 0
    lost: int = 0
    cut_off: int = 0


class GateReport(Record):
    """What a gate measured and how it judged (a contract: programs outside read it)."""

    gate: str
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    measured: dict[str, Any] = Field(default_factory=dict)
    threshold: dict[str, Any] = Field(default_factory=dict)
    interval: Interval | None = None
    counts: Counts = Counts()
    engine: dict[str, Any] = Field(default_factory=dict, description="name, version, served model")
    hardware: dict[str, Any] = Field(default_factory=dict)
    records: str | None = Field(
        default=None, description="raw records (JSONL), relative to the folder of the report"
    )
    seconds: float = 0.0


class Card(Record):
    """A rendered model card and the files beside it."""

    path: Path
    files: tuple[Path, ...] = ()
    digest: str | None = Field(
        default=None, description="of the card as rendered, before what people wrote is kept"
    )


class Publication(Record):
    """What went out, and where."""

    to: Literal["folder", "hub"]
    location: str = Field(description="folder or repository URL")
    revision: str = Field(description="commit on the Hub, content digest for a folder")
    tag: str | None = None
