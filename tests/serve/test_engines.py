from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tasks.artifacts import Endpoint
from tasks.errors import BadInputError, TransientError
from tasks.serve import engines, process, procfs
from tasks.serve.environment import engine_environment, is_secret
from tasks.spec import ServeSpec

FAKE = Path(__file__).with_name("fake_engine.py")
REPO = Path(__file__).parents[2]


def spec_for(*flags: str, port: int = 0, **more: object) -> ServeSpec:
    start = {"how": "process", "command": ["{python}", str(FAKE), "{port}", *flags]}
    return ServeSpec.model_validate(
        {"engine": "reference", "start": start, "port": port, **more},
    )


def until(true: Callable[[], object], seconds: float = 10) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if true():
            return True
        time.sleep(0.02)
    return bool(true())


def answers(endpoint: Endpoint) -> bool:
    try:
        return httpx.get(endpoint.url + "/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def speaks(endpoint: Endpoint) -> bool:
    try:
        return bool(httpx.get(endpoint.url, timeout=2, trust_env=False).status_code)
    except httpx.HTTPError:
        return False


def test_serves_waits_until_ready_and_is_gone_after(tmp_path: Path) -> None:
    log = tmp_path / "run" / "engine.log"
    with engines.serve(
        tmp_path, spec_for("--delay", "0.6", "--child"), None, log, "r1"
    ) as endpoint:
        seconds = engines.wait_ready(endpoint, 60)
        assert seconds > 0
        assert engines.alive(endpoint)
        assert endpoint.pidfile == tmp_path / "run" / "r1.engine.json"
        record = process.EngineRecord.read(endpoint.pidfile)
        assert record is not None and record.run == "r1" and record.owner_alive()
        members = record.members()
        assert len(members) == 3  # the guard, the engine, and its child in another session
    assert not answers(endpoint)
    assert not any(procfs.started(pid) for pid in members)
    assert not engines.alive(endpoint)
    assert not endpoint.pidfile.exists()
    assert "engine pid=" in log.read_text()


def test_a_stubborn_engine_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.EngineProcess.stop, "__defaults__", (0.3,))
    with engines.serve(tmp_path, spec_for("--stubborn"), None, tmp_path / "log", "r") as endpoint:
        engines.wait_ready(endpoint, 60)
    assert not answers(endpoint)


def test_is_stopped_when_the_block_fails_and_the_error_is_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        engines.serve(tmp_path, spec_for(), None, tmp_path / "log", "r") as endpoint,
    ):
        engines.wait_ready(endpoint, 60)
        raise KeyboardInterrupt
    assert not answers(endpoint)


def test_stop_may_be_called_again_and_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, str(FAKE), str(engines.free_port(0))]
    engine = process.start_process(command, dict(os.environ), tmp_path / "log", "r")
    assert engine.alive()
    assert engines.stop_engines(tmp_path) == ["r"]
    assert engines.stop_engines(tmp_path) == []
    engine.stop()
    engine.stop()
    assert not engine.alive()


def test_an_engine_that_ends_before_it_is_ready_is_told_at_once(tmp_path: Path) -> None:
    spec = spec_for("--delay", "60", "--exit-after", "0.2")
    began = time.monotonic()
    with (
        pytest.raises(engines.EngineExitedError, match="CUDA out of memory") as caught,
        engines.serve(tmp_path, spec, None, tmp_path / "log", "r") as endpoint,
    ):
        engines.wait_ready(endpoint, 60)
    assert time.monotonic() - began < 10
    assert caught.value.code == "engine-exited"


@pytest.mark.parametrize("code", ["0", "3"])
def test_an_exit_while_it_should_serve_is_a_failure(tmp_path: Path, code: str) -> None:
    spec = spec_for("--exit-after", "0.3", "--exit-code", code)
    with (
        pytest.raises(engines.EngineExitedError, match="while it should have served"),
        engines.serve(tmp_path, spec, None, tmp_path / "log", "r") as endpoint,
    ):
        assert until(lambda: not engines.alive(endpoint))


def test_not_ready_in_time(tmp_path: Path) -> None:
    with (
        pytest.raises(TransientError, match=r"not ready after 1 s \(status 503\)") as caught,
        engines.serve(tmp_path, spec_for("--delay", "60"), None, tmp_path / "log", "r") as endpoint,
    ):
        assert until(lambda: speaks(endpoint), 30)
        engines.wait_ready(endpoint, 1)
    assert caught.value.code == "engine-not-ready"


def test_a_command_that_cannot_run(tmp_path: Path) -> None:
    start = {"how": "process", "command": ["/nowhere/engine"]}
    spec = ServeSpec.model_validate({"engine": "reference", "start": start})
    with (
        pytest.raises(engines.EngineExitedError, match="cannot start /nowhere/engine"),
        engines.serve(tmp_path, spec, None, tmp_path / "log", "r") as endpoint,
    ):
        engines.wait_ready(endpoint, 60)


def test_no_token_reaches_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "GITHUB_TOKEN", "OPENAI_API_KEY", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("INDEX", "https://me:secret@example.org/simple")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    spec = spec_for(env={"NCCL_DEBUG": "WARN"})
    with engines.serve(tmp_path, spec, None, tmp_path / "log", "r") as endpoint:
        engines.wait_ready(endpoint, 60)
        seen = httpx.get(endpoint.url + "/health", trust_env=False).json()["environment"]
    assert "secret" not in json.dumps(seen)
    assert seen["NCCL_DEBUG"] == "WARN"
    assert seen["TOKENIZERS_PARALLELISM"] == "false"
    assert str(REPO) in seen["PYTHONPATH"]


def test_a_token_in_the_spec_is_refused() -> None:
    with pytest.raises(BadInputError, match="HF_TOKEN looks like a secret"):
        engine_environment({}, {"HF_TOKEN": "x"})
    assert is_secret("EXTRA", "hf_" + "abcdefgh" * 3)
    assert not is_secret("SGLANG_ENABLE_JIT_DEEPGEMM", "0")


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(TransientError, match=f"127.0.0.1:{port} is taken"),
            engines.serve(tmp_path, spec_for(port=port), None, tmp_path / "log", "r"),
        ):
            pass
    assert not (tmp_path / "log").exists()


def test_wrong_interpreter_and_wrong_checkpoint(tmp_path: Path) -> None:
    start = {"how": "process", "python": "/nowhere/python"}
    spec = ServeSpec.model_validate({"engine": "sglang", "start": start})
    with (
        pytest.raises(BadInputError, match=r"serve\.start\.python"),
        engines.serve(tmp_path, spec, None, tmp_path / "log", "r"),
    ):
        pass
    with (
        pytest.raises(BadInputError, match="is no folder"),
        engines.serve(tmp_path / "absent", spec, None, tmp_path / "log", "r"),
    ):
        pass


def test_an_interpreter_without_the_engine(tmp_path: Path) -> None:
    spec = ServeSpec.model_validate({"engine": "vllm"})
    with (
        pytest.raises(BadInputError, match="has no vllm"),
        engines.serve(tmp_path, spec, None, tmp_path / "log", "r"),
    ):
        pass


def test_an_older_log_is_kept_aside(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    for _ in range(3):
        with engines.serve(tmp_path, spec_for(), None, log, "r") as endpoint:
            engines.wait_ready(endpoint, 60)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "engine.log",
        "engine.log.1",
        "engine.log.2",
    ]
    assert log.read_text().count("engine pid=") == 1


def test_an_engine_at_a_url_is_never_started_nor_stopped(tmp_path: Path) -> None:
    with engines.serve(tmp_path, spec_for(), None, tmp_path / "log", "r") as running:
        engines.wait_ready(running, 60)
        start = {"how": "url", "url": running.url + "/", "log": str(tmp_path / "log")}
        spec = ServeSpec.model_validate({"engine": "sglang", "start": start})
        with engines.serve(tmp_path, spec, None, tmp_path / "other", "r2") as endpoint:
            assert endpoint.url == running.url
            assert endpoint.model is None and endpoint.pidfile is None
            assert endpoint.log == tmp_path / "log"
            engines.wait_ready(endpoint, 5)
        assert answers(running)
        named = spec.model_copy(update={"model_name": "tiny"})
        named = ServeSpec.model_validate({**spec.model_dump(), "model_name": "tiny"})
        with engines.serve(tmp_path, named, None, tmp_path / "other", "r2") as endpoint:
            assert endpoint.model == "tiny"
        assert not (tmp_path / "other").exists()


OWNER = """
import sys, time
from pathlib import Path
from tasks.serve import engines
from tests.serve.test_engines import spec_for
root = Path(sys.argv[1])
log = root / "releases" / "demo" / "r9" / "engine.log"
with engines.serve(root, spec_for("--child"), None, log, "r9") as endpoint:
    engines.wait_ready(endpoint, 60)
    print(endpoint.url, flush=True)
    time.sleep(600)
"""


def start_owner(root: Path) -> tuple[subprocess.Popen[str], process.EngineRecord, str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    url = owner.stdout.readline().strip()
    record = process.EngineRecord.read(root / "releases/demo/r9/r9.engine.json")
    assert record is not None and record.owner == owner.pid
    return owner, record, url


def test_kill_9_of_the_owner_takes_the_engine_with_it(tmp_path: Path) -> None:
    owner, record, _ = start_owner(tmp_path)
    owner.kill()
    owner.wait()
    engine_log = tmp_path / "releases/demo/r9/engine.log"
    engine = int(re.findall(r"engine pid=(\d+)", engine_log.read_text())[0])
    assert until(lambda: procfs.started(engine) is None)
    # The child that left the session is what the next start has to find.
    assert record.members()
    assert engines.cleanup_leftovers(tmp_path) == ["r9"]
    assert not record.members()


def test_kill_9_of_owner_and_guard_leaves_it_to_the_next_start(tmp_path: Path) -> None:
    owner, record, url = start_owner(tmp_path)
    assert record.pid is not None
    assert engines.cleanup_leftovers(tmp_path) == []  # its owner lives: left alone
    os.kill(record.pid, signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert httpx.get(url + "/health", trust_env=False).status_code == 200
    assert len(record.members()) == 2
    assert engines.cleanup_leftovers(tmp_path) == ["r9"]
    assert not record.members()
    assert not list(tmp_path.rglob("*.engine.json"))
    assert engines.cleanup_leftovers(tmp_path) == []


def test_sigterm_of_the_owner_leaves_nothing(tmp_path: Path) -> None:
    owner, record, _ = start_owner(tmp_path)
    owner.terminate()
    owner.wait()
    assert until(lambda: procfs.started(record.pid or 0) is None)
    engines.cleanup_leftovers(tmp_path)
    assert not record.members()


def test_a_recycled_pid_is_never_killed(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        start = procfs.started(stranger.pid)
        dead = {"run": "old", "marker": "m", "owner": 2**22 - 1, "owner_start": "boot:1"}
        recycled = process.EngineRecord(**dead, pid=stranger.pid, start="boot:12345")
        recycled.write(process.pidfile_of(tmp_path, "old"))
        assert engines.cleanup_leftovers(tmp_path) == []
        assert not list(tmp_path.iterdir())
        assert procfs.alive(stranger.pid, start)
        assert not procfs.send(stranger.pid, signal.SIGKILL, "boot:12345")
        assert stranger.poll() is None
        # An owner's pid that was given to somebody else counts as a dead owner.
        owned = process.EngineRecord(
            run="old", marker="m", owner=stranger.pid, owner_start="boot:12345"
        )
        assert not owned.owner_alive()
    finally:
        stranger.kill()
        stranger.wait()


def test_a_damaged_pidfile_is_nothing_to_stop_at(tmp_path: Path) -> None:
    (tmp_path / "r.engine.json").write_text("{")
    assert engines.cleanup_leftovers(tmp_path) == []
    assert engines.stop_engines(tmp_path) == []
