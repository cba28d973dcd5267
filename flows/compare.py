"""Draft heads side by side and the sweep over draft steps: measured in turns on one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from flows.bars import bars
from flows.hooks import remember, show_failure, stop_its_engines
from flows.preflight import preflight
from flows.release import run_name
from flows.tell import tell_comparison
from tasks.compare.keep import keep
from tasks.compare.plot import draw
from tasks.compare.rows import HEADS, Head, Row, Variant, draft_of, head_of, in_turns, row, variants
from tasks.compare.task import measure_variant
from tasks.errors import BadInputError
from tasks.hub.task import fetch_source
from tasks.image.task import build_image
from tasks.quantize.task import quantize_checkpoint
from tasks.requant.task import requantize_draft
from tasks.run import Run, default_root
from tasks.serve.engines import cleanup_leftovers
from tasks.spec import ReleaseSpec

Steps = Annotated[int, Field(ge=1, le=16)]
Rounds = Annotated[int, Field(ge=1, le=20)]


@flow(
    name="compare",
    flow_run_name=run_name,
    on_failure=[show_failure],
    on_cancellation=[stop_its_engines],
    on_crashed=[stop_its_engines],
)
def compare(
    spec: ReleaseSpec,
    heads: tuple[Head, ...] = HEADS,
    steps: tuple[Steps, ...] = (1, 2, 3, 4, 5),
    rounds: Rounds = 2,
    root: Path | None = None,
) -> dict[str, Any]:
    """Measure accept length and speed of every variant in turns; the next card shows the tables.

    Args:
        spec: the release.
        heads: draft heads, each at the release's own number of steps.
        steps: draft steps a verification, each with the release's own draft head.
        rounds: how often each variant is measured.
        root: as for `release`.

    Returns:
        `draft_heads` and `num_steps`, lists of rows.

    Raises:
        BadInputError: the spec cannot be carried out, or it has no draft head.
    """
    root = root or default_root()
    _check(spec)
    preflight(spec, root)
    cleanup_leftovers(root)
    with bars() as bar:
        run = Run.start(spec, root, bar)
        remember(run)
        checkpoints = _checkpoints(run, {*heads, head_of(spec)})
        image = build_image(run)
        wanted = variants(spec, heads, steps)
        measured: dict[Variant, list[Any]] = {variant: [] for variant in wanted}
        for number, variant in in_turns(wanted, rounds):
            checkpoint = checkpoints[variant.head]
            done = measure_variant(run, checkpoint, image, variant, number)
            measured[variant].append(done)
    rows = [row(variant, done) for variant, done in measured.items()]
    return _kept(run, checkpoints[head_of(spec)], rows, steps)


def _check(spec: ReleaseSpec) -> None:
    if spec.draft.precision == "none" or spec.serve.speculation.algorithm == "none":
        raise BadInputError(
            "compare-no-draft",
            "draft.precision: a release without a draft head has nothing to compare.",
            "Choose nvfp4 or bf16, and serve.speculation.algorithm NEXTN.",
        )
    if spec.serve.start.how == "url":
        raise BadInputError(
            "compare-url",
            "serve.start: an engine at a URL cannot be restarted with other draft heads.",
            "Start it as a process or a container.",
        )


def _checkpoints(run: Run, heads: set[str]) -> dict[str, Any]:
    """The release's checkpoint with each of the heads, from the store where they are there."""
    source = fetch_source(run)
    quantized = quantize_checkpoint(run, source)
    made = {}
    for head in sorted(heads):
        spec = run.spec.model_copy(update={"draft": draft_of(head)})
        made[head] = requantize_draft(replace(run, spec=spec), source, quantized)
    return made


def _kept(run: Run, checkpoint: Any, rows: list[Row], steps: tuple[int, ...]) -> dict[str, Any]:
    own, own_steps = head_of(run.spec), run.spec.serve.speculation.num_steps
    heads = [row for row in rows if row.num_steps == own_steps]
    sweep = [row for row in rows if row.draft_head == own and row.num_steps in steps]
    sweep.sort(key=lambda row: row.num_steps)
    plot = run.folder / "plots" / "comparison.png"
    draw(heads, sweep, plot)
    tables = {
        "draft_heads": [row.model_dump(mode="json") for row in heads],
        "num_steps": [row.model_dump(mode="json") for row in sweep],
    }
    kept = keep(run, checkpoint, tables)
    tell_comparison(tables, plot, kept)
    return tables
