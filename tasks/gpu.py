"""One GPU, one user: a lock that the kernel drops with its holder.

    <folder>/gpu-<uuid>.lock      held (flock) while a run uses that GPU; names its holder

A lease on a server can be lost while its holder works on. This lock cannot: it lasts exactly as
long as the process that took it, however that ends, and on a shared volume it holds across
containers and machines.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from tasks.errors import TransientError
from tasks.progress import Progress, silent
from tasks.spec import ReleaseSpec, ServeSpec

DRIVER = Path("/proc/driver/nvidia/gpus")
PATIENCE = 24 * 3600.0
"""Seconds to wait for a GPU that another run holds."""
POLL = 1.0


def visible_gpus(driver: Path = DRIVER) -> tuple[str, ...]:
    """The UUIDs of this machine's NVIDIA GPUs, sorted; none when CUDA_VISIBLE_DEVICES hides all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"} or not driver.is_dir():
        return ()
    found = []
    for folder in driver.iterdir():
        try:
            text = (folder / "information").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        uuid = re.search(r"GPU UUID:\s*(\S+)", text)
        found.append(uuid.group(1) if uuid else folder.name)
    return tuple(sorted(found))


def quantizes_on_gpu(spec: ReleaseSpec) -> bool:
    """Whether calibration takes a GPU where there is one."""
    return spec.quantize.device != "cpu"


def serves_on_gpu(serve: ServeSpec) -> bool:
    """Whether the engine that this spec starts takes a GPU where there is one."""
    start = serve.start
    if start.how == "url":
        return False
    if start.how == "container":
        return start.gpus == "all"
    return serve.engine != "reference" or any("cuda" in flag for flag in serve.flags)


@contextmanager
def gpu_lock(
    folder: Path,
    holder: str,
    gpus: Sequence[str],
    progress: Progress = silent,
    patience: float = PATIENCE,
) -> Iterator[None]:
    """Hold all of `gpus` for the length of a `with` block, waiting for whoever holds one.

    Args:
        folder: where the lock files lie; on a shared volume for GPUs that machines share.
        holder: who asks, for those who wait.
        gpus: UUIDs; always taken in sorted order, so that two runs never wait for each other.
        progress: told whom this waits for.
        patience: seconds to wait, at most.

    Raises:
        TransientError: `gpu-busy`: still held after `patience`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience
    with ExitStack() as held:
        for gpu in sorted(gpus):
            file = held.enter_context((folder / f"gpu-{_plain(gpu)}.lock").open("a+"))
            _take(file, gpu, until, progress)
            _sign(file, holder)
        yield


def _take(file: IO[str], gpu: str, until: float, progress: Progress) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            words = f"waiting for GPU {gpu}, held by {_holder(file)}"
        if time.monotonic() >= until:
            raise TransientError("gpu-busy", f"Gave up {words}.", "Let that run end, or cancel it.")
        progress(0.0, words)
        time.sleep(POLL)


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


def _plain(gpu: str) -> str:
    return re.sub(r"[^\w.-]", "_", gpu)
