"""The publication itself: look, one commit, compare, tag, public; each step may be taken again."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import SecretStr

from tasks.artifacts import Card, Publication
from tasks.errors import BadInputError, TransientError
from tasks.hub.contents import GITATTRIBUTES, Item, digest_of, release_items
from tasks.hub.marker import commit_description
from tasks.hub.patience import patiently
from tasks.hub.plan import stale_paths
from tasks.hub.remote import Found, find_release, repo_state, tags_of, tree_of
from tasks.hub.session import Hub
from tasks.hub.upload import Upload, ensure_repo, forget, send_large_files
from tasks.progress import Progress, silent
from tasks.spec import PublishSpec

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

LOG = logging.getLogger("quantgate.hub")


@dataclass(frozen=True)
class _Release:
    """What is to be published, and where."""

    hub: Hub
    spec: PublishSpec
    id: str
    items: list[Item]
    state: Path

    @property
    def repo(self) -> str:
        return self.spec.repo


def publish_hub(
    checkpoint: Path,
    card: Card,
    spec: PublishSpec,
    release_id: str,
    state: Path,
    upload: Upload | None = None,
    token: SecretStr | None = None,
    endpoint: str | None = None,
    progress: Progress = silent,
) -> Publication:
    """Publish a release to the Hub (steps 3 to 5 of `tasks.hub.publish`).

    Calling it again with the same `release_id` continues where the last call stopped; for a
    finished release it changes nothing.

    Args:
        checkpoint: folder with weights, configuration and tokenizer.
        card: the rendered card; its files win over equally named ones of the checkpoint.
        spec: where to.
        release_id: what makes this release this release: equal in every run that would publish
            the same files.
        state: folder that remembers which repositories this program created.
        upload: what `begin_upload` gave.
        token: Hub token; unset: the environment's or the login's.
        endpoint: the Hub's URL; unset: HF_ENDPOINT, else the public Hub.
        progress: told how far it is.

    Raises:
        BadInputError: the Hub refuses it, somebody else committed meanwhile, or the tag is taken.
        TransientError: the Hub cannot be reached, or lists other checksums; nothing was made
            public.
    """
    hub = Hub.connect(token, endpoint)
    release = _Release(hub, spec, release_id, release_items(checkpoint, card, release_id), state)
    progress(0.0, f"looking at {spec.repo}")
    if not spec.pull_request:
        ensure_repo(hub, spec, state)
    found = find_release(hub, spec.repo, release_id, spec.pull_request)
    if found is None:
        if not spec.pull_request:
            _refuse_taken_tag(release)
        found = _commit(release, upload, progress)
    progress(0.8, "comparing checksums")
    _verify(release, found)
    if spec.pull_request:
        number = found.pull_request
        url = f"{hub.endpoint}/{spec.repo}" + (f"/discussions/{number}" if number else "")
        return Publication(to="hub", location=url, revision=found.commit)
    progress(0.9, "tagging")
    tag = _ensure_tag(release, found.commit)
    _ensure_public(release)
    forget(state, spec.repo)
    progress(1.0, f"published {spec.repo} {tag}")
    url = f"{hub.endpoint}/{spec.repo}"
    return Publication(to="hub", location=url, revision=found.commit, tag=tag)


def _commit(release: _Release, upload: Upload | None, progress: Progress) -> Found:
    """Send what is missing, then the one commit."""
    hub, spec = release.hub, release.spec
    if upload is not None:
        progress(0.1, "waiting for the early upload")
        upload.wait()
    additions = _additions(release, upload)
    progress(0.2, f"sending {len(additions)} files")
    send_large_files(hub, spec, additions)
    state = repo_state(hub, spec.repo)
    if state is None:
        raise TransientError("hub-vanished", f"{spec.repo} is gone.", "Publish again.")
    deletions = _deletions(stale_paths(hub, spec.repo, state, release.items))
    progress(0.7, "committing")

    def commit() -> Found:
        made = hub.api.create_commit(
            spec.repo,
            [*additions, *deletions],
            commit_message=f"Release {spec.repo.partition('/')[2]}",
            commit_description=commit_description(release.id, digest_of(release.items)),
            parent_commit=state.head,
            create_pr=spec.pull_request,
        )
        return Found(made.oid, made.pr_num if spec.pull_request else None)

    return patiently(
        f"committing to {spec.repo}",
        commit,
        landed=lambda: find_release(hub, spec.repo, release.id, spec.pull_request),
    )


def _additions(release: _Release, upload: Upload | None) -> list[CommitOperationAdd]:
    from huggingface_hub import CommitOperationAdd

    sent = upload.operations if upload else {}
    additions = []
    for item in release.items:
        if item.path == GITATTRIBUTES:
            continue
        known = sent.get(item.path)
        if known is not None and str(known.path_or_fileobj) == str(item.origin):
            additions.append(known)
        else:
            content = item.text if item.origin is None else item.origin
            additions.append(CommitOperationAdd(item.path, content))
    return additions


def _deletions(paths: list[str]) -> list[CommitOperationDelete]:
    from huggingface_hub import CommitOperationDelete

    return [CommitOperationDelete(path, is_folder=False) for path in paths]


def _verify(release: _Release, found: Found) -> None:
    """Compare every file at the commit with the release's own; then what the Hub reads of it."""
    there = tree_of(release.hub, release.repo, found.commit)
    wrong = []
    for item in release.items:
        if item.path == GITATTRIBUTES:
            continue
        remote = there.get(item.path)
        if remote is None:
            wrong.append(f"{item.path} is missing")
        elif remote.size != item.size or not _is_same(item, remote):
            wrong.append(f"{item.path} is not what was sent")
    if wrong:
        raise TransientError(
            "hub-checksum",
            f"{release.repo}@{found.commit[:12]}: {'; '.join(wrong[:3])}.",
            "It was neither tagged nor made public. Publish again to compare again.",
        )
    _look_at_eval_results(release, found)


def _is_same(item: Item, remote: object) -> bool:
    lfs = getattr(remote, "lfs", None)
    if lfs is not None:
        return bool(lfs.sha256 == item.sha256)
    return bool(getattr(remote, "blob_id", None) == item.git_oid())


def _look_at_eval_results(release: _Release, found: Found) -> None:
    """Say so when the Hub does not show an eval result; its file was compared already."""
    expected = [item for item in release.items if item.path.startswith(".eval_results/")]
    if not expected:
        return
    info = patiently(
        f"reading the eval results of {release.repo}",
        lambda: release.hub.api.model_info(
            release.repo, revision=found.commit, expand=["evalResults"]
        ),
    )
    shown = {(entry.dataset_id, entry.task_id) for entry in info.eval_results or []}
    for item in expected:
        content = item.origin.read_bytes() if item.origin else item.text
        entries = [entry.get("dataset") or {} for entry in yaml.safe_load(content)]
        if any((entry.get("id"), entry.get("task_id")) not in shown for entry in entries):
            LOG.warning("%s: the Hub does not show %s yet", release.repo, item.path)


def next_tag(spec: PublishSpec, tags: dict[str, str]) -> str:
    """The spec's tag, else the next vN."""
    if spec.tag is not None:
        return spec.tag
    numbers = [int(name[1:]) for name in tags if re.fullmatch(r"v\d{1,6}", name)]
    return f"v{max(numbers, default=0) + 1}"


def _refuse_taken_tag(release: _Release) -> None:
    tag = release.spec.tag
    if tag is not None and tag in tags_of(release.hub, release.repo):
        raise BadInputError(
            "hub-tag-taken",
            f"publish.tag: {release.repo} has the tag `{tag}`, on another release.",
            "Choose another tag, or leave it out for the next vN.",
        )


def _ensure_tag(release: _Release, commit: str) -> str:
    hub, spec = release.hub, release.spec

    def ours() -> str | None:
        named = [name for name, target in tags_of(hub, spec.repo).items() if target == commit]
        return next((name for name in named if spec.tag in (None, name)), None)

    found = ours()
    if found is not None:
        return found
    tag = next_tag(spec, tags_of(hub, spec.repo))

    def create() -> str:
        hub.api.create_tag(spec.repo, tag=tag, revision=commit)
        return tag

    return patiently(f"tagging {spec.repo} {tag}", create, landed=ours)


def _ensure_public(release: _Release) -> None:
    hub, spec = release.hub, release.spec

    def is_public() -> bool | None:
        state = repo_state(hub, spec.repo)
        return True if state is not None and not state.private else None

    if spec.private or is_public():
        return

    def publish() -> bool:
        hub.api.update_repo_settings(spec.repo, private=False)
        return True

    patiently(f"making {spec.repo} public", publish, landed=is_public)
