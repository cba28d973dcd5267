from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.watch
from flows.watch import watch
from tasks.errors import BadInputError
from tasks.hub.latest import source_stamp
from tasks.spec import FolderSource, HubSource, ReleaseSpec


class Server:
    """Stands in for deployment lookup and start."""

    def __init__(self, spec: ReleaseSpec) -> None:
        self.spec = spec
        self.started: list[str] = []
        self.broken = False

    def start(self, name: str, timeout: float, as_subflow: bool) -> Any:
        if self.broken:
            raise ConnectionError("server away")
        self.started.append(name)
        return SimpleNamespace(name="a-run")


@pytest.fixture
def server(tmp_path: Path, demo_spec: ReleaseSpec, monkeypatch: pytest.MonkeyPatch) -> Server:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    made = Server(demo_spec.model_copy(update={"source": FolderSource(path=source)}))
    monkeypatch.setattr(flows.watch, "_spec_of", lambda name: made.spec)
    monkeypatch.setattr(flows.watch, "run_deployment", made.start)
    monkeypatch.setattr(flows.watch, "look", flows.watch.look.fn)
    monkeypatch.setattr(flows.watch, "_told", lambda line: line)
    return made


def test_it_starts_the_deployment_on_a_change_and_only_then(server: Server, tmp_path: Path) -> None:
    def poll() -> str:
        return watch.fn("release/nightly", tmp_path)

    assert "started a-run" in poll()
    assert poll() == "demo: nothing new"
    assert isinstance(server.spec.source, FolderSource)
    os.utime(server.spec.source.path / "config.json", ns=(1, 1))
    assert "source changed to" in poll()
    assert poll() == "demo: nothing new"
    assert server.started == ["release/nightly"] * 2


def test_a_new_base_image_starts_it_and_a_silent_registry_does_not(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest: list[str | None] = ["sha256:aaa"]
    monkeypatch.setattr(flows.watch, "registry_digest", lambda spec: digest[0])
    for said, found in (
        ("sha256:aaa", "started"),
        (None, "nothing new"),
        ("sha256:bbb", "base image changed to sha256:bbb"),
    ):
        digest[0] = said
        assert found in watch.fn("release/nightly", tmp_path)


def test_what_could_not_be_started_is_started_the_next_time(server: Server, tmp_path: Path) -> None:
    server.broken = True
    with pytest.raises(ConnectionError):
        watch.fn("release/nightly", tmp_path)
    server.broken = False
    assert "started" in watch.fn("release/nightly", tmp_path)


def test_a_source_that_is_gone_is_told(server: Server, tmp_path: Path) -> None:
    server.spec = server.spec.model_copy(update={"source": FolderSource(path=tmp_path / "none")})
    with pytest.raises(BadInputError, match="is no folder"):
        watch.fn("release/nightly", tmp_path)


def test_the_hub_is_asked_for_the_commit_only() -> None:
    asked = []

    class Api:
        def model_info(self, repo: str, revision: str) -> Any:
            asked.append((repo, revision))
            return SimpleNamespace(sha="c0ffee")

    hub: Any = SimpleNamespace(api=Api())
    assert source_stamp(HubSource(repo="a/b", revision="main"), hub) == "c0ffee"
    assert asked == [("a/b", "main")]
