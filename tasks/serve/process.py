"""The process engine: a command in a session of its own, under guard, named after its run.

Three things end it: `stop` (always called by `serve`'s own `finally`), the guard (when this program
dies), and `end_leftovers` (at the next start, when the guard was killed too).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tasks.errors import BadInputError, TransientError
from tasks.serve import procfs
from tasks.spec import ServeSpec

GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL."""
PIDFILE_SUFFIX = ".engine.json"
_MARK = "QUANTGATE_ENGINE"


@dataclass(frozen=True)
class EngineRecord:
    """A pidfile's content: which process serves for which run, and who started it.

    `marker` stands in the environment of the engine and of all its children; `start` and
    `owner_start` tell a process from a later one with the same pid.
    """

    run: str
    marker: str
    owner: int
    owner_start: str | None
    pid: int | None = None
    start: str | None = None

    @classmethod
    def read(cls, pidfile: Path) -> EngineRecord | None:
        """The record in `pidfile`; None when there is none or it is damaged."""
        try:
            return cls(**json.loads(pidfile.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, pidfile: Path) -> None:
        """Put the record in place, whole or not at all."""
        draft = pidfile.with_name(f".{pidfile.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(self)), encoding="utf-8")
        draft.replace(pidfile)

    def alive(self) -> bool:
        """Whether the engine's process still runs."""
        return self.pid is not None and procfs.alive(self.pid, self.start)

    def owner_alive(self) -> bool:
        """Whether the program that started the engine still runs."""
        return procfs.alive(self.owner, self.owner_start)

    def members(self) -> set[int]:
        """Every living process of the engine: its session's, and those that carry its mark."""
        found = set(procfs.marked(f"{_MARK}={self.marker}"))
        if self.pid is not None:
            found.update(procfs.session_members(self.pid, self.start))
        return found - {os.getpid()}


class EngineProcess:
    """One started engine. `stop` may be called any number of times, from anywhere."""

    def __init__(self, child: subprocess.Popen[bytes], pipe: int, pidfile: Path) -> None:
        self._child = child
        self._pipe: int | None = pipe
        self.pidfile = pidfile

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code (128 + signal when killed); None while it runs."""
        return self._child.poll()

    def stop(self, grace: float = GRACE) -> None:
        """End the engine and all its children: SIGTERM, then SIGKILL after `grace` seconds."""
        end_engine(self.pidfile, grace)
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(GRACE)


def start_process(
    command: Sequence[str], environment: Mapping[str, str], log: Path, run: str
) -> EngineProcess:
    """Start `command` with its output in `log`; its pidfile lies beside the log.

    An older log there is kept as `NAME.1`, `NAME.2`, ...; the new one is this engine's alone.

    Raises:
        TransientError: no process could be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    set_aside(log)
    pidfile = pidfile_of(log.parent, run)
    record = EngineRecord(
        run=run, marker=uuid.uuid4().hex, owner=os.getpid(), owner_start=procfs.started(os.getpid())
    )
    record.write(pidfile)
    guard = Path(__file__).with_name("guard.py")
    reader, writer = os.pipe()
    try:
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(guard), str(GRACE), *command],
                stdin=reader,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**environment, _MARK: record.marker},
                start_new_session=True,
            )
    except OSError as error:
        os.close(writer)
        pidfile.unlink(missing_ok=True)
        raise TransientError(
            "engine-start", f"{command[0]} could not be started: {error}.", "Try again."
        ) from error
    finally:
        os.close(reader)
    replace(record, pid=child.pid, start=procfs.started(child.pid)).write(pidfile)
    return EngineProcess(child, writer, pidfile)


def pidfile_of(folder: Path, run: str) -> Path:
    """Where the pidfile of `run` lies."""
    return folder / (re.sub(r"[^\w.-]", "_", run) + PIDFILE_SUFFIX)


def end_engine(pidfile: Path, grace: float = GRACE) -> bool:
    """End the engine that `pidfile` names, then remove the file; whether any process was ended."""
    record = EngineRecord.read(pidfile)
    if record is None:
        pidfile.unlink(missing_ok=True)
        return False
    ended = _end(record, grace)
    now = EngineRecord.read(pidfile)
    # What not even SIGKILL ended keeps its file: the next start tries again.
    if (now is None or now.marker == record.marker) and not record.members():
        pidfile.unlink(missing_ok=True)
    return ended


def _end(record: EngineRecord, grace: float) -> bool:
    members = record.members()
    if not members:
        return False
    began = time.monotonic()
    _signal(members, signal.SIGTERM)
    while left := record.members():
        waited = time.monotonic() - began
        if waited > grace + GRACE:
            break
        if waited > grace:
            _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return True


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        procfs.send(pid, number, procfs.started(pid))


def pidfiles(root: Path, depth: int = 6) -> Iterator[Path]:
    """Every pidfile under `root`, hidden folders left out."""
    with contextlib.suppress(OSError):
        for entry in sorted(root.iterdir()):
            if entry.name.endswith(PIDFILE_SUFFIX) and not entry.name.startswith("."):
                yield entry
            elif depth and entry.is_dir() and not entry.is_symlink() and entry.name[0] != ".":
                yield from pidfiles(entry, depth - 1)


def end_leftovers(root: Path, grace: float = GRACE) -> list[str]:
    """End engines under `root` whose starter is dead; the names of their runs.

    An engine whose starter lives is left alone, and so is a process that merely has its pid.
    """
    ended = []
    for pidfile in pidfiles(root):
        record = EngineRecord.read(pidfile)
        if record is None or record.owner_alive():
            continue
        if end_engine(pidfile, grace):
            ended.append(record.run)
    return ended


def interpreter(name: str | None) -> str:
    """The interpreter to start: this one, or the one that the spec names.

    Raises:
        BadInputError: there is no such program.
    """
    if name is None:
        return sys.executable
    found = shutil.which(name)
    if found is None:
        raise BadInputError(
            "serve-python",
            f"serve.start.python: {name} is no program.",
            "Name an interpreter that has the engine installed.",
        )
    return str(Path(found).absolute())


def fill(words: tuple[str, ...], spec: ServeSpec, **values: object) -> tuple[str, ...]:
    """`words` with {python}, {checkpoint}, {port}, {model_name}, {context_length} filled in."""
    table = {**values, "model_name": spec.model_name, "context_length": spec.context_length}
    out = []
    for given in words:
        word = given
        for name, value in table.items():
            word = word.replace("{" + name + "}", str(value))
        out.append(word)
    return tuple(out)


def tail(log: Path | None, lines: int = 12) -> str:
    """The log's last lines, for an error message; a hint when there is no log."""
    if log is None:
        return "(no log)"
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return "(no log)"
    kept = [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
    return "\n".join(kept) or "(the log is empty)"


def set_aside(log: Path) -> None:
    """Keep an older log as `NAME.1`, `NAME.2`, ...: a log tells of one engine only."""
    if not log.exists() or log.stat().st_size == 0:
        return
    number = 1
    while log.with_name(f"{log.name}.{number}").exists():
        number += 1
    log.rename(log.with_name(f"{log.name}.{number}"))
