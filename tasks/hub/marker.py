"""The mark of a release in what was published: which one it is, and the digest of its files."""

from __future__ import annotations

import json
from pathlib import Path

RELEASE_FILE = "evidence/release.json"


def read_release(root: Path) -> dict[str, str]:
    """What `evidence/release.json` says; empty when there is none that can be read."""
    try:
        data = json.loads((root / RELEASE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {str(key): value for key, value in data.items() if isinstance(value, str)}


def write_release(root: Path, release_id: str, digest: str) -> None:
    """Write the mark: `digest` is the content digest of all other files."""
    path = root / RELEASE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"release_id": release_id, "digest": digest}, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")
