"""What lies on the Hub, looked at before anything is done, and again after every error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tasks.hub.failures import status_of
from tasks.hub.marker import is_commit_of
from tasks.hub.patience import patiently
from tasks.hub.session import Hub

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

MOST_PULL_REQUESTS = 20
"""Open pull requests that are searched for a release, the newest first."""


@dataclass(frozen=True)
class RepoState:
    """A repository as it is.

    Attributes:
        head: commit of the main branch.
        private: whether only its owners see it.
        files: paths at the head.
    """

    head: str
    private: bool
    files: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """A release's commit; `pull_request` is its number where it is one."""

    commit: str
    pull_request: int | None = None


def repo_state(hub: Hub, repo: str) -> RepoState | None:
    """The repository, or None when there is none that this token can see.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """

    def ask() -> RepoState | None:
        try:
            info = hub.api.model_info(repo)
        except Exception as error:
            if _is_absent(error):
                return None
            raise
        files = tuple(item.rfilename for item in info.siblings or [])
        return RepoState(str(info.sha), bool(info.private), files)

    return patiently(f"looking at {repo}", ask)


def _is_absent(error: Exception) -> bool:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    gated = isinstance(error, GatedRepoError)
    return isinstance(error, RepositoryNotFoundError) and not gated and status_of(error) == 404


def find_release(hub: Hub, repo: str, release_id: str, pull_request: bool) -> Found | None:
    """The commit that carries the release's mark: on main, or on an open pull request.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """
    what = f"looking for the release on {repo}"
    for commit in patiently(what, lambda: hub.api.list_repo_commits(repo)):
        if is_commit_of(commit.message, release_id):
            return Found(commit.commit_id)
    if not pull_request:
        return None
    refs = patiently(what, lambda: hub.api.list_repo_refs(repo, include_pull_requests=True))
    numbers = sorted((_number(ref.ref) for ref in refs.pull_requests or []), reverse=True)
    for number in numbers[:MOST_PULL_REQUESTS]:
        ask = partial(hub.api.list_repo_commits, repo, revision=f"refs/pr/{number}")
        for commit in patiently(what, ask):
            if is_commit_of(commit.message, release_id):
                return Found(commit.commit_id, number)
    return None


def _number(ref: str) -> int:
    tail = ref.rpartition("/")[2]
    return int(tail) if tail.isdigit() else 0


def tags_of(hub: Hub, repo: str) -> dict[str, str]:
    """Tag -> commit.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """
    refs = patiently(f"reading the tags of {repo}", lambda: hub.api.list_repo_refs(repo))
    return {tag.name: tag.target_commit for tag in refs.tags}


def tree_of(hub: Hub, repo: str, commit: str) -> dict[str, RepoFile]:
    """Path -> what the Hub says of the file, at a commit.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """
    from huggingface_hub.hf_api import RepoFile

    def ask() -> dict[str, RepoFile]:
        listing = hub.api.list_repo_tree(repo, recursive=True, revision=commit)
        return {item.path: item for item in listing if isinstance(item, RepoFile)}

    return patiently(f"listing {repo}", ask)
