"""Base image + patches -> serving image, built once for each base, patch set and Dockerfile."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.artifacts import Image, PatchState
from tasks.errors import BadInputError, QuantgateError, TransientError
from tasks.image.base import Base, architecture_of, resolve_base
from tasks.image.docker import docker_engine, no_space, one_line
from tasks.image.manifest import read_manifest
from tasks.image.patches import PATCHES_FOLDER
from tasks.image.patches.runner import patch_digest
from tasks.spec import ImageSpec

PROJECT = Path(__file__).parents[2]
REPOSITORY = "quantgate/sglang"
KEY_LABEL = "quantgate.key"
_LAYER = re.compile(r"^ ---> ([0-9a-f]{12,64})$")


class PatchDriftError(QuantgateError):
    """The base's SGLang is not what a patch knows: the command line ends with 3, as `patches`."""

    exit_code = 3


def build(
    spec: ImageSpec, tell: Callable[[str], None] = lambda line: None, dockerfile: Path | None = None
) -> Image:
    """Build (or find) the serving image, and push it where the spec says so.

    Cached by the base's digest, the patches' digest, the Dockerfile's digest and the platform. A
    build that fails leaves no image behind.

    Args:
        tell: gets each line of the build log as it comes.
        dockerfile: another Dockerfile than the project's own.

    Raises:
        BadInputError: `base-missing`, `wrong-architecture`, `dockerfile-missing`.
        PatchDriftError: `patch-drift`.
        QuantgateError: `docker-missing`, `docker-denied`, `docker-no-space`, `base-incomplete`,
            `build-failed`, `push-refused`.
        TransientError: `docker-unreachable`, `base-pull`, `push-failed`.
    """
    recipe = _recipe(dockerfile or PROJECT / "Dockerfile")
    with docker_engine() as client:
        base = resolve_base(client, spec.base, spec.platform)
        key = image_key(base, recipe, spec.platform)
        built = _cached(client, key, spec.platform)
        if built is None:
            built = _built(client, base, recipe, key, tell)
            _assert_architecture(client, built, spec.platform)
        else:
            tell(f"the image of this base and these patches is there: {built.short_id}")
        manifest = read_manifest(client, built.id)
        digest = _pushed(client, built, spec.push_to, key, tell) if spec.push_to else None
        return Image(
            reference=f"{spec.push_to}@{digest}" if digest else f"{REPOSITORY}:{key[:12]}",
            id=built.id,
            digest=digest,
            base=base.pinned,
            architecture=architecture_of(built),
            engine_version=manifest["sglang_version"],
            patches=tuple(PatchState.model_validate(patch) for patch in manifest["patches"]),
        )


def image_key(base: Base, recipe: bytes, platform: str) -> str:
    """sha256 over what makes an image: base, patches, Dockerfile, platform."""
    parts = (base.identity, patch_digest(), hashlib.sha256(recipe).hexdigest(), platform)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _recipe(dockerfile: Path) -> bytes:
    try:
        return dockerfile.read_bytes()
    except OSError as error:
        raise BadInputError(
            "dockerfile-missing",
            f"{dockerfile}: {error.strerror}.",
            "Run from a checkout of the project, which has the Dockerfile.",
        ) from error


def _cached(client: Any, key: str, platform: str) -> Any | None:
    from docker.errors import ImageNotFound

    try:
        image = client.images.get(f"{REPOSITORY}:{key[:12]}")
    except ImageNotFound:
        return None
    whole = image.labels.get(KEY_LABEL) == key and architecture_of(image) == platform
    return image if whole else None


def _built(client: Any, base: Base, recipe: bytes, key: str, tell: Callable[[str], None]) -> Any:
    before = {image.id for image in client.images.list(all=True)}
    lines: list[str] = []
    try:
        for line in _build_log(client, base, recipe, key):
            lines.append(line)
            tell(line)
    except QuantgateError:
        _remove_layers(client, lines, before)
        raise
    except Exception as error:
        _remove_layers(client, lines, before)
        raise _failure(one_line(error), lines, base) from error
    return client.images.get(f"{REPOSITORY}:{key[:12]}")


def _build_log(client: Any, base: Base, recipe: bytes, key: str) -> Iterator[str]:
    lines: list[str] = []
    stream = client.api.build(
        fileobj=_context(recipe),
        custom_context=True,
        encoding="gzip",
        tag=f"{REPOSITORY}:{key[:12]}",
        rm=True,
        forcerm=True,
        pull=False,
        network_mode="none",
        decode=True,
        buildargs={
            "BASE_IMAGE": base.pinned,
            "BASE_USER": base.user,
            "BASE_NAME": base.name,
            "BASE_DIGEST": base.identity,
            "PATCH_DIGEST": patch_digest(),
            "SOURCE": "quantgate",
            "VERSION": _version(),
            "REVISION": _revision(),
        },
        labels={KEY_LABEL: key},
    )
    for event in stream:
        if "error" in event:
            raise _failure(str(event["error"]), lines, base)
        for line in str(event.get("stream", "")).splitlines():
            if line.strip():
                lines.append(line.rstrip())
                yield line.rstrip()


def _failure(words: str, lines: list[str], base: Base) -> QuantgateError:
    text = "\n".join([*lines, words])
    drift = [line for line in lines if re.match(r"patch [\w-]+: drifted", line)]
    if drift:
        return PatchDriftError(
            "patch-drift",
            f"image.base: {base.name} holds an SGLang that was not seen before: {drift[0]}",
            "Use a base of a version in docs/patches.md, or teach the patch its new place.",
        )
    if no_space(text):
        return QuantgateError(
            "docker-no-space",
            "The Docker engine has no disk space left for the image.",
            "Free some (`docker system df`, `docker image prune`).",
        )
    missing = re.search(r"patches: (not installed: .*|.* holds no sglang.*|.* has no sglang)", text)
    if missing or "python3: not found" in text or "python3: no such file" in text.lower():
        what = missing[1] if missing else "no python3"
        return QuantgateError(
            "base-incomplete",
            f"image.base: {base.name} is no complete SGLang image: {what}.",
            "Name an image that has SGLang, its CUTLASS DSL and flashinfer.",
        )
    return QuantgateError(
        "build-failed",
        f"The image could not be built: {one_line(words)}.",
        "Read the build log: " + " | ".join(lines[-3:]),
    )


def _remove_layers(client: Any, lines: list[str], before: set[str]) -> None:
    """Take away what a failed build left: layers that it named and that were not there before."""
    from docker.errors import DockerException

    named = [found[1] for line in lines if (found := _LAYER.match(line))]
    for short in reversed(named):
        with contextlib.suppress(DockerException):
            image = client.images.get(short)
            if image.id not in before and not image.tags:
                client.images.remove(image.id, force=True)


def _assert_architecture(client: Any, image: Any, platform: str) -> None:
    if architecture_of(image) == platform:
        return
    client.images.remove(image.id, force=True)
    raise BadInputError(
        "wrong-architecture",
        f"The built image is {architecture_of(image)}, and image.platform asks for {platform}.",
        "Build on a machine of that platform.",
    )


def _context(recipe: bytes) -> io.BytesIO:
    """The build context: the Dockerfile and the patches, equal bytes for equal content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        files = {"Dockerfile": recipe}
        for path in sorted(PATCHES_FOLDER.glob("*.py")):
            files[f"tasks/image/patches/{path.name}"] = path.read_bytes()
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    out.seek(0)
    return out


def _pushed(client: Any, image: Any, target: str, key: str, tell: Callable[[str], None]) -> str:
    """Push the image and give the digest that the registry answered with."""
    from docker.errors import DockerException

    tag = key[:12]
    digest: str | None = None
    try:
        image.tag(target, tag=tag)
        for event in client.images.push(target, tag=tag, stream=True, decode=True):
            if "error" in event:
                raise _push_failure(target, str(event["error"]))
            if "aux" in event and "Digest" in event["aux"]:
                digest = str(event["aux"]["Digest"])
            elif event.get("status") and "id" not in event:
                tell(str(event["status"]))
    except DockerException as error:
        raise _push_failure(target, one_line(error)) from error
    if digest is None:
        raise _push_failure(target, "the registry answered without a digest")
    return digest


def _push_failure(target: str, words: str) -> QuantgateError:
    refused = any(sign in words.lower() for sign in ("denied", "unauthorized", "authentication"))
    if refused:
        return QuantgateError(
            "push-refused",
            f"image.push_to: {target} refuses: {words}.",
            "Run `docker login` first.",
        )
    return TransientError(
        "push-failed", f"image.push_to: {target}: {words}.", "Check the registry and the network."
    )


def _version() -> str:
    try:
        return metadata.version("quantgate")
    except metadata.PackageNotFoundError:
        return "source"


def _revision() -> str:
    """The commit that the patches come from; empty outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(PROJECT), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
