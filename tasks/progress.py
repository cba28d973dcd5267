"""How a long step tells how far it is, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and a few words on what is under way."""


def silent(fraction: float, words: str) -> None:
    """The listener that listens to nothing."""
