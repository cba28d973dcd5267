"""The container engine, on a real Docker engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.artifacts import Endpoint, Verdict
from tasks.errors import BadInputError, QuantgateError
from tasks.gates.smoke import run_smoke
from tasks.image.build import build
from tasks.serve import engines
from tasks.serve.container import INSIDE
from tasks.serve.containers import container_name
from tasks.spec import ImageSpec, ServeSpec, SmokeGate

pytestmark = [pytest.mark.docker, pytest.mark.network]

REPO = Path(__file__).parents[2]
FAKE = "/fake/fake_engine.py"


def spec_of(image: str | None, *flags: str, **more: Any) -> ServeSpec:
    start = {
        "how": "container",
        "image": image,
        "gpus": "none",
        "shm_gib": 0.0625,
        "mounts": {"/fake": str(REPO / "tests/serve")},
        "command": ["python3", FAKE, "{port}", *flags],
        **more.pop("start", {}),
    }
    return ServeSpec.model_validate({"engine": "reference", "start": start, **more})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def until(true: Callable[[], object], seconds: float = 20) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if true():
            return True
        time.sleep(0.05)
    return bool(true())


def answers(endpoint: Endpoint) -> bool:
    try:
        return httpx.get(endpoint.url + "/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def containers(client: Any) -> list[str]:
    return [item.name for item in client.containers.list(all=True)]


def test_serves_with_everything_as_asked(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    image = build(ImageSpec(base=base, platform="linux/amd64"))
    spec = spec_of(None, "--delay", "0.5", start={"memory_gib": 0.5}, env={"NCCL_DEBUG": "WARN"})
    log = tmp_path / "run" / "engine.log"
    with engines.serve(checkpoint, spec, image, log, "run 1") as endpoint:
        engines.wait_ready(endpoint, 60)
        assert engines.alive(endpoint)
        assert endpoint.container is not None
        container = docker_client.containers.get(endpoint.container)
        attrs = container.attrs
        host = attrs["HostConfig"]
        assert container.name == container_name("run 1") == "quantgate-run_1"
        assert container.labels["quantgate.run"] == "run 1"
        assert attrs["Image"] == image.id
        assert host["Init"] is True
        assert host["Memory"] == host["MemorySwap"] == 1 << 29
        assert host["ShmSize"] == 1 << 26
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert not host["PortBindings"] and host["NetworkMode"] == "host"
        mounts = {item["Destination"]: item for item in attrs["Mounts"]}
        assert mounts[INSIDE]["Source"] == str(checkpoint) and not mounts[INSIDE]["RW"]
        seen = httpx.get(endpoint.url + "/", trust_env=False).json()["environment"]
        assert seen["NCCL_DEBUG"] == "WARN"
        assert endpoint.url.endswith(":" + seen["QUANTGATE_PORT"])
        assert not {"HF_TOKEN", "DOCKER_HOST"} & set(seen)
        check = container.exec_run(["python3", "-I", "/opt/quantgate/patches/healthy.py"])
        assert check.exit_code == 0
        done = container.exec_run(["sh", "-c", f": > {INSIDE}/x"])
        assert done.exit_code != 0 and b"Read-only" in done.output
    assert not answers(endpoint)
    assert containers(docker_client) == []
    assert "engine pid=" in log.read_text()


def test_is_removed_when_the_block_fails(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        engines.serve(checkpoint, spec_of(base), None, tmp_path / "log", "r") as endpoint,
    ):
        engines.wait_ready(endpoint, 60)
        raise KeyboardInterrupt
    assert containers(docker_client) == []


@pytest.mark.parametrize("code", ["0", "3"])
def test_an_exit_while_it_should_serve_is_a_failure(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path, code: str
) -> None:
    spec = spec_of(base, "--exit-after", "0.5", "--exit-code", code)
    with (
        pytest.raises(engines.EngineExitedError, match="CUDA out of memory"),
        engines.serve(checkpoint, spec, None, tmp_path / "log", "r") as endpoint,
    ):
        assert until(lambda: not engines.alive(endpoint))
    assert containers(docker_client) == []


def test_killed_from_outside_while_it_serves(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(engines.EngineExitedError),
        engines.serve(checkpoint, spec_of(base), None, tmp_path / "log", "r") as endpoint,
    ):
        engines.wait_ready(endpoint, 60)
        docker_client.containers.get(endpoint.container).kill()
        assert until(lambda: not engines.alive(endpoint))
    assert containers(docker_client) == []


def test_out_of_memory_is_told(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    hungry = "import time; time.sleep(0.5); x = bytearray(1 << 28); x[::4096] = b'1' * (1 << 16)"
    start = {"memory_gib": 0.03125, "command": ["python3", "-c", hungry]}
    with (
        pytest.raises(engines.EngineExitedError, match="exit code 137, out of memory"),
        engines.serve(
            checkpoint, spec_of(base, start=start), None, tmp_path / "log", "r"
        ) as endpoint,
    ):
        assert until(lambda: not engines.alive(endpoint))


def test_ends_before_it_is_ready(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    spec = spec_of(base, start={"command": ["python3", "-c", "raise SystemExit('no such flag')"]})
    began = time.monotonic()
    with (
        pytest.raises(engines.EngineExitedError, match="no such flag"),
        engines.serve(checkpoint, spec, None, tmp_path / "log", "r") as endpoint,
    ):
        engines.wait_ready(endpoint, 120)
    assert time.monotonic() - began < 60


def test_refusals_are_clear(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    cases = (
        (spec_of("local/absent:1"), BadInputError, "serve-image-missing"),
        (spec_of(None), BadInputError, "serve-image"),
        (spec_of(base, start={"gpus": "all"}), QuantgateError, "docker-no-gpu"),
        (spec_of(base, start={"mounts": {"/x": str(tmp_path / "absent")}}), BadInputError,
         "serve-mount"),
    )  # fmt: skip
    for spec, kind, code in cases:
        with (
            pytest.raises(kind) as caught,
            engines.serve(checkpoint, spec, None, tmp_path / "log", "r"),
        ):
            pass
        assert caught.value.code == code
        assert "\n" not in caught.value.message
    with engines.serve(checkpoint, spec_of(base), None, tmp_path / "one", "r"):
        with (
            pytest.raises(QuantgateError) as taken,
            engines.serve(checkpoint, spec_of(base), None, tmp_path / "two", "r"),
        ):
            pass
        assert taken.value.code == "docker-name-taken"
    assert containers(docker_client) == []


OWNER = """
import sys, time
from pathlib import Path
from tasks.serve import engines
from tests.image.test_image_serve import spec_of
root = Path(sys.argv[1])
log = root / "releases" / "demo" / "r9" / "logs" / "engine.log"
with engines.serve(root / "checkpoint", spec_of(sys.argv[2]), None, log, "r9") as endpoint:
    engines.wait_ready(endpoint, 60)
    print(endpoint.url, flush=True)
    time.sleep(600)
"""


def start_owner(root: Path, base: str) -> tuple[subprocess.Popen[str], str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root), base],
        cwd=REPO,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert owner.stdout is not None
    return owner, owner.stdout.readline().strip()


def test_kill_9_of_the_owner_leaves_it_to_the_next_start(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    owner, url = start_owner(tmp_path, base)
    assert engines.cleanup_leftovers(tmp_path) == []  # its run lives
    assert containers(docker_client) == ["quantgate-r9"]
    owner.kill()
    owner.wait()
    assert httpx.get(url + "/health", trust_env=False).status_code == 200
    assert engines.cleanup_leftovers(tmp_path / "elsewhere") == []
    # The same run, started again, takes the place of its own dead container.
    with engines.serve(checkpoint, spec_of(base), None, tmp_path / "log", "r9") as endpoint:
        engines.wait_ready(endpoint, 60)
    assert containers(docker_client) == []


def test_leftovers_of_dead_runs_are_removed(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    owner, _ = start_owner(tmp_path, base)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert engines.cleanup_leftovers(tmp_path) == ["r9"]
    assert containers(docker_client) == []
    assert engines.cleanup_leftovers(tmp_path) == []


def test_a_hook_in_another_process_stops_it(
    docker_client: Any, base: str, checkpoint: Path, tmp_path: Path
) -> None:
    owner, url = start_owner(tmp_path, base)
    try:
        folder = tmp_path / "releases" / "demo" / "r9"
        assert engines.stop_engines(folder) == ["r9"]
        assert engines.stop_engines(folder) == []
        with pytest.raises(httpx.HTTPError):
            httpx.get(url + "/health", trust_env=False)
        assert containers(docker_client) == []
    finally:
        owner.kill()
        owner.wait()


def test_without_docker_only_a_container_fails(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with (
        pytest.raises(QuantgateError) as caught,
        engines.serve(checkpoint, spec_of("x"), None, tmp_path / "log", "r"),
    ):
        pass
    assert caught.value.code == "docker-missing"
    assert engines.cleanup_leftovers(tmp_path) == []


def test_a_container_serves_the_gates(
    docker_client: Any, base: str, demo_release: Path, tmp_path: Path
) -> None:
    """The serving image itself, with the reference engine mounted, passes the smoke gate."""
    image = build(ImageSpec(base=base, platform="linux/amd64"))
    start = {
        "how": "container",
        "gpus": "none",
        "shm_gib": 0.25,
        "python": sys.executable,
        "mounts": {sys.prefix: sys.prefix, str(REPO): str(REPO)},
    }
    spec = ServeSpec.model_validate(
        {
            "engine": "reference",
            "start": start,
            "context_length": 512,
            "env": {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
            "ready_timeout": 180,
        }
    )
    gate = SmokeGate(max_tokens=64)
    with engines.serve(demo_release, spec, image, tmp_path / "engine.log", "gates") as endpoint:
        report = run_smoke(endpoint, gate, spec, tmp_path / "smoke", demo_release)
    assert report.verdict is Verdict.PASS, report.reasons
    assert "quantgate kv-scales: role=draft" in (tmp_path / "engine.log").read_text()
    assert containers(docker_client) == []
