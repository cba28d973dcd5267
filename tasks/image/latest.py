"""Which base image a tag means now: what the registry says, and what is on this engine."""

from __future__ import annotations

from tasks.errors import QuantgateError
from tasks.image.base import resolve_base
from tasks.image.docker import docker_engine
from tasks.spec import ReleaseSpec


def image_identity(spec: ReleaseSpec, *, refresh: bool = False) -> str | None:
    """Digest (or local id) of the image that a release serves from; None without a container.

    With `refresh`, a newer image behind the tag is pulled first where a registry can be asked.

    Raises:
        BadInputError: the base is nowhere, or of another platform.
        QuantgateError: there is no Docker engine.
    """
    start = spec.serve.start
    if start.how != "container":
        return None
    with docker_engine() as client:
        if spec.image is None:
            return _local_id(client, start.image)
        if refresh:
            _pull(client, spec.image.base, spec.image.platform)
        return resolve_base(client, spec.image.base, spec.image.platform).identity


def registry_digest(spec: ReleaseSpec) -> str | None:
    """The base's digest as its registry says now; None when there is none to ask.

    Nothing is pulled.
    """
    from docker.errors import DockerException

    if spec.image is None or spec.serve.start.how != "container":
        return None
    try:
        with docker_engine(timeout=60) as client:
            return str(client.images.get_registry_data(spec.image.base).id)
    except (DockerException, QuantgateError):
        return None


def _pull(client: object, name: str, platform: str) -> None:
    from docker.errors import DockerException

    try:
        client.images.pull(name, platform=platform)  # type: ignore[attr-defined]
    except DockerException:
        return  # a local image without registry; resolve_base says so if it is not there


def _local_id(client: object, name: str | None) -> str | None:
    from docker.errors import DockerException

    try:
        return str(client.images.get(name).id)  # type: ignore[attr-defined]
    except DockerException:
        return None
