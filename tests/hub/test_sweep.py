"""Every HTTP call of a publication, failed once and killed once: whole in the end, or nothing."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import QuantgateError
from tests.hub.conftest import Emulator, Release, make_release, set_way
from tests.hub.test_publish import check_complete, check_invisible

pytestmark = pytest.mark.slow

WAYS = ("lfs", "xet")
CHANGING = ("POST", "PUT", "DELETE")


def calls_of(emulator: Emulator, release: Release) -> list[str]:
    """The methods of an undisturbed publication's calls, in order."""
    release.publish()
    methods = [call[0] for call in emulator.seen["calls"]]
    emulator.control("reset")
    return methods


def fresh(release: Release, number: int) -> Release:
    """The same release with a memory of its own."""
    return Release(release.root, release.url, f"{release.id}-{number}", release.spec)


def cases(methods: list[str], before: str, after: str) -> Iterator[tuple[int, str]]:
    """(call, kind): each call's answer lost; those that change something also not carried out."""
    for place, method in enumerate(methods, start=1):
        yield place, after
        if method in CHANGING:
            yield place, before


@pytest.mark.parametrize("way", WAYS)
def test_each_call_fails_once(
    emulator: Emulator, release: Release, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_way(way, monkeypatch)
    methods = calls_of(emulator, release)
    assert len(methods) > 20
    for number, (place, kind) in enumerate(cases(methods, "status", "drop-after")):
        emulator.control("reset")
        emulator.fault(kind, at=place, status=500)
        asked = fresh(release, number)
        try:
            asked.publish()
        except QuantgateError as error:
            assert "\n" not in str(error)
            check_invisible(emulator)
            emulator.no_faults()
            asked.publish()
        check_complete(emulator, asked)
        assert emulator.seen["violations"] == []


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_each_call(
    emulator: Emulator, release: Release, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_way(way, monkeypatch)
    methods = calls_of(emulator, release)
    for number, (place, kind) in enumerate(cases(methods, "kill-before", "kill-after")):
        emulator.control("reset")
        asked = fresh(release, number)
        assert _killed(emulator, asked, place, kind), f"call {place} of {len(methods)} was not made"
        emulator.no_faults()
        repo = emulator.repo()
        if repo is not None and not repo["private"]:
            check_complete_but_note(emulator, asked)
        asked.publish()
        check_complete(emulator, asked)


def check_complete_but_note(emulator: Emulator, asked: Release) -> None:
    """Public, so it must be whole; only our own note may still lie there."""
    for note in asked.state.glob("*.json"):
        note.unlink()
    check_complete(emulator, asked)


def _killed(emulator: Emulator, asked: Release, place: int, kind: str) -> bool:
    """Publish in a child that the emulator kills with SIGKILL at the given call."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(ready, 1)
        try:
            asked.publish()
        finally:
            os._exit(0)
    os.close(ready)
    emulator.fault(kind, at=place, pid=child)
    os.close(go)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code == -signal.SIGKILL


def test_a_killed_release_that_is_never_resumed_can_be_taken_back(
    emulator: Emulator, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.hub.publish import discard

    set_way("lfs", monkeypatch)
    place = 4
    assert _killed(emulator, release, place, "kill-after")
    emulator.no_faults()
    assert emulator.repo()["private"]
    assert discard(release.spec, release.state, None, release.token, release.url) is True
    assert emulator.repo() is None


def test_an_error_while_the_old_release_is_public_leaves_it_alone(
    emulator: Emulator, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_way("lfs", monkeypatch)
    release.publish()
    before = emulator.repo()
    second = make_release(release.root.parent / "second", release.url, salt=b"2")
    second.id = "r2"
    emulator.fault("status", match="POST /commit/", at=0, status=503)
    with pytest.raises(QuantgateError):
        second.publish()
    assert emulator.repo() == before


def test_the_token_is_nowhere(
    emulator: Emulator, release: Release, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in what is printed, logged, raised or left on disk, in success and failure."""
    import logging
    import traceback

    logging.basicConfig(level=logging.DEBUG, filename=tmp_path / "debug.log", force=True)
    try:
        emulator.fault("status", match="POST /commit/", at=0, status=503, error="no")
        with pytest.raises(QuantgateError) as caught:
            release.publish()
        emulator.no_faults()
        publication = release.publish()
    finally:
        logging.basicConfig(level=logging.WARNING, force=True)
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.__dict__)
    told += publication.model_dump_json() + repr(release.token) + "".join(capfd.readouterr())
    told += json.dumps([str(value) for value in caught.value.args])
    assert "hf_writer" not in told
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"hf_writer" not in path.read_bytes(), path
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in children:
        assert b"hf_writer" not in Path(f"/proc/{child}/cmdline").read_bytes()
