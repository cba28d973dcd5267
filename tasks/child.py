"""Run one function in a child process: its memory, its libraries and its crashes stay there.

Torch and ModelOpt are imported in children only, so that a run that reuses everything imports
neither, and a cancelled or killed run takes its children along.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, validate_call

from tasks import errors
from tasks.errors import QuantgateError
from tasks.progress import Progress, silent
from tasks.store import PROJECT, canonical

PR_SET_PDEATHSIG = 1  # linux/prctl.h
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""By these torchrun tells a process which of how many it is."""


def call_in_child(
    target: str,
    arguments: Mapping[str, Any],
    log: Path,
    progress: Progress = silent,
    launcher: Sequence[str] = (),
) -> Any:
    """`module:function(**arguments, progress=...)` in a child process; its return value as JSON.

    Arguments travel as JSON and are validated against the function's annotations. What the child
    prints goes to `log`. The child dies with this process, and is killed when this call ends early.

    Args:
        target: `module:function`.
        arguments: its arguments.
        log: what the child prints is added to it.
        progress: told what the function tells.
        launcher: arguments of Python that start the child's module, in place of none: those of
            torchrun start it several times, and the process of rank 0 answers.

    Raises:
        QuantgateError: the child's own error, `rank-died` when one of several processes ended
            first, or `child-died` when it ended without a result.
    """
    with tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
        job = Path(scratch) / "job.json"
        job.write_text(canonical({"target": target, "arguments": dict(arguments)}))
        with log.open("ab") as output:
            start = output.tell()
            child = subprocess.Popen(
                [sys.executable, *launcher, "-m", "tasks.child", str(job)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=_environment(),
                start_new_session=True,
                text=True,
            )
            try:
                _follow(child, progress)
            finally:
                _end(child)
        return _result(job.with_name("result.json"), child.returncode, target, log, start)


def _environment() -> dict[str, str]:
    """This process's, with the project importable, and without another torchrun's ranks."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(PROJECT), *([inherited] if inherited else [])])
    kept = {name: value for name, value in os.environ.items() if name not in RANKS}
    return {**kept, "PYTHONPATH": path}


def _follow(child: subprocess.Popen[str], progress: Progress) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        fraction, words = json.loads(line)
        progress(fraction, words)
    child.wait()


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _result(path: Path, code: int, target: str, log: Path, start: int) -> Any:
    if not path.is_file():
        _tell_rank(target, log, start)
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise QuantgateError(
            "child-died",
            f"{target} ended without a result ({cause}).",
            f"Read {log}; signal 9 is often a lack of memory.",
        )
    result = json.loads(path.read_text())
    if "error" in result:
        kind = getattr(errors, result["error"].pop("kind"))
        raise kind(**result["error"])
    return result["value"]


def _tell_rank(target: str, log: Path, start: int) -> None:
    """Raise `rank-died` if torchrun's report, in the log from `start` on, names a process."""
    report = log.read_bytes()[start:].decode(errors="replace").partition("Root Cause")[2]
    found = re.search(r"rank +: (\d+).*?exitcode +: (-?\d+)", report, re.DOTALL)
    if found is None:
        return
    rank, code = int(found[1]), int(found[2])
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    raise QuantgateError(
        "rank-died",
        f"{target}: the process of rank {rank} ended first ({cause}); the others were stopped.",
        f"Read {log}; signal 9 is often a lack of memory. Run again to go on.",
    )


def _serve(job: Path) -> None:
    """The child's side: run the job, write `result.json` beside it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.environ.get("RANK", "0") == "0"
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print belongs in the log

    def progress(fraction: float, words: str) -> None:
        if answers:
            told.write(json.dumps([fraction, words]) + "\n")

    request = json.loads(job.read_text())
    module, _, name = request["target"].partition(":")
    try:
        function = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(
            getattr(import_module(module), name)
        )
        value = function(**request["arguments"], progress=progress)
        result = {"value": value.model_dump(mode="json") if isinstance(value, BaseModel) else value}
    except QuantgateError as error:
        result = {"error": {"kind": type(error).__name__, **error.as_dict()}}
    if answers:
        job.with_name("result.json").write_text(canonical(result))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
