"""Words and choices that several kinds of text share."""

from __future__ import annotations

import random
from collections.abc import Callable

Maker = Callable[[random.Random], tuple[str, str]]


def words(text: str) -> list[str]:
    """Split a list that is written as one text, at its bars if it has any."""
    return text.split("|") if "|" in text else text.split()


def pick(rng: random.Random, *wordings: str) -> str:
    """Choose one of several wordings."""
    return rng.choice(wordings)


NAMES = words(
    "Tom Ana Ben Mia Leo Zoe Sam Eva Max Ida Kim Jon Amy Dan Lia Rob Nina Paul Ruth Carl Emma "
    "Hugo Vera Omar Tara Igor Lucy Noah Rosa Finn Maya Alan Clara Peter Julia Marco"
)
THINGS = words(
    "apples books coins cards pens cups stamps shells marbles keys stickers beads bottles "
    "buttons candles tickets bricks photos magnets plums lemons badges pencils tiles eggs "
    "flowers ribbons spoons stones chairs"
)
BOXES = words("boxes bags crates baskets trays drawers shelves jars cartons packs")
PLACES = words(
    "the old town|the forest|the harbor|the mountains|the garden|the desert|a quiet village|"
    "the city park|the north coast|a small island|the valley|the river bank|the market square|"
    "the train station|the lighthouse|the countryside|the museum|the snowy hills"
)
