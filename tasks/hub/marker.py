"""The mark of a release in what was published: which one it is, and the digest of its files."""

from __future__ import annotations

import json
from pathlib import Path

RELEASE_FILE = "evidence/release.json"
_LINE = "quantgate release "


def read_release(root: Path) -> dict[str, str]:
    """What `evidence/release.json` says; empty when there is none that can be read."""
    try:
        data = json.loads((root / RELEASE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(key): value for key, value in data.items() if isinstance(value, str)}


def marker_text(release_id: str, digest: str) -> str:
    """The mark as it is published: `digest` is the content digest of all other files."""
    return json.dumps({"release_id": release_id, "digest": digest}, indent=2) + "\n"


def write_release(root: Path, release_id: str, digest: str) -> None:
    """Write the mark into a folder."""
    path = root / RELEASE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(marker_text(release_id, digest), encoding="utf-8")


def commit_description(release_id: str, digest: str) -> str:
    """The description of a release's commit on the Hub, by which it is found again."""
    return f"{_LINE}{release_id}\ncontent sha256 {digest}"


def is_commit_of(message: str, release_id: str) -> bool:
    """Whether a commit's message carries the mark of this release."""
    return f"{_LINE}{release_id}" in (line.strip() for line in message.splitlines())
