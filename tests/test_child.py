from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.child import call_in_child
from tasks.errors import BadInputError, QuantgateError
from tasks.progress import Progress, silent
from tasks.spec import DraftSpec
from tasks.store import PROJECT

HERE = "tests.test_child"


def describe(spec: DraftSpec, folder: Path, progress: Progress = silent) -> dict[str, str]:
    progress(0.5, "half way")
    print("a library's chatter")
    return {"precision": spec.precision, "folder": folder.name, "pid": str(os.getpid())}


def refuse(progress: Progress = silent) -> None:
    raise BadInputError("bad", "No.", "Do it right.")


def crash(progress: Progress = silent) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(flag: Path, progress: Progress = silent) -> None:
    flag.write_text(str(os.getpid()))
    time.sleep(60)


def test_arguments_arrive_as_what_the_function_asks_for(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    value = call_in_child(
        f"{HERE}:describe",
        {"spec": DraftSpec(precision="bf16"), "folder": tmp_path},
        tmp_path / "log",
        lambda fraction, words: told.append((fraction, words)),
    )
    assert value["precision"] == "bf16"
    assert value["folder"] == tmp_path.name
    assert value["pid"] != str(os.getpid())
    assert told == [(0.5, "half way")]
    assert "chatter" in (tmp_path / "log").read_text()


def test_the_childs_own_error_comes_back_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        call_in_child(f"{HERE}:refuse", {}, tmp_path / "log")
    assert caught.value.as_dict() == {"code": "bad", "message": "No.", "remedy": "Do it right."}


def test_a_killed_child_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(QuantgateError, match="signal 9") as caught:
        call_in_child(f"{HERE}:crash", {}, tmp_path / "log")
    assert caught.value.code == "child-died"
    assert str(tmp_path / "log") in caught.value.remedy


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = (
        "from pathlib import Path; from tasks.child import call_in_child;"
        f"call_in_child('{HERE}:hang', {{'flag': {str(flag)!r}}}, Path({str(tmp_path / 'log')!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    _wait_for(flag.exists)
    child = int(flag.read_text() or 0) or int(_read_later(flag))
    parent.kill()
    parent.wait()
    _wait_for(lambda: not _alive(child))


def _read_later(flag: Path) -> str:
    _wait_for(lambda: bool(flag.read_text()))
    return flag.read_text()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait_for(condition: object, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
