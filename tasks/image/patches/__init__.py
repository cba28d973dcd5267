"""Source patches for the serving image: standard library only, so that an image can run them.

Each patch is a module with the same five names: `NAME`, `HOLDS` (what must hold afterwards),
`VERSIONS` (where it is needed, upstream, or has moved, as read from the released sources; told to
people, never asked by the code), `REFERENCE`, and `plan` (look at a tree by structure, say its
state, and bring the edits that are needed).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PATCHES_FOLDER = Path(__file__).parent
"""This folder: what an image gets, and what `patch_digest` is taken over."""


def patches(sglang: Path, check: bool = False) -> dict[str, Any]:
    """The command `quantgate patches`, in the project: see `tasks.image.patching.patches`."""
    from tasks.image.patching import patches as command

    return command(sglang, check)
