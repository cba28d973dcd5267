"""From rounds of measurements to comparable rows, each with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import Field

from tasks.artifacts import GateReport, Record, Verdict
from tasks.gates.acceptance import units_of
from tasks.gates.records import read_records
from tasks.gates.statistics import bootstrap_accept_length
from tasks.spec import DraftSpec, ReleaseSpec, SpeculationSpec

Head = Literal["bf16", "heuristic", "calibrated"]
HEADS: tuple[Head, ...] = ("bf16", "heuristic", "calibrated")


class Variant(Record):
    """One way to serve the release: which draft head, and how many draft steps."""

    head: str
    steps: int

    @property
    def words(self) -> str:
        """As people say it."""
        return f"{self.head} head, {self.steps} step{'s' if self.steps > 1 else ''}"


class Row(Record):
    """What all rounds of a variant say together (a row of the card's table)."""

    draft_head: str
    num_steps: int
    accept_length: float | None
    low: float | None = Field(description="of the bootstrap over requests, 95 %")
    high: float | None
    tokens_per_second: float | None = Field(description="mean over rounds")
    slowest_round: float | None
    fastest_round: float | None
    rounds: int
    requests: int


def draft_of(head: str) -> DraftSpec:
    """`bf16`, `heuristic` or `calibrated` as the spec says it."""
    if head == "bf16":
        return DraftSpec(precision="bf16")
    return DraftSpec.model_validate({"precision": "nvfp4", "scales": head})


def head_of(spec: ReleaseSpec) -> str:
    """The name of the head that the release itself has."""
    return "bf16" if spec.draft.precision == "bf16" else spec.draft.scales


def speculation_of(spec: ReleaseSpec, steps: int) -> SpeculationSpec:
    """The release's speculation with other steps; one branch verifies steps + 1 tokens."""
    return spec.serve.speculation.model_copy(
        update={"num_steps": steps, "topk": 1, "draft_tokens": steps + 1}
    )


def variants(spec: ReleaseSpec, heads: Sequence[str], steps: Sequence[int]) -> list[Variant]:
    """Every head at the release's steps, then the release's head at every other step count."""
    own, own_steps = head_of(spec), spec.serve.speculation.num_steps
    wanted = [Variant(head=head, steps=own_steps) for head in heads]
    wanted += [Variant(head=own, steps=count) for count in steps]
    return list(dict.fromkeys(wanted))


def in_turns(wanted: Sequence[Variant], rounds: int) -> Iterator[tuple[int, Variant]]:
    """(round, variant): each round starts one further on, so that no variant is always first.

    What drifts on a machine (its temperature, its other users) then meets all variants alike.
    """
    for number in range(rounds):
        shift = number % len(wanted)
        for variant in [*wanted[shift:], *wanted[:shift]]:
            yield number + 1, variant


def row(variant: Variant, measured: Sequence[tuple[GateReport, Path]]) -> Row:
    """The row of a variant from its rounds: (report, records); an untrusted round is left out."""
    used = [(report, records) for report, records in measured if _is_usable(report)]
    speeds = [
        report.measured["output_tokens_per_second"]
        for report, _ in used
        if "output_tokens_per_second" in report.measured
    ]
    correct: list[int] = []
    verified: list[int] = []
    for _, records in used:
        more_correct, more_verified = units_of(read_records(records))
        correct += more_correct
        verified += more_verified
    low, high = bootstrap_accept_length(correct, verified, 0.95) if verified else (None, None)
    return Row(
        draft_head=variant.head,
        num_steps=variant.steps,
        accept_length=1 + sum(correct) / sum(verified) if verified else None,
        low=low,
        high=high,
        tokens_per_second=fmean(speeds) if speeds else None,
        slowest_round=min(speeds, default=None),
        fastest_round=max(speeds, default=None),
        rounds=len(used),
        requests=len(verified),
    )


def _is_usable(report: GateReport) -> bool:
    """INVALID only for being short or undecided is fine here: nothing is judged."""
    harmless = {"too-few-requests", "too-few-verifications", "undecided"}
    return report.verdict is not Verdict.INVALID or all(
        reason.code in harmless for reason in report.reasons
    )
