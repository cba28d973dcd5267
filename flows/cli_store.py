"""`quantgate store ls|gc`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from flows.console import Outcome, command, table
from tasks.run import default_root
from tasks.store import Entry, Store

Root = Annotated[Path | None, typer.Option(help="Folder that holds .quantgate/.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "ls")(list_command)
    command(app, "gc")(prune_command)


def list_command(root: Root = None) -> Outcome:
    """List the artifacts, oldest first."""
    entries = list(Store(root or default_root()).entries())
    rows = [
        (
            entry.stage,
            entry.key[:12],
            f"{entry.created:%Y-%m-%d %H:%M}",
            _mib(entry),
            entry.digest[:12],
        )
        for entry in entries
    ]
    columns = ("stage", "key", "made (UTC)", "MiB", "digest")
    return Outcome(
        payload={"artifacts": [_described(entry) for entry in entries]},
        shown=[table("artifacts", columns, rows)],
    )


def prune_command(
    older_than: Annotated[float, typer.Option(min=0, help="Days since it was made.")] = 30.0,
    root: Root = None,
) -> Outcome:
    """Remove artifacts that are older, and what dead runs left under construction."""
    store = Store(root or default_root())
    before = datetime.now(UTC) - timedelta(days=older_than)
    old = [entry for entry in store.entries() if entry.created < before]
    for entry in old:
        store.remove(entry)
    swept = store.sweep()
    return Outcome(
        payload={"removed": [_described(entry) for entry in old], "swept": swept},
        shown=[f"removed {len(old)} artifacts and {len(swept)} unfinished ones"],
    )


def _described(entry: Entry) -> dict[str, str | int]:
    return {
        "stage": entry.stage,
        "key": entry.key,
        "created": entry.created.isoformat(),
        "bytes": _bytes(entry),
        "digest": entry.digest,
    }


def _bytes(entry: Entry) -> int:
    return sum(file.stat().st_size for file in entry.files.rglob("*") if file.is_file())


def _mib(entry: Entry) -> str:
    return f"{_bytes(entry) / 2**20:.1f}"
