"""Where a comparison is kept, and when a card may show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.artifacts import Checkpoint
from tasks.run import Run
from tasks.store import write_whole

NAME = "comparisons.json"


def keep(run: Run, checkpoint: Checkpoint, tables: dict[str, Any]) -> Path:
    """Write the tables into the run's folder, and beside the runs for the next card."""
    content = json.dumps({"checkpoint": checkpoint.digest, **tables}, indent=2)
    write_whole(run.folder / NAME, content)
    write_whole(run.folder.parent / NAME, content)
    return run.folder / NAME


def comparisons_for(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """The tables of the last comparison, if it was made of this very checkpoint; else empty."""
    try:
        held = json.loads((run.folder.parent / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(held, dict) or held.pop("checkpoint", None) != checkpoint.digest:
        return {}
    return held
