"""What hf_xet laid down in a local CAS folder: which sha256 each uploaded file has.

The client writes xorbs and shards into the folder of a `local:///` URL. A shard's file section
lists for each file its xet hash and, in an extension, its sha256; layout as the Xet protocol
specification gives it (48-byte records; the flags in the fifth 8 bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

RECORD = 48
WITH_VERIFICATION = 1 << 31
WITH_METADATA = 1 << 30
BOOKEND = b"\xff" * 32


def uploaded_files(cas: Path) -> dict[str, tuple[str, int]]:
    """sha256 -> (xet hash, bytes) for every file in the folder's shards."""
    found = {}
    for shard in sorted((cas / "xet" / "xorbs" / "shards").glob("*.mdb")):
        found.update({sha: (xet, size) for sha, xet, size in _files(shard.read_bytes())})
    return found


def _files(shard: bytes) -> Iterator[tuple[str, str, int]]:
    place = RECORD
    while place + RECORD <= len(shard) and shard[place : place + 32] != BOOKEND:
        digest = shard[place : place + 32]
        flags, entries = struct.unpack_from("<II", shard, place + 32)
        place += RECORD
        size = 0
        for number in range(entries):
            size += struct.unpack_from("<I", shard, place + number * RECORD + 36)[0]
        place += entries * RECORD
        if flags & WITH_VERIFICATION:
            place += entries * RECORD
        if flags & WITH_METADATA:
            yield _hex(shard[place : place + 32]), _hex(digest), size
            place += RECORD


def _hex(digest: bytes) -> str:
    """Xet writes a hash as four little-endian 64-bit numbers."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", digest))
