"""Blobs ahead of the decision: uploaded while the gates run, visible to nobody until the commit.

A release that is new on the Hub gets a private repository for them. That this program made it is
written down beforehand in `state` (`<namespace>--<name>.json`), so that a rejected release, or one
that was killed and never resumed, can be taken back (`discard`) and nothing else can.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from tasks.checkpoint.survey import walk_files
from tasks.errors import BadInputError, QuantgateError
from tasks.hub import patience
from tasks.hub.patience import patiently
from tasks.hub.remote import RepoState, repo_state
from tasks.hub.session import Hub
from tasks.progress import Progress, silent
from tasks.spec import PublishSpec

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

LOG = logging.getLogger("quantgate.hub")
FIRST_FILES = frozenset({".gitattributes"})
"""What the Hub itself puts into a new repository."""


@dataclass
class Upload:
    """An upload under way in the background.

    Attributes:
        operations: path -> the client's own record of a file, which remembers that it was sent.
        failure: why it stopped early; publishing sends what is missing then.
    """

    operations: dict[str, CommitOperationAdd]
    failure: QuantgateError | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def wait(self) -> None:
        """Wait until it has ended, well or not."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Send no further file, and wait for the one under way."""
        self._stop.set()
        self.wait()


def begin_upload(
    checkpoint: Path,
    spec: PublishSpec,
    state: Path,
    token: SecretStr | None = None,
    endpoint: str | None = None,
    progress: Progress = silent,
) -> Upload:
    """Start sending a checkpoint's large files to where the release would be committed.

    Returns at once; a repository is created (private) where there is none. Call `publish_hub` with
    the result when the release may go out, else `discard`. A pull request sends nothing ahead.

    Args:
        checkpoint: folder of the checkpoint.
        spec: where to.
        state: folder that remembers which repositories this program created.
        token: Hub token; unset: the environment's or the login's.
        endpoint: the Hub's URL; unset: HF_ENDPOINT, else the public Hub.
        progress: told how far it is, from another thread.

    Raises:
        QuantgateError: the repository cannot be looked at or created.
    """
    from huggingface_hub import CommitOperationAdd

    hub = Hub.connect(token, endpoint)
    operations = {
        name: CommitOperationAdd(path_in_repo=name, path_or_fileobj=checkpoint / name)
        for name in walk_files(checkpoint)
        if name.endswith(".safetensors")
    }
    upload = Upload(operations)
    if spec.pull_request:
        return upload
    ensure_repo(hub, spec, state)
    upload._thread = threading.Thread(
        target=_send, args=(hub, spec, upload, progress), name="hub upload", daemon=True
    )
    upload._thread.start()
    return upload


def _send(hub: Hub, spec: PublishSpec, upload: Upload, progress: Progress) -> None:
    whole = max(1, sum(op.upload_info.size for op in upload.operations.values()))
    done = 0
    for name, operation in upload.operations.items():
        if upload._stop.is_set():
            return
        try:
            send_large_files(hub, spec, [operation])
        except QuantgateError as error:
            upload.failure = error
            LOG.warning("early upload stopped: %s", error)
            return
        done += operation.upload_info.size
        progress(done / whole, f"sent {name}")


def send_large_files(hub: Hub, spec: PublishSpec, operations: list[CommitOperationAdd]) -> None:
    """Send the content of large files; what the Hub has already is not sent again.

    The client and hf_xet repeat each request for minutes by themselves, so here it is two tries.

    Raises:
        QuantgateError: it could not be sent, in spite of several tries.
    """
    patiently(
        f"sending files to {spec.repo}",
        lambda: hub.api.preupload_lfs_files(
            spec.repo, operations, free_memory=False, create_pr=spec.pull_request
        ),
        patience=replace(patience.PATIENCE, tries=2),
    )


def ensure_repo(hub: Hub, spec: PublishSpec, state: Path) -> RepoState:
    """The release's repository, created private if there is none.

    Raises:
        QuantgateError: it cannot be created.
    """
    found = repo_state(hub, spec.repo)
    if found is not None:
        return found
    _remember(state, spec.repo)

    def create() -> RepoState:
        hub.api.create_repo(spec.repo, private=True, repo_type="model")
        made = repo_state(hub, spec.repo)
        if made is None:
            raise QuantgateError("hub-not-created", f"{spec.repo} was not created.", "Run again.")
        return made

    return patiently(f"creating {spec.repo}", create, landed=lambda: repo_state(hub, spec.repo))


def discard(
    spec: PublishSpec,
    state: Path,
    upload: Upload | None = None,
    token: SecretStr | None = None,
    endpoint: str | None = None,
) -> bool:
    """Take back what an upload made: delete the repository, if this program created it.

    A repository is deleted only when `state` says that this program created it, it is still
    private, and nothing was ever committed to it. Anything else is left as it is.

    Returns:
        Whether a repository was deleted.

    Raises:
        QuantgateError: the Hub cannot be asked.
    """
    if upload is not None:
        upload.stop()
    if not was_created(state, spec.repo):
        return False
    hub = Hub.connect(token, endpoint)
    found = repo_state(hub, spec.repo)
    if found is None or not is_untouched(hub, spec.repo, found):
        forget(state, spec.repo)
        return False

    def delete() -> bool:
        hub.api.delete_repo(spec.repo, repo_type="model", missing_ok=True)
        return True

    patiently(
        f"deleting {spec.repo}",
        delete,
        landed=lambda: True if repo_state(hub, spec.repo) is None else None,
    )
    forget(state, spec.repo)
    return True


def is_untouched(hub: Hub, repo: str, found: RepoState) -> bool:
    """Whether a repository is private and holds its first, empty commit alone."""
    if not found.private or set(found.files) - FIRST_FILES:
        return False
    commits = patiently(f"reading the history of {repo}", lambda: hub.api.list_repo_commits(repo))
    return len(commits) == 1


def _note(state: Path, repo: str) -> Path:
    return state / f"{repo.replace('/', '--')}.json"


def was_created(state: Path, repo: str) -> bool:
    """Whether this program created the repository and has not published to it yet."""
    try:
        data = json.loads(_note(state, repo).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and data.get("repo") == repo


def _remember(state: Path, repo: str) -> None:
    path = _note(state, repo)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".partial")
        beside.write_text(json.dumps({"repo": repo}), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise BadInputError(
            "state-unwritable", f"{path}: {error.strerror}.", "Give a folder that can be written."
        ) from error


def forget(state: Path, repo: str) -> None:
    """Drop the note: from now on the repository is not this program's to delete."""
    _note(state, repo).unlink(missing_ok=True)
