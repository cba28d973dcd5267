"""A Docker engine, a registry and a base image of their own for the tests of the serving image."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.serve.ports import free_port
from tests.image import base_image, wheels

VERSION = "0.5.15.post1"
_NEEDED = "needs root, dockerd and docker-registry (tests/image/setup_docker.sh installs them)"


def need_docker(*programs: str) -> None:
    """Skip where there can be no Docker engine; in CI that is a failure."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if os.geteuid() == 0 and not missing:
        return
    why = f"{_NEEDED}: {', '.join(missing) or 'not root'}"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def docker_socket() -> Iterator[str]:
    """The URL of a Docker engine started for these tests alone, stopped at their end."""
    need_docker("dockerd")
    # Not pytest's own folder: a socket's path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="qg-docker-"))
    url = f"unix://{folder}/docker.sock"
    command = ["dockerd", "--data-root", f"{folder}/root", "--exec-root", f"{folder}/exec"]
    command += ["--pidfile", f"{folder}/pid", "-H", url, "--storage-driver=overlay2"]
    command += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    command += ["--ip-masq=false"]
    environment = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
    with (folder / "log").open("wb") as log:
        engine = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        _await_engine(engine, folder, url)
        yield url
    finally:
        _end(engine)
        _remove(folder)


def _await_engine(engine: subprocess.Popen[bytes], folder: Path, url: str) -> None:
    import docker

    limit = time.monotonic() + 60
    while time.monotonic() < limit and engine.poll() is None:
        try:
            client = docker.DockerClient(base_url=url, timeout=10)
            client.ping()
        except Exception:
            time.sleep(0.1)
            continue
        client.close()
        return
    raise RuntimeError("dockerd did not start: " + (folder / "log").read_text()[-2000:])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _remove(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((item for item in mounts if item.startswith(str(folder))), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def docker_client(docker_socket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of that engine; the product finds it through DOCKER_HOST."""
    import docker

    monkeypatch.setenv("DOCKER_HOST", docker_socket)
    client = docker.DockerClient(base_url=docker_socket)
    yield client
    client.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real sources of SGLang and of what it pins."""
    try:
        return wheels.site_packages(VERSION, tmp_path_factory.mktemp("site"))
    except wheels.UnreachableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"SGLang {VERSION} is not to be had here: {error}")


@pytest.fixture(scope="session")
def base(docker_socket: str, site: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tag of a base image that holds this Python and SGLang's sources."""
    return import_base(docker_socket, site, tmp_path_factory.mktemp("base"), VERSION)


def import_base(socket: str, site: Path, scratch: Path, tag: str) -> str:
    import docker

    base_image.write_tar(scratch / "base.tar", site)
    client = docker.DockerClient(base_url=socket, timeout=300)
    with (scratch / "base.tar").open("rb") as file:
        client.api.import_image(
            src=file, repository="local/sglang", tag=tag, changes=["CMD python3"]
        )
    client.close()
    (scratch / "base.tar").unlink()
    return f"local/sglang:{tag}"


def derive(client: Any, base: str, tag: str, *steps: str) -> str:
    """Tag of an image that is `base` after some more Dockerfile lines."""
    recipe = io.BytesIO("\n".join([f"FROM {base}", *steps]).encode())
    client.images.build(fileobj=recipe, tag=f"local/sglang:{tag}", network_mode="none", rm=True)
    return f"local/sglang:{tag}"


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of an empty registry on loopback."""
    need_docker("docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    port = free_port(0)
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        limit = time.monotonic() + 30
        while True:
            try:
                opener.open(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
                break
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        _end(process)
