"""Cached artifacts: addressed by what made them, verified before reuse, safe to kill at any moment.

    .quantgate/store/<stage>/<key>/files/       what the stage wrote
    .quantgate/store/<stage>/<key>/entry.json   its record and manifest
    .quantgate/building/<stage>-<key>/          under construction
    .quantgate/locks/<stage>-<key>.lock         held (flock) while it is built

An artifact is built beside the store and renamed into it, so what the store holds is whole. A lock
falls with its holder, so a killed run never blocks the next one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tasks.artifacts import Record
from tasks.checkpoint.manifest import Manifest, quick_faults, take_manifest
from tasks.errors import QuantgateError, TransientError
from tasks.locks import PATIENCE, HeldError, locked
from tasks.progress import Progress, silent

PROJECT = Path(__file__).resolve().parent.parent


class EntryFile(Record):
    """What `entry.json` holds."""

    stage: str
    key: str
    inputs: dict[str, Any]
    created: datetime
    seconds: float
    record: dict[str, Any]
    manifest: Manifest


@dataclass(frozen=True)
class Entry:
    """A finished artifact: its folder, its record, and whether this run had to build it."""

    stage: str
    key: str
    folder: Path
    record: dict[str, Any]
    digest: str
    seconds: float
    created: datetime
    reused: bool

    @property
    def files(self) -> Path:
        """The folder that the stage wrote."""
        return self.folder / "files"


class Store:
    """The artifact store under `root/.quantgate`."""

    def __init__(self, root: Path) -> None:
        self.home = root.resolve() / ".quantgate"

    def find(self, stage: str, inputs: Mapping[str, Any]) -> Entry | None:
        """The artifact that these inputs made, if it is still as it was written; else None."""
        return self._read(self.home / "store" / stage / key_of(inputs))

    def get_or_build(
        self,
        stage: str,
        inputs: Mapping[str, Any],
        build: Callable[[Path], Mapping[str, Any]],
        *,
        resume: bool = False,
        holder: str = "",
        waiting: Progress = silent,
        patience: float = PATIENCE,
    ) -> Entry:
        """The artifact that these inputs made, built by `build(folder) -> record` if need be.

        With `resume`, `build` finds in its folder what a killed run left there; without, it
        starts from an empty one. A failed build leaves nothing behind unless it can resume.
        What another run is building is waited for, `patience` seconds at most; `waiting` is told
        who that is, and `holder` is what others are told of this one.

        Raises:
            TransientError: `store-busy`: another run is still building the same artifact.
            QuantgateError: the disk is full.
        """
        key = key_of(inputs)
        with self._locked(stage, key, holder, waiting, patience):
            found = self._read(self.home / "store" / stage / key)
            if found is not None:
                return found
            started = time.monotonic()
            folder = self._building(stage, key, resume=resume)
            try:
                record = build(folder / "files")
                self._seal(folder, stage, key, inputs, record, time.monotonic() - started)
            except BaseException as error:
                if not resume:
                    shutil.rmtree(folder, ignore_errors=True)
                if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                    raise QuantgateError(
                        "no-space",
                        f"{stage}: the disk of {self.home} is full.",
                        "Free space (quantgate store gc) and run again.",
                    ) from error
                raise
            final = self.home / "store" / stage / key
            self._rename(folder, final)
            built = self._read(final)
            if built is None:
                raise QuantgateError(
                    "store-damaged", f"{final} changed while it was written.", "Run again."
                )
            return _as_built(built)

    def entries(self) -> Iterator[Entry]:
        """All artifacts that are still whole, oldest first."""
        folders = sorted((self.home / "store").glob("*/*"))
        found = [entry for folder in folders if (entry := self._read(folder)) is not None]
        yield from sorted(found, key=lambda entry: entry.created)

    def remove(self, entry: Entry) -> None:
        """Take one artifact out of the store."""
        self._discard(entry.folder)

    def sweep(self) -> list[str]:
        """Remove what dead runs left under construction; returns the names removed."""
        removed = []
        for folder in sorted((self.home / "building").glob("*")):
            stage, _, key = folder.name.rpartition("-")
            try:
                with self._locked(stage, key, "store gc", silent, 0):
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(folder.name)
            except QuantgateError:
                continue
        return removed

    def _read(self, folder: Path) -> Entry | None:
        try:
            held = EntryFile.model_validate_json((folder / "entry.json").read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, OSError):
            self._discard(folder)
            return None
        if quick_faults(folder / "files", held.manifest):
            self._discard(folder)
            return None
        return Entry(
            stage=held.stage,
            key=held.key,
            folder=folder,
            record=held.record,
            digest=held.manifest.digest,
            seconds=held.seconds,
            created=held.created,
            reused=True,
        )

    def _building(self, stage: str, key: str, *, resume: bool) -> Path:
        folder = self.home / "building" / f"{stage}-{key}"
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        (folder / "files").mkdir(parents=True, exist_ok=True)
        return folder

    def _seal(
        self,
        folder: Path,
        stage: str,
        key: str,
        inputs: Mapping[str, Any],
        record: Mapping[str, Any],
        seconds: float,
    ) -> None:
        _sync_tree(folder / "files")
        entry = EntryFile(
            stage=stage,
            key=key,
            inputs=json.loads(canonical(inputs)),
            created=datetime.now(UTC),
            seconds=seconds,
            record=json.loads(canonical(record)),
            manifest=take_manifest(folder / "files"),
        )
        write_whole(folder / "entry.json", entry.model_dump_json(indent=2))

    def _rename(self, folder: Path, final: Path) -> None:
        self._discard(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(final)
        _sync(final.parent)

    def _discard(self, folder: Path) -> None:
        """Remove an entry; moved aside first, so that no reader sees half of it."""
        if not folder.exists():
            return
        aside = self.home / "building" / f"discarded-{os.getpid()}-{folder.name}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def _locked(
        self, stage: str, key: str, holder: str, waiting: Progress, patience: float
    ) -> Iterator[None]:
        file = self.home / "locks" / f"{stage}-{key}.lock"
        with ExitStack() as held:
            try:
                held.enter_context(locked(file, holder, patience=patience, waiting=waiting))
            except HeldError as error:
                raise TransientError(
                    "store-busy",
                    f"{stage} {key[:12]} in {self.home} is being made by {error}.",
                    "Wait for it, or give this run its own --root.",
                ) from None
            yield


def key_of(inputs: Mapping[str, Any]) -> str:
    """The address of an artifact: sha256 of its inputs in canonical JSON, 24 hex digits."""
    return hashlib.sha256(canonical(inputs).encode()).hexdigest()[:24]


def canonical(value: Any) -> str:
    """JSON with sorted keys; pydantic models, paths and times as their own text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def code_digest(*parts: str) -> str:
    """sha256 over the Python files and templates of these rooms, relative to the project."""
    digest = hashlib.sha256()
    for part in parts:
        path = PROJECT / part
        found = [*path.rglob("*.py"), *path.rglob("*.j2")] if path.is_dir() else [path]
        for file in sorted(found):
            digest.update(str(file.relative_to(PROJECT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def file_digest(path: Path | None) -> str | None:
    """sha256 of a file's bytes; None for no file."""
    if path is None:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync(path.parent)


def _as_built(entry: Entry) -> Entry:
    return Entry(**{**entry.__dict__, "reused": False})


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Path | datetime):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical JSON")


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            _sync(Path(folder) / name)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
