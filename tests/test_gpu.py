from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.errors import TransientError
from tasks.gpu import gpu_lock, quantizes_on_gpu, serves_on_gpu, visible_gpus
from tasks.spec import ReleaseSpec, ServeSpec
from tasks.store import PROJECT

HOLDER = """
import sys, time
from pathlib import Path
from tasks.gpu import gpu_lock
with gpu_lock(Path(sys.argv[1]), "first", ["GPU-a"]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds GPU-a."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()


def test_a_held_gpu_is_waited_for_by_name(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    told: list[str] = []
    with (
        pytest.raises(TransientError, match=rf"run first \(pid {holder.pid}\)"),
        gpu_lock(tmp_path, "second", ["GPU-a"], lambda _, words: told.append(words), patience=0.1),
    ):
        raise AssertionError("two runs hold one GPU")
    assert "held by run first" in told[0]


def test_another_gpu_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with gpu_lock(tmp_path, "second", ["GPU-b"], patience=0):
        pass


def test_kill_frees_it_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    started = time.monotonic()
    with gpu_lock(tmp_path, "second", ["GPU-a"], patience=5):
        assert time.monotonic() - started < 2


def test_it_can_be_taken_again_after_its_block(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with gpu_lock(tmp_path, name, ["GPU-a", "GPU-b"], patience=0):
            pass


def test_a_child_of_the_holder_does_not_keep_it(tmp_path: Path) -> None:
    with gpu_lock(tmp_path, "first", ["GPU-a"]):
        child = subprocess.Popen(["sleep", "30"])
    try:
        with gpu_lock(tmp_path, "second", ["GPU-a"], patience=0):
            pass
    finally:
        child.kill()
        child.wait()


def test_the_driver_names_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for bus, uuid in (("0000:02:00.0", "GPU-b"), ("0000:01:00.0", "GPU-a")):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(f"Model: X\nGPU UUID: \t {uuid}\n")
    assert visible_gpus(tmp_path) == ("GPU-a", "GPU-b")
    assert visible_gpus(tmp_path / "absent") == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus(tmp_path) == ()


def test_who_needs_a_gpu(demo_spec: ReleaseSpec) -> None:
    def serve(**fields: object) -> bool:
        return serves_on_gpu(ServeSpec.model_validate(fields))

    assert not serve(engine="reference")
    assert serve(engine="reference", flags=["--device=cuda"])
    assert serve(engine="sglang")
    assert serve(start={"how": "container"})
    assert not serve(start={"how": "container", "gpus": "none"})
    assert not serve(start={"how": "url", "url": "http://127.0.0.1:1"})
    assert quantizes_on_gpu(demo_spec)
