"""Publish into a folder that looks like a Hub repository: whole or not at all.

    <folder>/<namespace>/<name>/                    the release
    <folder>/<namespace>/.<name>~<release id>/      the next one, while it is built
    <folder>/<namespace>/.<name>~old/               the last one, for an instant
    <folder>/<namespace>/.<name>~lock               held (flock) while one publishes

The release is built beside its place, flushed to disk, and moved there by one rename. Where one
lies there already, the two are exchanged in one system call (renameat2, RENAME_EXCHANGE); on a
file system without it the old one steps aside first, and whoever comes next puts it back if the
run died in between. A kill at any instant leaves the old release or the new one, never a mixture.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.artifacts import Card, Publication
from tasks.checkpoint.manifest import content_digest, take_manifest
from tasks.checkpoint.write import link_or_copy
from tasks.errors import BadInputError, QuantgateError
from tasks.hub.contents import GITATTRIBUTES, UNDIGESTED, merged
from tasks.hub.marker import read_release, write_release
from tasks.spec import PublishSpec

ATTRIBUTES = """\
*.safetensors filter=lfs diff=lfs merge=lfs -text
*.png filter=lfs diff=lfs merge=lfs -text
tokenizer.json filter=lfs diff=lfs merge=lfs -text
"""
LINKED_SUFFIX = ".safetensors"
"""Only weights are hard-linked; what a person may edit in place is copied."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def publish_folder(checkpoint: Path, card: Card, spec: PublishSpec, release_id: str) -> Publication:
    """Publish a checkpoint with its card to `spec.folder/<namespace>/<name>`.

    Publishing the same release again changes nothing, unless what lies there was altered: then it
    is replaced as a whole. Another release is replaced as a whole.

    Args:
        checkpoint: folder with weights, configuration and tokenizer.
        card: the rendered card; its files win over equally named ones of the checkpoint.
        spec: where to.
        release_id: what makes this release this release, recorded in `evidence/release.json`.

    Returns:
        Where it lies; `revision` is the content digest of all its files.

    Raises:
        BadInputError: the place is taken by something that is no release, or cannot be written.
        QuantgateError: the disk is full.
    """
    place = spec.folder / spec.repo
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place):
            _tidy(place)
            _refuse_foreign(place)
            wanted = merged(checkpoint, card)
            if not _is_there(place, wanted, release_id):
                _replace(_build(place, wanted, release_id), place)
            digest = read_release(place)["digest"]
    except OSError as error:
        raise _explained(error, place) from error
    return Publication(to="folder", location=str(place), revision=digest, tag=spec.tag)


def _build(place: Path, wanted: dict[str, Path], release_id: str) -> Path:
    building = place.with_name(f".{place.name}~{release_id}")
    if building.exists():
        shutil.rmtree(building)
    building.mkdir()
    for name, origin in wanted.items():
        target = building / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(LINKED_SUFFIX):
            link_or_copy(origin, target)
        else:
            shutil.copyfile(origin, target)
    if GITATTRIBUTES not in wanted:
        (building / GITATTRIBUTES).write_text(ATTRIBUTES, encoding="utf-8")
    write_release(building, release_id, _digest(building))
    _flush(building)
    return building


def _is_there(place: Path, wanted: dict[str, Path], release_id: str) -> bool:
    """Whether this very release lies there, unaltered: every file's content is read."""
    marker = read_release(place)
    if marker.get("release_id") != release_id or marker.get("digest") is None:
        return False
    return _digest(place) == marker["digest"]


def _digest(root: Path) -> str:
    """Content digest of what lies in a folder, as `tasks.hub.contents.digest_of` takes it."""
    files = take_manifest(root).files
    return content_digest({name: files[name] for name in files if name not in UNDIGESTED})


def _replace(building: Path, place: Path) -> None:
    if not place.exists():
        building.rename(place)
        _flush_folder(place.parent)
        return
    if exchange(building, place):
        old = building
    else:
        old = _aside(place)
        place.rename(old)
        building.rename(place)
    _flush_folder(place.parent)
    shutil.rmtree(old)


def _tidy(place: Path) -> None:
    """Clear what a killed run left; put an old release back that had stepped aside."""
    aside = _aside(place)
    if aside.exists() and not place.exists():
        aside.rename(place)
    for left in place.parent.glob(f".{place.name}~*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}~old")


def _refuse_foreign(place: Path) -> None:
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir() or not read_release(place):
        raise BadInputError(
            "publish-taken",
            f"publish.folder: {place} is there and is no release of this program.",
            "Move it away, or choose another publish.folder or publish.repo.",
        )


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the place's lock; the kernel drops it with a killed holder."""
    with place.with_name(f".{place.name}~lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders atomically; False where the system or file system cannot.

    Raises:
        OSError: it can, and failed.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if call(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _flush(folder: Path) -> None:
    """Bring all that lies in a folder to disk, so that the rename cannot overtake it."""
    for base, _, names in os.walk(folder):
        for name in names:
            _flush_one(Path(base) / name)
        _flush_folder(Path(base))


def _flush_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_flush_folder = _flush_one


def _explained(error: OSError, place: Path) -> QuantgateError:
    if error.errno == errno.ENOSPC:
        return QuantgateError(
            "no-space", f"publish.folder: the disk of {place} is full.", "Free space, run again."
        )
    return BadInputError(
        "publish-unwritable",
        f"publish.folder: {error.filename or place}: {error.strerror}.",
        "Give a folder that can be written.",
    )
