"""What the emulated Hub knows: users, repositories, commits, blobs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path

GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.png filter=lfs -text\n"
LFS_PATTERNS = ("*.safetensors", "*.png", "*.bin")
LFS_SIZE = 10_000_000
START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class RefusalError(Exception):
    """An answer other than success, as the Hub words it."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: object) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body


@dataclass(frozen=True)
class User:
    """Who a token stands for, and what it may do."""

    name: str
    role: str = "write"
    orgs: dict[str, str] = field(default_factory=dict)

    def may_write(self, namespace: str) -> bool:
        ours = namespace == self.name or self.orgs.get(namespace) in ("write", "admin")
        return self.role == "write" and ours

    def may_read(self, namespace: str) -> bool:
        return namespace == self.name or namespace in self.orgs


USERS = {
    "hf_writer": User("alice", "write", {"org": "write", "quantgate": "write", "readers": "read"}),
    "hf_reader": User("alice", "read", {"org": "write"}),
    "hf_other": User("bob", "write", {"org": "write"}),
}


@dataclass(frozen=True)
class Entry:
    """One file of a commit: regular (`content`) or large (`sha256`)."""

    size: int
    content: bytes | None = None
    sha256: str | None = None

    @property
    def pointer(self) -> bytes:
        text = "version https://git-lfs.github.com/spec/v1\n"
        return f"{text}oid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @property
    def oid(self) -> str:
        data = self.pointer if self.content is None else self.content
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(frozen=True)
class Commit:
    """A commit with its whole tree."""

    id: str
    title: str
    message: str
    user: str
    date: datetime
    parent: str | None
    files: dict[str, Entry]


@dataclass
class Repo:
    """A model repository."""

    id: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    def resolve(self, revision: str) -> Commit:
        if revision in self.refs:
            return self.commits[self.refs[revision]]
        if revision in self.tags:
            return self.commits[self.tags[revision]]
        if revision in self.commits:
            return self.commits[revision]
        raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, revision: str) -> list[Commit]:
        found, commit = [], self.resolve(revision)
        while True:
            found.append(commit)
            if commit.parent is None:
                return found
            commit = self.commits[commit.parent]

    def add(self, ref: str, user: str, title: str, message: str, files: dict[str, Entry]) -> Commit:
        parent = self.refs.get(ref)
        return self.add_on(parent, ref, user, title, message, files)

    def add_on(
        self,
        parent: str | None,
        ref: str,
        user: str,
        title: str,
        message: str,
        files: dict[str, Entry],
    ) -> Commit:
        listed = sorted((name, entry.oid) for name, entry in files.items())
        number = len(self.commits)
        basis = json.dumps([self.id, number, parent, title, message, listed])
        commit = Commit(
            id=hashlib.sha1(basis.encode()).hexdigest(),
            title=title,
            message=message,
            user=user,
            date=START + timedelta(seconds=number),
            parent=parent,
            files=files,
        )
        self.commits[commit.id] = commit
        self.refs[ref] = commit.id
        return commit


class Hub:
    """Everything, in memory; blobs on disk under `root`."""

    def __init__(self, root: Path) -> None:
        self.clear(root)

    def clear(self, root: Path) -> None:
        """Forget everything; new blobs go under `root`."""
        self.root = root
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        (root / "cas").mkdir(parents=True, exist_ok=True)
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, int] = {}
        self.violations: list[str] = []

    def user(self, authorization: str | None) -> User | None:
        if authorization is None:
            return None
        found = USERS.get(authorization.removeprefix("Bearer "))
        if found is None:
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return found

    def create(self, user: User | None, repo_id: str, private: bool) -> Repo:
        self._may_write(user, repo_id)
        if repo_id in self.repos:
            raise RefusalError(409, "You already created this model repo", url=self._url(repo_id))
        repo = Repo(id=repo_id, private=private)
        first = {".gitattributes": Entry(len(GITATTRIBUTES), GITATTRIBUTES)}
        repo.add("main", user.name if user else "", "initial commit", "", first)
        self.repos[repo_id] = repo
        return repo

    def _url(self, repo_id: str) -> str:
        return f"https://hub.invalid/{repo_id}"

    def _may_write(self, user: User | None, repo_id: str) -> None:
        if user is None:
            raise RefusalError(401, "Invalid username or password.")
        if not user.may_write(repo_id.split("/", maxsplit=1)[0]):
            what = "this token is read-only" if user.role != "write" else "not your namespace"
            raise RefusalError(403, f"You don't have the rights to write to {repo_id}: {what}")

    def readable(self, user: User | None, repo_id: str) -> Repo:
        repo = self.repos.get(repo_id)
        if repo is not None and (not repo.private or (user and user.may_read(repo.namespace))):
            return repo
        raise RefusalError(404 if user else 401, "Repository not found", "RepoNotFound")

    def writable(self, user: User | None, repo_id: str) -> Repo:
        repo = self.readable(user, repo_id)
        self._may_write(user, repo_id)
        return repo

    def delete(self, user: User | None, repo_id: str) -> None:
        self.writable(user, repo_id)
        del self.repos[repo_id]

    def put_blob(self, sha256: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != sha256:
            raise RefusalError(400, "BadDigest: not the announced sha256")
        (self.root / "blobs" / sha256).write_bytes(content)
        self.blobs[sha256] = len(content)

    def read_blob(self, sha256: str) -> bytes:
        return (self.root / "blobs" / sha256).read_bytes()


def upload_mode(path: str, size: int, sample: bytes) -> str:
    """`lfs` for what the repository's attributes name, what is large, and what is binary."""
    name = path.rsplit("/", 1)[-1]
    listed = any(fnmatch(name, pattern) for pattern in LFS_PATTERNS)
    return "lfs" if listed or size > LFS_SIZE or b"\0" in sample else "regular"
