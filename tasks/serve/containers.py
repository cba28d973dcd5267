"""Containers that serve: found by their labels, told apart by their owners, stopped and removed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.errors import QuantgateError
from tasks.image.docker import docker_answers, docker_engine
from tasks.serve import procfs
from tasks.serve.process import GRACE

RUN_LABEL = "quantgate.run"
FOLDER_LABEL = "quantgate.folder"
OWNER_LABEL = "quantgate.owner"


def container_name(run: str) -> str:
    """The name of the container that serves for `run`."""
    return "quantgate-" + re.sub(r"[^\w.-]", "_", run)


def container_alive(identity: str) -> bool:
    """Whether the container still runs; False when it is gone or Docker does not answer."""
    from docker.errors import DockerException

    try:
        with docker_engine(timeout=30) as client:
            return bool(client.containers.get(identity).status == "running")
    except (DockerException, QuantgateError):
        return False


def container_end(identity: str) -> str:
    """How the container ended, in words: its exit code, and whether memory ran out."""
    from docker.errors import DockerException

    try:
        with docker_engine(timeout=30) as client:
            state = client.containers.get(identity).attrs["State"]
    except (DockerException, QuantgateError):
        return "the container is gone"
    words = f"exit code {state['ExitCode']}"
    if state.get("OOMKilled"):
        words += ", out of memory: raise serve.start.memory_gib"
    return words


def stop_container(container: Any) -> None:
    """SIGTERM, and SIGKILL after the grace; nothing when it is gone."""
    from docker.errors import DockerException

    with contextlib.suppress(DockerException):
        container.stop(timeout=int(GRACE))


def remove_container(container: Any) -> None:
    """Take it away, running or not."""
    from docker.errors import DockerException, NotFound

    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except DockerException:
        # Another stop may be removing it at this moment; what stays is found by its label.
        return


def remove_leftovers(root: Path) -> list[str]:
    """Remove containers under `root` whose run is dead; the names of those runs."""
    return _remove_where(
        lambda labels: _within(labels, root) and not owner_alive(labels.get(OWNER_LABEL, ""))
    )


def remove_containers_of(folder: Path) -> list[str]:
    """Remove every container that serves for the run in `folder`, whoever started it."""
    return _remove_where(lambda labels: _within(labels, folder))


def _remove_where(wanted: Callable[[dict[str, str]], bool]) -> list[str]:
    if not docker_answers():
        return []
    removed = []
    with docker_engine() as client:
        for container in client.containers.list(all=True, filters={"label": RUN_LABEL}):
            if wanted(container.labels):
                stop_container(container)
                remove_container(container)
                removed.append(container.labels[RUN_LABEL])
    return removed


def _within(labels: dict[str, str], folder: Path) -> bool:
    return Path(labels.get(FOLDER_LABEL, "/")).is_relative_to(folder.absolute())


def owner_alive(owner: str) -> bool:
    """Whether the program that an owner label names still runs."""
    pid, _, start = owner.partition(":")
    return pid.isdigit() and procfs.alive(int(pid), start)
