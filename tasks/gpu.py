"""One GPU, one user: a lock that the kernel drops with its holder.

    <folder>/gpu-<uuid>.lock      held (flock) while a run uses that GPU; names its holder

A lease on a server can be lost while its holder works on. This lock cannot (see `tasks.locks`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tasks.errors import TransientError
from tasks.locks import PATIENCE, HeldError, locked
from tasks.progress import Progress, silent
from tasks.spec import ReleaseSpec, ServeSpec

DRIVER = Path("/proc/driver/nvidia/gpus")


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
    with ExitStack() as held:
        for gpu in sorted(gpus):
            file = folder / f"gpu-{_plain(gpu)}.lock"
            wait = _saying(progress, gpu)
            try:
                held.enter_context(locked(file, holder, patience=patience, waiting=wait))
            except HeldError as error:
                raise TransientError(
                    "gpu-busy",
                    f"Gave up waiting for GPU {gpu}, held by {error}.",
                    "Let that run end, or cancel it.",
                ) from None
        yield


def _saying(progress: Progress, gpu: str) -> Progress:
    return lambda fraction, words: progress(fraction, f"waiting for GPU {gpu}, {words}")


def _plain(gpu: str) -> str:
    return re.sub(r"[^\w.-]", "_", gpu)
