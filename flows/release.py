"""One release: from a source model to a publication, a rejection or an honest "cannot tell"."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prefect import flow, runtime

from flows.approval import ask_person
from flows.bars import bars
from flows.dead import living, report_dead_runs
from flows.decide import Basis, Decision, judge
from flows.hooks import remember, show_failure, stop_its_engines
from flows.measure import Served, measure_on_one_engine
from flows.plan import plan
from flows.preflight import preflight
from flows.tell import state_of, tell_card, tell_decision, tell_gates, tell_image, tell_plan
from flows.unchanged import basis_of, unchanged, why_again
from tasks.artifacts import (
    Card,
    Checkpoint,
    GateReport,
    Publication,
    ReleaseVerdict,
    Source,
    Verdict,
)
from tasks.card.task import sample_source, write_card
from tasks.errors import BadInputError
from tasks.gates.task import gate_audit, served_gates
from tasks.hub.task import fetch_source, publish_release, start_upload, take_back
from tasks.image.task import build_image
from tasks.quantize.preflight import check_source
from tasks.quantize.task import quantize_checkpoint
from tasks.requant.task import requantize_draft
from tasks.run import Run, default_root
from tasks.serve.engines import cleanup_leftovers
from tasks.spec import ReleaseSpec
from tasks.store import write_whole


def run_name() -> str:
    """Release and time, as the run is called in the UI."""
    name = runtime.flow_run.parameters["spec"].name
    return f"{name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"


@flow(
    name="release",
    flow_run_name=run_name,
    on_failure=[show_failure],
    on_cancellation=[stop_its_engines],
    on_crashed=[stop_its_engines],
)
def release(spec: ReleaseSpec, root: Path | None = None, only_if_changed: bool = False) -> Decision:
    """Quantize, requantize the draft head, audit, serve once, gate, decide, document, publish.

    Args:
        spec: the release.
        root: folder for `releases/` and the artifact store; unset: QUANTGATE_ROOT, else here.
        only_if_changed: end UNCHANGED when source, recipe, base image and code are as they were.

    Raises:
        BadInputError: the spec cannot be carried out; nothing was spent.
    """
    root = root or default_root()
    preflight(spec, root)
    cleanup_leftovers(root)
    report_dead_runs(root)
    with bars() as bar:
        run = Run.start(spec, root, bar)
        with living(run):
            remember(run)
            source = _checked_source(run)
            basis = basis_of(run, source, refresh=only_if_changed)
            decision = unchanged(run, basis) if only_if_changed else None
            decision = decision or _carry_out(run, source, basis)
    write_whole(run.folder / "decision.json", decision.model_dump_json(indent=2))
    tell_decision(decision, run)
    return state_of(decision)


def _checked_source(run: Run) -> Source:
    """Fetch the source; one that cannot be released leaves no run behind."""
    try:
        source = fetch_source(run)
        check_source(run.spec, source.path, run.root)
    except BadInputError:
        shutil.rmtree(run.folder)
        raise
    return source


def _carry_out(run: Run, source: Source, basis: Basis) -> Decision:
    tell_plan(plan(run, source), why_again(run, basis))
    building = build_image.submit(run)  # while the model is quantized
    quantized = quantize_checkpoint(run, source)
    checkpoint = requantize_draft(run, source, quantized)
    reports = {"audit": gate_audit(run, source, checkpoint)}
    image, served, upload = building.result(), Served(), None
    if reports["audit"].verdict is not Verdict.FAIL:
        upload = start_upload(run, checkpoint)
        served = measure_on_one_engine(run, checkpoint, image)
        reports |= served.reports
    tell_image(image)
    tell_gates(run.spec.name, reports)
    ended = partial(_decision, run, basis, checkpoint, reports)
    verdict, why = judge(reports, ("audit", *served_gates(run.spec)))
    if verdict is not ReleaseVerdict.RELEASED or served.samples is None:
        take_back(run, upload)
        return ended(verdict, why)
    before = sample_source(run, source)
    card = write_card(run, source, checkpoint, image, reports, before, served.samples)
    tell_card(card)
    withheld = ask_person(run, reports, card)
    if withheld is not None:
        take_back(run, upload)
        return ended(*withheld, card)
    publication = publish_release(run, checkpoint, card, upload)
    return ended(verdict, why, card, publication)


def _decision(
    run: Run,
    basis: Basis,
    checkpoint: Checkpoint,
    reports: dict[str, GateReport],
    verdict: ReleaseVerdict,
    why: str,
    card: Card | None = None,
    publication: Publication | None = None,
) -> Decision:
    return Decision(
        verdict=verdict,
        published=publication is not None,
        why=why,
        release=run.spec.name,
        run=run.id,
        basis=basis,
        checkpoint=str(checkpoint.path),
        card=str(run.folder / card.path.name) if card else None,
        publication=publication,
        gates=reports,
        reused=[note.stage for note in run.ledger if note.reused],
        seconds={n.stage: round(n.seconds, 3) for n in run.ledger if not n.skipped},
    )
