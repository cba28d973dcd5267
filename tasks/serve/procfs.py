"""Who a process really is, from Linux's /proc: a bare pid may have been given to someone else."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def started(pid: int) -> str | None:
    """When `pid` started, as `boot-id:ticks`, which no other process ever shares; None when gone.

    A zombie counts as gone.
    """
    fields = _stat(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return f"{_boot_id()}:{fields[19]}"


def alive(pid: int, start: str | None) -> bool:
    """Whether `pid` still is the process that started at `start` (see `started`)."""
    return start is not None and started(pid) == start


def marked(marker: str) -> Iterator[int]:
    """Every living process whose environment holds the entry `marker` (`NAME=value`)."""
    entry = marker.encode()
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            if entry in environment and started(int(folder.name)) is not None:
                yield int(folder.name)


def session_members(leader: int, start: str | None) -> Iterator[int]:
    """Living processes in the session that `leader` leads, while it still is who it was."""
    if not alive(leader, start):
        return
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            fields = _stat(int(folder.name))
            if fields and fields[3] == str(leader) and fields[0] not in {"Z", "X"}:
                yield int(folder.name)


def send(pid: int, number: signal.Signals, start: str | None) -> bool:
    """Signal `pid` if it still started at `start`; the check and the signal hold one process."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not alive(pid, start):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (field 3 of proc(5)); None when gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
