"""Publish a release to the Hub or into a folder: all of it, or nothing that anybody can see.

On the Hub, in this order, each step taken again safely after any failure:

1. `preflight_publish`, before GPU time.
2. `begin_upload`, while the gates run: large files, into a repository that is private when new.
3. `publish_hub`, once decided: ONE commit of all files and the card, with its parent checked and
   the release's mark in its description; after any error the mark is looked for first.
4. Every file's checksum at that commit against the release's own.
5. The tag on that commit, and then, where the spec says so, public.

`discard` instead of 3 takes a repository back that this program created. A kill at any instant
leaves nothing visible, or a release that the next run completes.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from tasks.artifacts import Card, Publication
from tasks.errors import BadInputError
from tasks.hub.contents import release_items
from tasks.hub.folder import publish_folder
from tasks.hub.plan import Plan, make_plan, stale_paths
from tasks.hub.preflight import README, preflight_hub, read_card
from tasks.hub.release import next_tag, publish_hub
from tasks.hub.remote import repo_state, tags_of, tree_of
from tasks.hub.session import Hub
from tasks.hub.upload import Upload, begin_upload, discard
from tasks.progress import Progress, silent
from tasks.spec import PublishSpec

__all__ = [
    "begin_upload",
    "bring_card",
    "discard",
    "plan_hub",
    "preflight_publish",
    "publish",
    "publish_folder",
    "publish_hub",
]


def preflight_publish(
    spec: PublishSpec, token: SecretStr | None = None, endpoint: str | None = None
) -> None:
    """Check, before anything is spent, that the release could be published.

    Raises:
        BadInputError: the place cannot be written or is taken; no token, or one that may not.
        TransientError: the Hub cannot be asked.
    """
    if spec.to == "folder":
        _check_folder(spec.folder)
    if spec.to == "hub":
        preflight_hub(spec, Hub.connect(token, endpoint))


def _check_folder(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise BadInputError(
            "publish-unwritable",
            f"publish.folder: {existing} cannot be written.",
            "Give a folder that can be written.",
        )


def publish(
    checkpoint: Path,
    card: Card,
    spec: PublishSpec,
    release_id: str,
    state: Path,
    upload: Upload | None = None,
    token: SecretStr | None = None,
    progress: Progress = silent,
) -> Publication | None:
    """Publish to where the spec says; None for `nowhere`.

    Args and errors as for `publish_hub` and `publish_folder`.
    """
    if spec.to == "nowhere":
        return None
    if spec.to == "folder":
        return publish_folder(checkpoint, card, spec, release_id)
    return publish_hub(checkpoint, card, spec, release_id, state, upload, token, progress=progress)


def bring_card(
    spec: PublishSpec, out: Path, token: SecretStr | None = None, endpoint: str | None = None
) -> bool:
    """Lay the card that is published now into `out`, so that rendering keeps what people wrote.

    Returns:
        Whether there is one. A README.md that lies in `out` already is left.
    """
    path = out / README
    if path.exists():
        return True
    content: bytes | None = None
    if spec.to == "folder" and (spec.folder / spec.repo / README).is_file():
        content = (spec.folder / spec.repo / README).read_bytes()
    if spec.to == "hub":
        hub = Hub.connect(token, endpoint)
        state = repo_state(hub, spec.repo)
        if state is not None and README in state.files:
            content = read_card(spec.repo, hub, state)
    if content is None:
        return False
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return True


def plan_hub(
    checkpoint: Path,
    card: Card,
    spec: PublishSpec,
    release_id: str,
    token: SecretStr | None = None,
    endpoint: str | None = None,
) -> Plan:
    """What `publish_hub` would send and change, file by file; nothing is changed.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """
    hub = Hub.connect(token, endpoint)
    items = release_items(checkpoint, card, release_id)
    state = repo_state(hub, spec.repo)
    there = tree_of(hub, spec.repo, state.head) if state else {}
    stale = stale_paths(hub, spec.repo, state, items) if state else []
    tag = next_tag(spec, tags_of(hub, spec.repo)) if state else spec.tag or "v1"
    return make_plan(spec, release_id, items, state, there, stale, tag)
