"""The manifest that the patch runner leaves in an image, read without starting it."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

from tasks.errors import QuantgateError
from tasks.image.patches.runner import MANIFEST


def read_manifest(client: Any, image: str) -> dict[str, Any]:
    """{"sglang_version", "patches", "patch_digest", "python", "files"} of an image.

    Raises:
        QuantgateError: `manifest-missing`: it was not built here.
    """
    from docker.errors import DockerException

    container = client.containers.create(image, ["true"], network_disabled=True)
    try:
        stream, _ = container.get_archive(MANIFEST)
        data = b"".join(stream)
    except DockerException as error:
        raise QuantgateError(
            "manifest-missing",
            f"{image} holds no {MANIFEST}: it is no image of this program.",
            "Build it with the project's Dockerfile.",
        ) from error
    finally:
        container.remove(force=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.extractfile(archive.getmembers()[0])
        manifest: dict[str, Any] = json.loads(member.read()) if member else {}
    return manifest
