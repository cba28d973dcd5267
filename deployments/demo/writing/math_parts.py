"""Parts that all word problems share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from writing.words import BOXES, NAMES, THINGS, pick


@dataclass(frozen=True)
class Cast:
    """The people and things that one problem is about."""

    n: str
    m: str
    k: str
    t: str
    box: str


def draw_cast(rng: random.Random) -> Cast:
    """Choose the people and things of one problem."""
    n, m, k = rng.sample(NAMES, 3)
    return Cast(n, m, k, rng.choice(THINGS), rng.choice(BOXES))


def number(rng: random.Random) -> int:
    """Draw a number of three digits."""
    return rng.randint(101, 999)


def factor(rng: random.Random, low: int = 21) -> int:
    """Draw a number to be multiplied by one digit."""
    return rng.randint(low, 299)


def how_many(rng: random.Random, c: Cast, who: str) -> str:
    """Ask for the number of things that someone ends up with."""
    return pick(
        rng,
        f"How many {c.t} does {who} have now?",
        f"How many {c.t} does {who} have at the end?",
        f"What is the number of {c.t} that {who} has now?",
    )
