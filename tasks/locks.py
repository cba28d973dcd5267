"""Locks that the kernel drops with their holder, however that ends.

A lock is a flock on a file that names its holder. It lasts exactly as long as the process that took
it, and on a shared volume it holds across containers and machines.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from tasks.progress import Progress, silent

PATIENCE = 24 * 3600.0
"""Seconds to wait for what another run holds."""
POLL = 1.0


class HeldError(Exception):
    """Somebody else holds the lock still; `args[0]` says who."""


@contextmanager
def locked(
    file: Path, holder: str, *, patience: float = PATIENCE, waiting: Progress = silent
) -> Iterator[None]:
    """Hold the lock `file` for the length of a `with` block.

    Args:
        file: created if need be, and left there.
        holder: who asks, for those who wait.
        patience: seconds to wait, at most.
        waiting: told who holds it meanwhile.

    Raises:
        HeldError: still held after `patience`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience
    with file.open("a+") as held:
        while not _taken(held):
            if time.monotonic() >= until:
                raise HeldError(_holder(held))
            waiting(0.0, f"held by {_holder(held)}")
            time.sleep(POLL)
        _sign(held, holder)
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(file: IO[str], holder: str) -> None:
    file.seek(0)
    file.truncate()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    json.dump({"run": holder, "pid": os.getpid(), "since": since}, file)
    file.flush()


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        signed = json.loads(file.read())
        return f"run {signed['run']} (pid {signed['pid']}) since {signed['since']}"
    except (ValueError, KeyError, TypeError):
        return "another run"
