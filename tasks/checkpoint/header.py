"""The header of one safetensors file, read without trust."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from tasks.errors import BadInputError

MAX_HEADER = 100_000_000
"""Bytes; the safetensors library refuses longer headers too."""

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}
"""Safetensors' spelling of a dtype -> numpy's."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `dtype` in safetensors' spelling, `start` in bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """What one safetensors file says it holds."""

    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]
    length: int
    """Bytes before the data: the length field and the JSON."""


class HeaderError(BadInputError):
    """One thing wrong in a safetensors file; `tensor` names the entry, where it is one entry."""

    def __init__(self, code: str, file: Path, what: str, tensor: str | None = None) -> None:
        super().__init__(code, f"{file}: {what}.", "Fetch or write this file again.")
        self.tensor = tensor
        self.what = what


def read_header(path: Path) -> Header:
    """Read and check the header of the safetensors file at `path`.

    Every entry's dtype, shape and byte range must agree, and the ranges must tile the data without
    hole or overlap up to the end of the file.

    Raises:
        HeaderError: `shard-unreadable` (no safetensors file), `shard-truncated` (data end early),
            `shard-trailing` (bytes that no tensor owns), `tensor-twice`.
    """
    size, raw = _read_raw(path)
    tree = _parse(path, raw)
    metadata = tree.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise HeaderError("shard-unreadable", path, "its __metadata__ is no mapping")
    base = 8 + len(raw)
    tensors = [_entry(path, name, entry, base) for name, entry in tree.items()]
    _check_tiling(path, tensors, base, size)
    return Header(tuple(tensors), {str(k): str(v) for k, v in metadata.items()}, base)


def open_regular(path: Path) -> int:
    """A read-only file descriptor of a regular file; never blocks on a pipe or device.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "no regular file", str(path))
    return descriptor


def _read_raw(path: Path) -> tuple[int, bytes]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise HeaderError("shard-truncated", path, f"{size} bytes, no header")
            length = int.from_bytes(prefix, "little")
            if not 2 <= length <= MAX_HEADER:
                raise HeaderError(
                    "shard-unreadable", path, f"no safetensors file (header length {length})"
                )
            raw = file.read(length)
    except OSError as error:
        raise HeaderError("shard-unreadable", path, str(error.strerror).lower()) from error
    if len(raw) < length:
        raise HeaderError("shard-truncated", path, f"its header ends after {len(raw)} of {length}")
    return size, raw


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(pairs)
        if len(tree) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise HeaderError("tensor-twice", path, f"its header names `{twice}` twice", twice)
        return tree

    try:
        tree = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise HeaderError("shard-unreadable", path, "its header is not JSON") from error
    if not isinstance(tree, dict):
        raise HeaderError("shard-unreadable", path, "its header is no mapping")
    return tree


def _entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    def bad(what: str) -> HeaderError:
        return HeaderError("shard-unreadable", path, f"entry `{name}` {what}", name)

    if not isinstance(entry, dict):
        raise bad("is no mapping")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise bad(f"has the unknown dtype {str(dtype)[:40]}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise bad("has no valid shape or data_offsets")
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise bad(f"takes {nbytes} bytes by shape, {offsets[1] - offsets[0]} by offsets")
    return TensorInfo(name, dtype, tuple(shape), path.name, base + offsets[0], nbytes)


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**60 for n in value)


def _check_tiling(path: Path, tensors: list[TensorInfo], base: int, size: int) -> None:
    end = base
    for tensor in sorted(tensors, key=lambda t: (t.start, t.nbytes)):
        if tensor.start != end:
            what = f"bytes of `{tensor.name}` start at {tensor.start}, expected {end}"
            raise HeaderError("shard-unreadable", path, what, tensor.name)
        end += tensor.nbytes
        if end > size:
            what = f"the file ends at byte {size}, inside `{tensor.name}` (to {end})"
            raise HeaderError("shard-truncated", path, what, tensor.name)
    if end < size:
        raise HeaderError("shard-trailing", path, f"{size - end} bytes after the last tensor")
