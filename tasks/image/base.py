"""The base image: found on the Docker engine or pulled, and named by what the engine read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks.errors import BadInputError, TransientError
from tasks.image.docker import one_line


@dataclass(frozen=True)
class Base:
    """A base image as the engine knows it.

    `pinned` is what a Dockerfile may name: name@digest, or the image id of an image that no
    registry knows. `architecture` is os/arch. No digest here was written down by anybody.
    """

    name: str
    id: str
    digest: str | None
    architecture: str
    user: str

    @property
    def pinned(self) -> str:
        """name@digest, or the id."""
        return f"{self.repository}@{self.digest}" if self.digest else self.id

    @property
    def identity(self) -> str:
        """The digest, or the id of a local image: what the cache goes by."""
        return self.digest or self.id

    @property
    def repository(self) -> str:
        """The name without tag and digest."""
        name = self.name.partition("@")[0]
        head, slash, last = name.rpartition("/")
        return f"{head}{slash}{last.partition(':')[0]}"


def resolve_base(client: Any, name: str, platform: str) -> Base:
    """The base that `name` (a tag, name@digest or id) means on this engine now.

    An image that is there is taken as it is; one that is not is pulled for `platform`.

    Raises:
        BadInputError: `base-missing`: neither the engine nor a registry has it;
            `wrong-architecture`: it is for another machine than the spec asks for.
        TransientError: `base-pull`: the registry could not be asked.
    """
    image = _present(client, name) or _pulled(client, name, platform)
    architecture = architecture_of(image)
    if architecture != platform:
        raise BadInputError(
            "wrong-architecture",
            f"image.base: {name} is {architecture}, and image.platform asks for {platform}.",
            "Name a base for that platform, or correct image.platform.",
        )
    base = Base(name, image.id, None, architecture, image.attrs["Config"].get("User") or "root")
    for entry in image.attrs.get("RepoDigests") or ():
        repository, _, digest = entry.partition("@")
        if repository == base.repository:
            return Base(name, image.id, digest, architecture, base.user)
    return base


def architecture_of(image: Any) -> str:
    """os/arch of an image as the engine reports it."""
    return f"{image.attrs['Os']}/{image.attrs['Architecture']}"


def _present(client: Any, name: str) -> Any | None:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(name)
    except ImageNotFound:
        return None


def _pulled(client: Any, name: str, platform: str) -> Any:
    from docker.errors import APIError, DockerException

    try:
        if "@" in name or name.startswith("sha256:"):
            return client.images.pull(name, platform=platform)
        repository, tag = _split_tag(name)
        return client.images.pull(repository, tag=tag, platform=platform)
    except (APIError, DockerException) as error:
        words = one_line(error)
        if _is_absent(error, words):
            raise BadInputError(
                "base-missing",
                f"image.base: {name} is neither on this Docker engine nor to be pulled.",
                "Check the name and tag; a private image needs `docker login` first.",
            ) from error
        raise TransientError(
            "base-pull",
            f"image.base: {name} could not be pulled: {words}.",
            "Check the network to its registry, or load the image by hand.",
        ) from error


def _split_tag(name: str) -> tuple[str, str]:
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{head}{slash}{last}", tag or "latest"


def _is_absent(error: Exception, words: str) -> bool:
    status = getattr(getattr(error, "response", None), "status_code", None)
    signs = ("not found", "manifest unknown", "access denied", "does not exist", "denied:")
    return status in {403, 404} or any(sign in words.lower() for sign in signs)
