"""Publish a release: what is checked beforehand, and the two places where it can go."""

from __future__ import annotations

import os
from pathlib import Path

from tasks.errors import BadInputError
from tasks.hub.folder import publish_folder
from tasks.spec import PublishSpec

__all__ = ["preflight_publish", "publish_folder"]


def preflight_publish(spec: PublishSpec) -> None:
    """Check, before anything is spent, that the release could be published.

    Raises:
        BadInputError: the place cannot be written, or is taken.
    """
    if spec.to == "folder":
        _check_folder(spec.folder)


def _check_folder(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise BadInputError(
            "publish-unwritable",
            f"publish.folder: {existing} cannot be written.",
            "Give a folder that can be written.",
        )
