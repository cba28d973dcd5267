"""A finished run once more, from its folder: its card rendered, its release published."""

from __future__ import annotations

from pathlib import Path

from flows.decide import Decision
from tasks.artifacts import Card, ReleaseVerdict
from tasks.card.kept import read_kept
from tasks.card.render import render_card
from tasks.checkpoint.manifest import take_manifest
from tasks.errors import BadInputError, QuantgateError
from tasks.hub.publish import preflight_publish, publish
from tasks.hub.task import release_id
from tasks.store import Store, write_whole


def render_again(folder: Path) -> Card:
    """Renew the regions of the card in a run's folder; what people wrote outside them is kept.

    Raises:
        BadInputError: no such run, or a card whose markers are wrong.
    """
    return render_card(read_kept(folder).material, folder)


def publish_again(folder: Path) -> Decision:
    """Publish what a run released; a run that did not release publishes nothing.

    Raises:
        BadInputError: no such run.
        QuantgateError: the checkpoint is no longer what was gated.
    """
    decision = _decision(folder)
    if decision.verdict is not ReleaseVerdict.RELEASED:
        return decision
    kept = read_kept(folder)
    spec, checkpoint = kept.material.spec.publish, kept.material.checkpoint
    preflight_publish(spec)
    if not checkpoint.path.is_dir() or take_manifest(checkpoint.path).digest != checkpoint.digest:
        raise QuantgateError(
            "checkpoint-changed",
            f"{checkpoint.path} is not the checkpoint that was gated.",
            "Carry out the release again: quantgate release.",
        )
    state = Store(folder.resolve().parents[2]).home / "hub"
    sent = publish(checkpoint.path, kept.card, spec, release_id(checkpoint, kept.card), state)
    decision = decision.model_copy(update={"publication": sent, "published": sent is not None})
    write_whole(folder / "decision.json", decision.model_dump_json(indent=2))
    return decision


def _decision(folder: Path) -> Decision:
    try:
        return Decision.model_validate_json((folder / "decision.json").read_bytes())
    except (OSError, ValueError) as error:
        raise BadInputError(
            "no-decision",
            f"--release {folder}: no decision.json that can be read.",
            "Give the folder of a finished run: releases/NAME/RUN.",
        ) from error
