from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.errors import QuantgateError, TransientError
from tasks.store import PROJECT, Store, code_digest, key_of

INPUTS = {"source": "abc", "n": 1}


def write_one(folder: Path) -> dict[str, int]:
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 64)
    (folder / "sub").mkdir()
    (folder / "sub" / "note.txt").write_text("made")
    return {"answer": 42}


def refuse(folder: Path) -> dict[str, int]:
    raise AssertionError("built again")


def test_an_artifact_is_built_once_and_then_reused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    built = store.get_or_build("quantize", INPUTS, write_one)
    again = store.get_or_build("quantize", INPUTS, refuse)
    assert (built.reused, again.reused) == (False, True)
    assert again.record == {"answer": 42}
    assert built.digest == again.digest
    assert (again.files / "sub" / "note.txt").read_text() == "made"


def test_other_inputs_are_another_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.get_or_build("quantize", INPUTS, write_one)
    with pytest.raises(AssertionError, match="built again"):
        store.get_or_build("quantize", {**INPUTS, "n": 2}, refuse)


@pytest.mark.parametrize("damage", ["deleted", "shortened", "flipped", "record", "folder", "added"])
def test_a_damaged_artifact_is_built_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    entry = store.get_or_build("quantize", INPUTS, write_one)
    weights = entry.files / "weights.bin"
    if damage == "deleted":
        weights.unlink()
    elif damage == "shortened":
        os.truncate(weights, 100)
    elif damage == "flipped":
        with weights.open("r+b") as file:
            file.seek(9000)
            file.write(b"\xff")
    elif damage == "record":
        (entry.folder / "entry.json").write_text("{")
    elif damage == "added":
        (entry.files / "stranger.txt").write_text("not ours")
    else:
        weights.unlink()
        weights.mkdir()
    assert store.find("quantize", INPUTS) is None
    again = store.get_or_build("quantize", INPUTS, write_one)
    assert not again.reused
    assert again.digest == entry.digest


def test_a_touched_but_equal_file_is_still_good(tmp_path: Path) -> None:
    store = Store(tmp_path)
    entry = store.get_or_build("quantize", INPUTS, write_one)
    os.utime(entry.files / "weights.bin", (1, 1))
    assert store.find("quantize", INPUTS) is not None


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, int]:
        (folder / "half").write_text("half")
        raise ValueError("no")

    store = Store(tmp_path)
    with pytest.raises(ValueError, match="no"):
        store.get_or_build("quantize", INPUTS, fail)
    assert not any((tmp_path / ".quantgate" / "building").iterdir())
    assert store.find("quantize", INPUTS) is None


def test_a_build_that_can_resume_finds_what_was_there(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> dict[str, int]:
        (folder / "records.jsonl").write_text("one\n")
        raise KeyboardInterrupt

    def go_on(folder: Path) -> dict[str, int]:
        assert (folder / "records.jsonl").read_text() == "one\n"
        return {}

    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.get_or_build("gate-gsm8k", INPUTS, interrupted, resume=True)
    assert not store.get_or_build("gate-gsm8k", INPUTS, go_on, resume=True).reused


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(QuantgateError, match="full") as caught:
        Store(tmp_path).get_or_build("quantize", INPUTS, fill)
    assert caught.value.code == "no-space"


def test_what_another_run_is_making_is_waited_for_and_then_reused(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def build(folder: Path) -> dict[str, int]:
        begun.set()
        assert go_on.wait(30)
        return write_one(folder)

    def waiting(fraction: float, words: str) -> None:
        assert "held by run first" in words
        go_on.set()

    store = Store(tmp_path)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(store.get_or_build, "quantize", INPUTS, build, holder="first")
        assert begun.wait(30)
        second = store.get_or_build("quantize", INPUTS, refuse, waiting=waiting)
        assert not first.result().reused
    assert second.reused and second.record == {"answer": 42}


KILLED = """
import os, sys, time
from pathlib import Path
from tasks.store import Store
def build(folder):
    (folder / "half").write_text("half")
    print("building", flush=True)
    time.sleep(60)
Store(Path(sys.argv[1])).get_or_build("quantize", {"a": 1}, build, holder="first")
"""


def test_kill_9_in_the_middle_blocks_nobody_and_leaves_no_half(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "building"
    store = Store(tmp_path)
    told: list[str] = []

    def hear(fraction: float, words: str) -> None:
        told.append(words)

    with pytest.raises(TransientError, match="made by run first") as caught:
        store.get_or_build(
            "quantize",
            {"a": 1},
            write_one,
            patience=0.1,
            waiting=lambda _, words: told.append(words),
        )
    assert caught.value.code == "store-busy"
    assert told and "held by run" in told[0]
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert store.find("quantize", {"a": 1}) is None
    entry = store.get_or_build("quantize", {"a": 1}, write_one)
    assert not (entry.files / "half").exists()


def test_sweep_removes_what_dead_runs_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    left = tmp_path / ".quantgate" / "building" / f"quantize-{key_of({'a': 1})}" / "files"
    left.mkdir(parents=True)
    assert store.sweep() == [left.parent.name]
    assert not left.exists()


def test_entries_are_listed_and_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.get_or_build("quantize", INPUTS, write_one)
    time.sleep(0.01)
    store.get_or_build("requant", INPUTS, write_one)
    assert [entry.stage for entry in store.entries()] == ["quantize", "requant"]
    store.remove(first)
    assert [entry.stage for entry in store.entries()] == ["requant"]


def test_code_is_part_of_the_address() -> None:
    assert code_digest("tasks/store.py") != code_digest("tasks/run.py")
    assert code_digest("tasks/store.py") == code_digest("tasks/store.py")
