from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.artifacts import Card
from tasks.errors import BadInputError
from tasks.hub import folder
from tasks.hub.folder import publish_folder
from tasks.hub.marker import read_release
from tasks.spec import PublishSpec


def make_release(root: Path, words: str, shards: int = 3) -> tuple[Path, Card]:
    checkpoint = root / words / "checkpoint"
    checkpoint.mkdir(parents=True)
    for number in range(shards):
        (checkpoint / f"model-{number}.safetensors").write_bytes(words.encode() * 2000)
    (checkpoint / "config.json").write_text(json.dumps({"words": words}))
    (checkpoint / "README.md").write_text("the source's own card")
    card = root / words / "card"
    (card / "evidence").mkdir(parents=True)
    (card / "README.md").write_text(f"# {words}\n")
    (card / "evidence" / "provenance.json").write_text("{}")
    files = (card / "evidence" / "provenance.json",)
    return checkpoint, Card(path=card / "README.md", files=files)


def spec(root: Path) -> PublishSpec:
    return PublishSpec(repo="org/model", folder=root / "published")


def contents(place: Path) -> dict[str, bytes]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def test_a_release_looks_like_a_repository(tmp_path: Path) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    publication = publish_folder(checkpoint, card, spec(tmp_path), "r1")
    place = tmp_path / "published" / "org" / "model"
    assert publication.location == str(place)
    assert set(contents(place)) == {
        ".gitattributes",
        "README.md",
        "config.json",
        "evidence/provenance.json",
        "evidence/release.json",
        *(f"model-{number}.safetensors" for number in range(3)),
    }
    assert (place / "README.md").read_text() == "# first\n"
    assert read_release(place) == {"release_id": "r1", "digest": publication.revision}
    assert (place / "model-0.safetensors").samefile(checkpoint / "model-0.safetensors")
    assert not (place / "config.json").samefile(checkpoint / "config.json")


def test_publishing_again_touches_nothing(tmp_path: Path) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    first = publish_folder(checkpoint, card, spec(tmp_path), "r1")
    inode = Path(first.location).stat().st_ino
    assert publish_folder(checkpoint, card, spec(tmp_path), "r1") == first
    assert Path(first.location).stat().st_ino == inode


def test_an_altered_release_is_put_right(tmp_path: Path) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    first = publish_folder(checkpoint, card, spec(tmp_path), "r1")
    (Path(first.location) / "config.json").write_text("{}")
    (Path(first.location) / "stray.txt").write_text("")
    assert publish_folder(checkpoint, card, spec(tmp_path), "r1") == first
    assert not (Path(first.location) / "stray.txt").exists()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_the_next_release_replaces_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(folder, "exchange", lambda one, other: False)
    checkpoint, card = make_release(tmp_path, "first", shards=5)
    publish_folder(checkpoint, card, spec(tmp_path), "r1")
    checkpoint, card = make_release(tmp_path, "second", shards=2)
    publication = publish_folder(checkpoint, card, spec(tmp_path), "r2")
    place = Path(publication.location)
    assert not (place / "model-4.safetensors").exists()
    assert (place / "README.md").read_text() == "# second\n"
    assert [path.name for path in place.parent.iterdir() if path.is_dir()] == ["model"]


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    place = tmp_path / "published" / "org" / "model"
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("years of work")
    with pytest.raises(BadInputError) as caught:
        publish_folder(checkpoint, card, spec(tmp_path), "r1")
    assert caught.value.code == "publish-taken"
    assert contents(place) == {"thesis.txt": b"years of work"}


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    (tmp_path / "published").write_text("a file")
    with pytest.raises(BadInputError) as caught:
        publish_folder(checkpoint, card, spec(tmp_path), "r1")
    assert caught.value.code == "publish-unwritable"


STEPPED = """
import os, sys, time
from pathlib import Path
import tests.hub.test_folder as t
from tasks.hub import folder

# Stop dead before the n-th system-changing step, so that every instant is tried.
count, stop = 0, int(sys.argv[2])
def event(name, args):
    global count
    if name in ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "ctypes.dlsym"):
        count += 1
        if count == stop:
            os.kill(os.getpid(), 9)
root = Path(sys.argv[1])
if sys.argv[3] == "aside":
    folder.exchange = lambda one, other: False
card = t.Card(
    path=root / "second/card/README.md",
    files=(root / "second/card/evidence/provenance.json",),
)
sys.addaudithook(event)
folder.publish_folder(root / "second/checkpoint", card, t.spec(root), "r2")
"""


@pytest.mark.parametrize("way", ["exchange", "aside"])
def test_killed_at_any_step_it_is_the_old_or_the_new(tmp_path: Path, way: str) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    first = publish_folder(checkpoint, card, spec(tmp_path), "r1")
    place = Path(first.location)
    whole = {"r1": contents(place)}
    second = make_release(tmp_path, "second")
    seen = set()
    for step in range(1, 100):
        code = _run_until(tmp_path, step, way)
        if place.exists():
            release = read_release(place)["release_id"]
            seen.add(release)
            if release == "r2" and "r2" not in whole:
                whole["r2"] = contents(place)
                assert whole["r2"]["config.json"] == b'{"words": "second"}'
            assert contents(place) == whole[release]
        else:
            seen.add("absent")
        publish_folder(checkpoint, card, spec(tmp_path), "r1")
        assert contents(place) == whole["r1"]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert seen == {"r1", "r2"} | ({"absent"} if way == "aside" else set())
    publish_folder(*second, spec(tmp_path), "r2")
    assert contents(place) == whole["r2"]
    assert [path.name for path in place.parent.iterdir() if path.is_dir()] == ["model"]


def _run_until(root: Path, step: int, way: str) -> int:
    """Fork, so that the imports are paid once."""
    child = os.fork()
    if child == 0:
        sys.argv = ["-c", str(root), str(step), way]
        try:
            exec(STEPPED, {})
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_two_publishers_take_turns(tmp_path: Path) -> None:
    checkpoint, card = make_release(tmp_path, "first")
    place = spec(tmp_path).folder / "org" / "model"
    place.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys,time\n"
            "lock = open(sys.argv[1], 'w')\n"
            "fcntl.flock(lock, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\n"
            "time.sleep(0.5)\n",
            str(place.with_name(".model~lock")),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    started = time.monotonic()
    publish_folder(checkpoint, card, spec(tmp_path), "r1")
    assert time.monotonic() - started > 0.2
    holder.wait()
