"""What a folder held when it was written, and whether it still does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import Field

from tasks.artifacts import Record
from tasks.checkpoint.header import MAX_HEADER, open_regular
from tasks.checkpoint.survey import walk_files
from tasks.errors import BadInputError
from tasks.progress import Progress, silent

HEAD = 2**20
"""Bytes hashed as the head of a file that is no safetensors file."""


class FileEntry(Record):
    """One file as it was."""

    size: int = Field(description="bytes")
    mtime_ns: int
    header_sha256: str = Field(description="safetensors: length and JSON; else the first MiB")
    sha256: str


class Manifest(Record):
    """Every file of a folder; `digest` depends on relative paths and contents alone."""

    files: dict[str, FileEntry] = Field(description="relative posix path -> entry")
    digest: str


def take_manifest(root: Path, progress: Progress = silent) -> Manifest:
    """Digest every file under `root` (`.git` and `.cache` left out).

    Raises:
        BadInputError: no folder, or a file that cannot be read.
    """
    if not root.is_dir():
        raise BadInputError("not-a-folder", f"{root}: no folder.", "Give a folder.")
    names = list(walk_files(root))
    sizes = [_size(root / name) for name in names]
    whole, done = max(1, sum(sizes)), 0
    files: dict[str, FileEntry] = {}
    with _pool() as pool:
        for name, size, entry in zip(
            names, sizes, pool.map(lambda name: _entry(root / name), names), strict=True
        ):
            files[name] = entry
            done += size
            progress(done / whole, f"digested {name}")
    return Manifest(files=files, digest=content_digest(files))


def content_digest(files: dict[str, FileEntry]) -> str:
    """sha256 over the sorted lines `sha256  relative-path`."""
    lines = (f"{files[name].sha256}  {name}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def quick_faults(root: Path, manifest: Manifest) -> list[str]:
    """What no longer holds, judged by names, sizes, times and header hashes; empty when all does.

    A file whose time alone changed is read whole before it is judged.
    """
    return _faults(root, manifest, whole=False)


def full_faults(root: Path, manifest: Manifest) -> list[str]:
    """As `quick_faults`, with every file's whole content hashed again."""
    return _faults(root, manifest, whole=True)


def _faults(root: Path, manifest: Manifest, *, whole: bool) -> list[str]:
    if not root.is_dir():
        return [f"{root}: the folder is gone"]
    extra = [
        f"{name}: not in the manifest" for name in walk_files(root) if name not in manifest.files
    ]
    with _pool() as pool:
        judged = pool.map(
            lambda item: _file_fault(root / item[0], item[1], whole), manifest.files.items()
        )
        named = zip(manifest.files, judged, strict=True)
        return [f"{name}: {fault}" for name, fault in named if fault] + extra


def _file_fault(path: Path, entry: FileEntry, whole: bool) -> str | None:
    try:
        stamp = path.stat()
        if stamp.st_size != entry.size:
            return f"{stamp.st_size} bytes, was {entry.size}"
        if _header_sha256(path) != entry.header_sha256:
            return "its header changed"
        if (whole or stamp.st_mtime_ns != entry.mtime_ns) and _sha256(path) != entry.sha256:
            return "its content changed"
    except FileNotFoundError:
        return "gone"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def _entry(path: Path) -> FileEntry:
    try:
        stamp = path.stat()
        return FileEntry(
            size=stamp.st_size,
            mtime_ns=stamp.st_mtime_ns,
            header_sha256=_header_sha256(path),
            sha256=_sha256(path),
        )
    except OSError as error:
        raise BadInputError(
            "file-unreadable", f"{path}: {error.strerror}.", "Make it readable or remove it."
        ) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(4 * 2**20))
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


def _header_sha256(path: Path) -> str:
    with os.fdopen(open_regular(path), "rb") as file:
        if path.suffix != ".safetensors":
            return hashlib.sha256(file.read(HEAD)).hexdigest()
        prefix = file.read(8)
        length = min(int.from_bytes(prefix, "little"), MAX_HEADER)
        return hashlib.sha256(prefix + file.read(length)).hexdigest()


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
