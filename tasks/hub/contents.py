"""What a release consists of: every file by its path in the repository, with its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tasks.artifacts import Card
from tasks.checkpoint.survey import walk_files
from tasks.hub.marker import RELEASE_FILE, marker_text

GITATTRIBUTES = ".gitattributes"
UNDIGESTED = frozenset({RELEASE_FILE, GITATTRIBUTES})
MANIFEST = "evidence/manifest.json"
CHUNK = 2**22


@dataclass(frozen=True)
class Item:
    """One file of a release: a file on disk, or a text that exists only in the release."""

    path: str
    size: int
    sha256: str
    origin: Path | None = None
    text: bytes = b""

    def git_oid(self) -> str:
        """What git calls this content: sha1 over `blob <size>`, a zero byte and the bytes."""
        digest = hashlib.sha1(b"blob %d\0" % self.size)
        if self.origin is None:
            digest.update(self.text)
            return digest.hexdigest()
        with self.origin.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        return digest.hexdigest()


def merged(checkpoint: Path, card: Card) -> dict[str, Path]:
    """Path in the repository -> file; the card's files win over equally named ones."""
    wanted = {name: checkpoint / name for name in walk_files(checkpoint)}
    base = card.path.parent
    for path in (card.path, *card.files):
        wanted[path.relative_to(base).as_posix()] = path
    return wanted


def release_items(checkpoint: Path, card: Card, release_id: str) -> list[Item]:
    """Every file of the release, the mark of the release included, sorted by path.

    Digests of the checkpoint's files are those that the card's evidence lists, so that what is
    published is compared with what was measured; other files are digested here.
    """
    listed = _listed(card)
    items = []
    for name, origin in sorted(merged(checkpoint, card).items()):
        known = listed.get(name) if origin.is_relative_to(checkpoint) else None
        sha256 = known or _sha256(origin)
        items.append(Item(name, origin.stat().st_size, sha256, origin))
    text = marker_text(release_id, digest_of(items)).encode("utf-8")
    marker = Item(RELEASE_FILE, len(text), hashlib.sha256(text).hexdigest(), text=text)
    return sorted([*items, marker], key=lambda item: item.path)


def digest_of(items: list[Item]) -> str:
    """Content digest: sha256 over the lines `sha256  path`, sorted by path.

    Left out are the mark, which holds this digest, and .gitattributes, which is the Hub's.
    """
    digests = {item.path: item.sha256 for item in items if item.path not in UNDIGESTED}
    text = "".join(f"{digests[path]}  {path}\n" for path in sorted(digests))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _listed(card: Card) -> dict[str, str]:
    path = card.path.parent / MANIFEST
    if not path.is_file():
        return {}
    files = json.loads(path.read_text(encoding="utf-8")).get("files", {})
    return {str(name): str(entry["sha256"]) for name, entry in files.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
