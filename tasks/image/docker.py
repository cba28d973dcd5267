"""The Docker engine: reach it, or say in one line why not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.errors import QuantgateError, TransientError

DEFAULT_SOCKET = "unix:///var/run/docker.sock"


def socket_url() -> str:
    """Where the engine listens: DOCKER_HOST, or Docker's usual socket."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET


@contextlib.contextmanager
def docker_engine(timeout: float = 600) -> Iterator[Any]:
    """A client of the Docker engine (`docker.DockerClient`), closed at the end.

    Raises:
        QuantgateError: `docker-missing`: there is no socket; `docker-denied`: no right to use it.
        TransientError: `docker-unreachable`: there is one, but nobody answers.
    """
    import docker
    from docker.errors import DockerException

    url = socket_url()
    path = Path(url.removeprefix("unix://")) if url.startswith("unix://") else None
    if path is not None and not _seen(path):
        raise QuantgateError(
            "docker-missing",
            f"There is no Docker engine at {url}.",
            "Start Docker, or set DOCKER_HOST; serve.engine `reference` needs none.",
        )
    try:
        client = docker.DockerClient(base_url=url, timeout=timeout, version="auto")
    except DockerException as error:
        if "Permission denied" in str(error) or "PermissionError" in str(error):
            raise _denied(url) from error
        raise TransientError(
            "docker-unreachable",
            f"The Docker engine at {url} does not answer: {one_line(error)}.",
            "Start Docker, or set DOCKER_HOST to where it listens.",
        ) from error
    try:
        yield client
    finally:
        client.close()


def _seen(socket: Path) -> bool:
    try:
        return socket.exists()
    except PermissionError as error:
        raise _denied(f"unix://{socket}") from error


def _denied(url: str) -> QuantgateError:
    return QuantgateError(
        "docker-denied",
        f"The Docker engine at {url} may not be used by this user.",
        "Run as a member of the group that owns the socket.",
    )


def docker_answers() -> bool:
    """Whether an engine can be reached at all, without raising."""
    try:
        with docker_engine(timeout=10):
            return True
    except QuantgateError:
        return False


def one_line(error: object) -> str:
    """An error of the engine in one line."""
    return " ".join(str(error).split())[:300].rstrip(".")


def no_space(words: str) -> bool:
    """Whether the engine complains of a full disk."""
    return "no space left on device" in words.lower()
