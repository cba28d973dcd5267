"""What a run keeps of its card, so that it can be rendered or published again from its folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from tasks.artifacts import Card, Record
from tasks.card.material import CardMaterial
from tasks.errors import BadInputError

NAME = "card.json"


class KeptCard(Record):
    """A card and what it was made of."""

    card: Card
    material: CardMaterial


def read_kept(folder: Path) -> KeptCard:
    """What the run in `folder` kept.

    Raises:
        BadInputError: no folder of a run that came as far as its card.
    """
    try:
        return KeptCard.model_validate_json((folder / NAME).read_bytes())
    except OSError as error:
        raise BadInputError(
            "no-card",
            f"--release {folder}: no {NAME} in it.",
            "Give the folder of a run that came as far as its card: releases/NAME/RUN.",
        ) from error
    except ValidationError as error:
        raise BadInputError(
            "card-unreadable", f"--release {folder}: {NAME} cannot be read.", "Run it again."
        ) from error
