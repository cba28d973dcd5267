"""The engine's log on stderr: SGLang's line form, so that one reader serves both."""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("quantgate.reference")


def configure() -> None:
    """Send the engine's lines, and only them, to stderr as `[2026-01-31 12:00:00] words`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def say(words: str, *values: object) -> None:
    """Log one line."""
    LOGGER.info(words, *values)
