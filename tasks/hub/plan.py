"""A dry run: what a publication would send and change, file by file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from tasks.artifacts import Record
from tasks.hub.contents import GITATTRIBUTES, MANIFEST, Item
from tasks.hub.marker import RELEASE_FILE
from tasks.hub.patience import patiently
from tasks.hub.remote import RepoState
from tasks.hub.session import Hub
from tasks.spec import PublishSpec


class PlannedFile(Record):
    """One file of the commit."""

    path: str
    change: Literal["new", "changed", "same", "deleted"]
    size: int = Field(description="bytes; 0 for a deleted file")
    sha256: str = Field(description="empty for a deleted file")


class Plan(Record):
    """What would happen on the Hub."""

    repo: str
    release: str
    creates_repo: bool
    parent: str | None = Field(description="commit that it would be put on; None: a new repository")
    pull_request: bool
    tag: str | None
    becomes_public: bool
    files: tuple[PlannedFile, ...]

    def lines(self) -> list[str]:
        """The plan for a person to read."""
        first = f"create {self.repo} (private)" if self.creates_repo else f"onto {self.parent}"
        listed = [f"{file.change:<8} {file.size:>14,}  {file.path}" for file in self.files]
        sent = sum(file.size for file in self.files if file.change in ("new", "changed"))
        kind = "open a pull request" if self.pull_request else "commit to main"
        after = [f"tag {self.tag}"] if self.tag else []
        after += ["make it public"] if self.becomes_public else []
        return [f"{kind} of {self.repo}, {first}", *listed, f"{sent:,} bytes to send", *after]


def make_plan(
    spec: PublishSpec,
    release_id: str,
    items: list[Item],
    state: RepoState | None,
    there: Mapping[str, Any],
    stale: list[str],
    tag: str,
) -> Plan:
    """Compare the release's files with what lies on the Hub."""
    files = [
        PlannedFile(path=item.path, change=_change(item, there), size=item.size, sha256=item.sha256)
        for item in items
        if item.path != GITATTRIBUTES
    ]
    files += [PlannedFile(path=path, change="deleted", size=0, sha256="") for path in stale]
    private = state is None or state.private
    return Plan(
        repo=spec.repo,
        release=release_id,
        creates_repo=state is None,
        parent=state.head if state else None,
        pull_request=spec.pull_request,
        tag=None if spec.pull_request else tag,
        becomes_public=private and not spec.private and not spec.pull_request,
        files=tuple(files),
    )


def _change(item: Item, there: Mapping[str, Any]) -> Literal["new", "changed", "same"]:
    remote = there.get(item.path)
    if remote is None:
        return "new"
    if remote.lfs is not None:
        return "same" if remote.lfs.sha256 == item.sha256 else "changed"
    return "same" if remote.blob_id == item.git_oid() else "changed"


def stale_paths(hub: Hub, repo: str, state: RepoState, items: list[Item]) -> list[str]:
    """Files of the release that lies there now which the next one no longer has.

    Only what the old release's own evidence lists; files that people added are theirs.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """
    if MANIFEST not in state.files or RELEASE_FILE not in state.files:
        return []

    def ask() -> str:
        with tempfile.TemporaryDirectory(prefix="quantgate-manifest-") as folder:
            path = hub.api.hf_hub_download(repo, MANIFEST, revision=state.head, local_dir=folder)
            return Path(path).read_text(encoding="utf-8")

    try:
        listed = json.loads(patiently(f"reading the evidence of {repo}", ask)).get("files", {})
    except ValueError:
        return []
    kept = {item.path for item in items} | {GITATTRIBUTES}
    mine = {path for path in state.files if path.startswith(("evidence/", "plots/"))}
    return sorted((set(listed) | mine) & set(state.files) - kept)
