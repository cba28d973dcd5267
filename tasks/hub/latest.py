"""Which revision a source is at now, without downloading it."""

from __future__ import annotations

import hashlib

from tasks.errors import BadInputError
from tasks.hub.patience import patiently
from tasks.hub.session import Hub
from tasks.spec import FolderSource, HubSource


def source_stamp(source: HubSource | FolderSource, hub: Hub | None = None) -> str:
    """The Hub's commit for `source.revision`, or a digest of a folder's names, sizes and times.

    Raises:
        BadInputError: no such folder, repository or revision.
        TransientError: the Hub could not be reached.
    """
    if isinstance(source, FolderSource):
        return _folder_stamp(source)
    session = hub or Hub.connect()
    what = f"source {source.repo}@{source.revision}"
    info = patiently(what, lambda: session.api.model_info(source.repo, revision=source.revision))
    return str(info.sha)


def _folder_stamp(source: FolderSource) -> str:
    if not source.path.is_dir():
        raise BadInputError(
            "source-missing",
            f"source.path: {source.path} is no folder.",
            "Give the source model's folder.",
        )
    digest = hashlib.sha256()
    for file in sorted(source.path.rglob("*")):
        if file.is_file():
            found = file.stat()
            digest.update(f"{file.relative_to(source.path)}\0{found.st_size}\0".encode())
            digest.update(f"{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()
