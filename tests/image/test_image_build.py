"""The image build, on a real Docker engine, over the real sources of SGLang 0.5.15.post1."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import BadInputError, QuantgateError, TransientError
from tasks.image import build as building
from tasks.image.base import Base, resolve_base
from tasks.image.build import PatchDriftError, build, image_key
from tasks.image.docker import docker_engine
from tasks.image.manifest import read_manifest
from tasks.image.patches.runner import patch_digest
from tasks.spec import ImageSpec
from tests.image.base_image import packages
from tests.image.conftest import VERSION, derive

pytestmark = [pytest.mark.docker, pytest.mark.network]


def spec_of(base: str, **more: Any) -> ImageSpec:
    return ImageSpec(base=base, platform="linux/amd64", **more)


def image_ids(client: Any) -> set[str]:
    return {image.id for image in client.images.list(all=True)}


def test_builds_and_tells_what_it_did(docker_client: Any, base: str) -> None:
    lines: list[str] = []
    image = build(spec_of(base), tell=lines.append)
    assert image.engine_version == VERSION
    assert {patch.name: patch.state for patch in image.patches} == dict.fromkeys(
        (
            "attention-quant",
            "kv-scales",
            "mtp-quant",
            "mtp-kv-scales",
            "fp4-archs",
            "log-kv-scales",
        ),
        "applied",
    )
    assert image.architecture == "linux/amd64"
    assert image.base == docker_client.images.get(base).id
    assert image.digest is None
    assert any("patch kv-scales: applied" in line for line in lines)
    built = docker_client.images.get(image.reference)
    assert built.id == image.id
    config = built.attrs["Config"]
    labels = config["Labels"]
    assert labels["quantgate.patch-digest"] == patch_digest()
    assert labels["org.opencontainers.image.base.digest"] == image.base
    assert labels["org.opencontainers.image.base.name"] == base
    assert labels["org.opencontainers.image.source"] == "quantgate"
    assert "org.opencontainers.image.revision" in labels
    assert config["Healthcheck"]["Test"][-1].endswith("healthy.py")
    manifest = read_manifest(docker_client, image.id)
    assert manifest["sglang_version"] == VERSION
    assert manifest["patch_digest"] == patch_digest()
    assert len(manifest["files"]) == 6
    assert all(len(digest) == 64 for digest in manifest["files"].values())
    # The second time nothing is built.
    again: list[str] = []
    before = image_ids(docker_client)
    assert build(spec_of(base), tell=again.append) == image
    assert image_ids(docker_client) == before
    assert len(again) == 1 and "is there" in again[0]


def test_the_file_in_the_image_is_the_patched_one(docker_client: Any, base: str) -> None:
    image = build(spec_of(base))
    manifest = read_manifest(docker_client, image.id)
    (path,) = [path for path in manifest["files"] if path.endswith("qwen3_5_mtp.py")]
    code = f"import hashlib; print(hashlib.sha256(open({path!r}, 'rb').read()).hexdigest())"
    out = docker_client.containers.run(
        image.id, ["python3", "-I", "-c", code], network_mode="none", remove=True
    )
    assert out.decode().strip() == manifest["files"][path]


def test_pushes_and_reads_the_digest_back(docker_client: Any, base: str, registry: str) -> None:
    image = build(spec_of(base, push_to=f"{registry}/release/sglang"))
    assert image.digest is not None
    assert image.reference == f"{registry}/release/sglang@{image.digest}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        f"http://{registry}/v2/release/sglang/manifests/{image.digest}",
        headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
    )
    with opener.open(request, timeout=10) as answer:
        assert answer.headers["Docker-Content-Digest"] == image.digest
        assert json.loads(answer.read())["config"]["digest"] == image.id
    # An image that a registry knows is passed on by its digest, as the engine reads it.
    docker_client.images.get(image.id).tag(f"{registry}/release/sglang", tag="one")
    found = resolve_base(docker_client, f"{registry}/release/sglang:one", "linux/amd64")
    assert found.pinned == image.reference
    docker_client.images.remove(f"{registry}/release/sglang:one", force=False)
    pulled = resolve_base(docker_client, image.reference, "linux/amd64")
    assert pulled.digest == image.digest


def test_a_registry_that_is_not_there(docker_client: Any, base: str) -> None:
    with pytest.raises(TransientError) as caught:
        build(spec_of(base, push_to="127.0.0.1:1/release/sglang"))
    assert caught.value.code == "push-failed"
    with pytest.raises(TransientError) as caught:
        build(spec_of("127.0.0.1:1/absent/sglang:1"))
    assert caught.value.code == "base-pull"


def test_a_missing_base(docker_client: Any, registry: str) -> None:
    for name in (f"{registry}/absent/sglang:1", f"{registry}/absent@sha256:{'0' * 64}"):
        with pytest.raises(BadInputError) as caught:
            build(spec_of(name))
        assert caught.value.code == "base-missing"
        assert name in caught.value.message


def test_a_wrong_architecture_is_refused(docker_client: Any, base: str) -> None:
    with pytest.raises(BadInputError) as caught:
        build(ImageSpec(base=base, platform="linux/arm64"))
    assert caught.value.code == "wrong-architecture"


def test_a_built_image_of_another_architecture_is_removed(
    docker_client: Any, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker 20.10 builds amd64 when asked for arm64 over an amd64 base, and says nothing."""
    honest = resolve_base(docker_client, base, "linux/amd64")
    lying = Base(base, honest.id, None, "linux/arm64", "root")
    monkeypatch.setattr(building, "resolve_base", lambda *_: lying)
    with pytest.raises(BadInputError) as caught:
        build(ImageSpec(base=base, platform="linux/arm64"))
    assert caught.value.code == "wrong-architecture"
    key = image_key(lying, (building.PROJECT / "Dockerfile").read_bytes(), "linux/arm64")
    assert not docker_client.images.list(name=f"{building.REPOSITORY}:{key[:12]}")


def test_drift_leaves_no_image_behind(docker_client: Any, base: str) -> None:
    path = packages() / "sglang/srt/models/qwen3_5_mtp.py"
    code = f"p = {str(path)!r}; s = open(p).read(); open(p, 'w').write(s.replace('t_fp4', 't_fp'))"
    drifted = derive(docker_client, base, "drifted", f'RUN python3 -c "{code}"')
    before = image_ids(docker_client)
    with pytest.raises(PatchDriftError, match="patch mtp-quant: drifted") as caught:
        build(spec_of(drifted))
    assert caught.value.exit_code == 3
    assert image_ids(docker_client) == before
    assert docker_client.containers.list(all=True) == []


def test_an_incomplete_base(docker_client: Any, base: str) -> None:
    gone = packages() / "nvidia_cutlass_dsl"
    code = f"import shutil; shutil.rmtree({str(gone)!r})"
    incomplete = derive(docker_client, base, "incomplete", f'RUN python3 -c "{code}"')
    before = image_ids(docker_client)
    with pytest.raises(QuantgateError, match="not installed: nvidia_cutlass_dsl") as caught:
        build(spec_of(incomplete))
    assert caught.value.code == "base-incomplete"
    assert image_ids(docker_client) == before


def test_the_base_keeps_its_user(docker_client: Any, base: str) -> None:
    image = build(spec_of(derive(docker_client, base, "user", "USER server")))
    assert docker_client.images.get(image.id).attrs["Config"]["User"] == "server"


def test_no_network_in_the_build(docker_client: Any, base: str, tmp_path: Path) -> None:
    recipe = tmp_path / "Dockerfile"
    recipe.write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n"
        'RUN python3 -c "import socket; '
        "print('interfaces', [name for _, name in socket.if_nameindex()]); raise SystemExit(7)\"\n"
    )
    lines: list[str] = []
    with pytest.raises(QuantgateError) as caught:
        build(spec_of(base), tell=lines.append, dockerfile=recipe)
    assert caught.value.code == "build-failed"
    assert "interfaces ['lo']" in "\n".join(lines)


def test_no_space(docker_client: Any, base: str, tmp_path: Path) -> None:
    recipe = tmp_path / "Dockerfile"
    recipe.write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\n"
        "RUN echo 'write /big: no space left on device' && python3 -c 'raise SystemExit(1)'\n"
    )
    with pytest.raises(QuantgateError) as caught:
        build(spec_of(base), dockerfile=recipe)
    assert caught.value.code == "docker-no-space"


def test_no_dockerfile(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        build(spec_of("x"), dockerfile=tmp_path / "Dockerfile")
    assert caught.value.code == "dockerfile-missing"


def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import socket

    from docker.errors import DockerException

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(QuantgateError) as caught, docker_engine():
        pass
    assert caught.value.code == "docker-missing"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/dead.sock")
    with pytest.raises(TransientError) as unreachable, docker_engine():
        pass
    assert unreachable.value.code == "docker-unreachable"

    def refusing(**_: object) -> None:
        raise DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))")

    monkeypatch.setattr("docker.DockerClient", refusing)
    with pytest.raises(QuantgateError) as denied, docker_engine():
        pass
    assert denied.value.code == "docker-denied"
    assert len(os.environ["DOCKER_HOST"]) < 200
