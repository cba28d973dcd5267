"""How a long step tells how far it is, without knowing who listens."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and a few words on what is under way."""


def silent(fraction: float, words: str) -> None:
    """The listener that listens to nothing."""


def throttled(listener: Progress, seconds: float) -> Progress:
    """Pass on the first call, the last (fraction 1) and at most one each `seconds` between."""
    last = float("-inf")

    def tell(fraction: float, words: str) -> None:
        nonlocal last
        now = time.monotonic()
        if fraction >= 1 or now - last >= seconds:
            last = now
            listener(fraction, words)

    return tell


def both(first: Progress, second: Progress) -> Progress:
    """Tell two listeners."""

    def tell(fraction: float, words: str) -> None:
        first(fraction, words)
        second(fraction, words)

    return tell
