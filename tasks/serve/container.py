"""The container engine: the serving image on a read-only checkpoint, loopback only.

The container is named and labelled after its run, so that whoever comes later can tell whether the
run that it belongs to still lives.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.artifacts import Endpoint, Image
from tasks.errors import BadInputError, QuantgateError, TransientError
from tasks.image.docker import docker_engine, one_line
from tasks.image.manifest import read_manifest
from tasks.serve import procfs
from tasks.serve.containers import (
    FOLDER_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    container_name,
    owner_alive,
    remove_container,
    stop_container,
)
from tasks.serve.environment import engine_environment
from tasks.serve.flags import engine_command, says_nvfp4
from tasks.serve.ports import free_port
from tasks.serve.process import GRACE, fill, set_aside
from tasks.spec import ContainerStart, ServeSpec

INSIDE = "/checkpoint"
"""Where the checkpoint is mounted in the container."""
PYTHON = "python3"
_GIB = 1 << 30


@contextlib.contextmanager
def serve_container(
    checkpoint: Path,
    spec: ServeSpec,
    start: ContainerStart,
    image: Image | None,
    log: Path,
    run: str,
) -> Iterator[Endpoint]:
    """Start the image on `checkpoint`; yields the endpoint, and always removes the container.

    Raises:
        BadInputError: no image is named, or it is not there.
        QuantgateError: Docker is missing, or refuses (no GPU, no memory limit, name in use).
    """
    reference = start.image or (image.id if image else None)
    if reference is None:
        raise BadInputError(
            "serve-image",
            "serve.start.image: no image to start.",
            "Name one, or give the release an `image` to build.",
        )
    with docker_engine() as client:
        version = _engine_version(client, reference, image)
        port = free_port(spec.port)
        environment = engine_environment({}, {**spec.env, "QUANTGATE_PORT": str(port)})
        command = _command(spec, start, checkpoint, port, version)
        _remove_dead(client, run)
        set_aside(log)
        container = _create(client, reference, command, environment, checkpoint, start, log, run)
        try:
            _start(container)
            with _log_kept(container, log):
                yield Endpoint(
                    url=f"http://127.0.0.1:{port}",
                    engine=spec.engine,
                    model=spec.model_name,
                    log=log,
                    command=command,
                    container=container.id,
                )
        finally:
            remove_container(container)


def _engine_version(client: Any, reference: str, image: Image | None) -> str | None:
    from docker.errors import DockerException, ImageNotFound

    if image is not None and image.id == reference:
        return image.engine_version
    try:
        client.images.get(reference)
    except ImageNotFound as error:
        raise BadInputError(
            "serve-image-missing",
            f"serve.start.image: {reference} is not on this Docker engine.",
            "Pull or build it first.",
        ) from error
    except DockerException as error:
        raise TransientError("docker-refused", one_line(error), "Look at Docker's log.") from error
    try:
        return str(read_manifest(client, reference)["sglang_version"])
    except QuantgateError:
        # Somebody else's image: flags are taken as they stand in the spec.
        return None


def _command(
    spec: ServeSpec, start: ContainerStart, checkpoint: Path, port: int, version: str | None
) -> tuple[str, ...]:
    if start.command:
        return fill(
            start.command, spec, python=start.python or PYTHON, checkpoint=INSIDE, port=port
        )
    return engine_command(
        spec,
        python=start.python or PYTHON,
        checkpoint=INSIDE,
        port=port,
        version=version,
        nvfp4=says_nvfp4(checkpoint),
    )


def _create(
    client: Any,
    reference: str,
    command: tuple[str, ...],
    environment: dict[str, str],
    checkpoint: Path,
    start: ContainerStart,
    log: Path,
    run: str,
) -> Any:
    from docker.errors import DockerException
    from docker.types import DeviceRequest, Mount

    gpus = [DeviceRequest(count=-1, capabilities=[["gpu"]])] if start.gpus == "all" else []
    memory = int(start.memory_gib * _GIB) if start.memory_gib else None
    try:
        return client.containers.create(
            reference,
            list(command),
            name=container_name(run),
            labels={
                RUN_LABEL: run,
                FOLDER_LABEL: str(log.parent),
                OWNER_LABEL: f"{os.getpid()}:{procfs.started(os.getpid())}",
            },
            environment=environment,
            mounts=[
                Mount(to, str(path), type="bind", read_only=True)
                for to, path in _mounts(checkpoint, start).items()
            ],
            network_mode="host",
            init=True,
            stop_signal="SIGTERM",
            mem_limit=memory,
            memswap_limit=memory,
            shm_size=int(start.shm_gib * _GIB),
            device_requests=gpus,
            security_opt=["no-new-privileges"],
            detach=True,
        )
    except DockerException as error:
        raise refusal(error) from error


def _mounts(checkpoint: Path, start: ContainerStart) -> dict[str, Path]:
    """Folder in the container -> folder here; all of them read-only."""
    mounts = {to: Path(path).absolute() for to, path in start.mounts.items()}
    for to, path in mounts.items():
        if not path.exists():
            raise BadInputError(
                "serve-mount", f"serve.start.mounts.{to}: {path} is not there.", "Correct the path."
            )
    return {**mounts, INSIDE: checkpoint}


def _remove_dead(client: Any, run: str) -> None:
    """Make room for this run where its own earlier try died and left its container."""
    from docker.errors import DockerException, NotFound

    try:
        container = client.containers.get(container_name(run))
    except NotFound:
        return
    except DockerException as error:
        raise refusal(error) from error
    if not owner_alive(container.labels.get(OWNER_LABEL, "")):
        stop_container(container)
        remove_container(container)


def _start(container: Any) -> None:
    from docker.errors import DockerException

    try:
        container.start()
    except DockerException as error:
        raise refusal(error) from error


def refusal(error: Exception) -> QuantgateError:
    """The engine's refusal in one line, with what to do about it."""
    words = one_line(error)
    if "could not select device driver" in words:
        return QuantgateError(
            "docker-no-gpu",
            "Docker has no GPU driver for serve.start.gpus `all`.",
            "Install the NVIDIA container toolkit, or set serve.start.gpus to `none`.",
        )
    if "docker-init" in words:
        return QuantgateError(
            "docker-no-init",
            "Docker has no docker-init, which a container needs to be stopped cleanly.",
            "Install tini (Debian: apt-get install tini).",
        )
    if "is already in use" in words:
        return QuantgateError(
            "docker-name-taken",
            f"Another container serves for this run: {words}.",
            "Let it end, or remove it.",
        )
    return TransientError("docker-refused", f"Docker refuses: {words}.", "Look at Docker's log.")


@contextlib.contextmanager
def _log_kept(container: Any, log: Path) -> Iterator[None]:
    """Everything that the container prints, in `log`, until it has ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    stream = container.logs(stream=True, follow=True)

    def copy() -> None:
        with log.open("ab") as file, contextlib.suppress(Exception):
            for piece in stream:
                file.write(piece)
                file.flush()

    keeper = threading.Thread(target=copy, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop_container(container)
        keeper.join(timeout=GRACE)
