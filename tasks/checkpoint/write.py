"""Write a checkpoint's files so that a kill at any moment leaves the old file or the new one."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tasks.checkpoint.header import DTYPES
from tasks.checkpoint.survey import INDEX

PlannedTensor = tuple[str, str, Sequence[int]]
"""Name, dtype in safetensors' spelling, shape."""


def write_shard(
    path: Path,
    plan: Sequence[PlannedTensor],
    arrays: Iterable[tuple[str, np.ndarray[Any, Any]]],
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write one safetensors file as a stream; only one array need exist at a time.

    The arrays may come in any order; each is written at the place that the plan gives it. Wide
    dtypes are laid first, as the safetensors library does, so that every tensor is aligned.

    Returns:
        The bytes of all tensors (what an index adds up as `total_size`).

    Raises:
        ValueError: an array that is not planned, comes twice, or differs in dtype or shape; a
            planned one that never comes. No file is left behind.
    """
    header, places = _layout(plan, metadata or {"format": "pt"})
    missing = set(places)
    with _replacing(path) as file:
        file.write(header)
        for name, array in arrays:
            if name not in missing:
                raise ValueError(f"{path}: `{name}` is not planned, or came twice")
            missing.remove(name)
            dtype, shape, start = places[name]
            if array.dtype != DTYPES[dtype] or array.shape != shape:
                raise ValueError(
                    f"{path}: `{name}` is {array.dtype}{array.shape}, planned {dtype}{shape}"
                )
            file.seek(len(header) + start)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        if missing:
            raise ValueError(f"{path}: {len(missing)} tensors never came, e.g. {min(missing)}")
    return _total(plan)


def write_index(root: Path, weight_map: Mapping[str, str], total_size: int) -> None:
    """Write the index of a sharded checkpoint: tensor name -> file name, and all tensors' bytes."""
    tree = {
        "metadata": {"total_size": total_size},
        "weight_map": dict(sorted(weight_map.items())),
    }
    write_json(root / INDEX, tree)


def write_json(path: Path, tree: Any) -> None:
    """Write `tree` as indented UTF-8 JSON, atomically."""
    text = json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
    with _replacing(path) as file:
        file.write(text.encode("utf-8"))


def link_or_copy(src: Path, dst: Path) -> None:
    """Make `dst` the same file as `src` (links followed) by a hard link, else by a copy.

    The copy keeps the modification time and is moved into place once complete.

    Raises:
        FileExistsError: `dst` is there already.
    """
    real = src.resolve(strict=True)
    if os.path.lexists(dst):
        raise FileExistsError(dst)
    try:
        os.link(real, dst)
    except OSError:
        with real.open("rb") as source, _replacing(dst) as target:
            shutil.copyfileobj(source, target, 16 * 2**20)
        stamp = real.stat()
        os.utime(dst, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def _layout(
    plan: Sequence[PlannedTensor], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[str, tuple[int, ...], int]]]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    places: dict[str, tuple[str, tuple[int, ...], int]] = {}
    start = 0
    for name, dtype, shape in sorted(plan, key=lambda item: -DTYPES[item[1]].itemsize):
        if name in places:
            raise ValueError(f"`{name}` is planned twice")
        end = start + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        places[name] = (dtype, tuple(shape), start)
        start = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def _total(plan: Sequence[PlannedTensor]) -> int:
    return sum(math.prod(shape) * DTYPES[dtype].itemsize for _, dtype, shape in plan)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
