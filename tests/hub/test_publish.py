from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from tasks.errors import BadInputError, QuantgateError, TransientError
from tasks.hub.marker import is_commit_of
from tasks.hub.patience import Patience
from tasks.hub.publish import (
    begin_upload,
    bring_card,
    discard,
    plan_hub,
    publish,
    publish_hub,
)
from tasks.hub.remote import find_release
from tasks.hub.session import Hub
from tests.hub.conftest import WRITER, Emulator, Release, card_text, make_release, set_way


@pytest.fixture(autouse=True)
def plain_lfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test asks for `way`, the cheaper of the two."""
    set_way("lfs", monkeypatch)


def check_complete(emulator: Emulator, release: Release, tag: str = "v1") -> None:
    """The release is on the Hub: one commit, all files, the tag, public."""
    repo = emulator.repo(release.spec.repo)
    ours = [c for c in repo["commits"] if is_commit_of(c["message"], release.id)]
    assert len(ours) == 1
    for name, path in release.contents().items():
        assert repo["files"][name] == hashlib.sha256(path.read_bytes()).hexdigest(), name
    assert repo["tags"][tag] == ours[0]["id"]
    assert repo["private"] is release.spec.private
    assert not list(release.state.glob("*.json"))


def check_invisible(emulator: Emulator, repo: str = "org/model") -> None:
    """Nobody but the owners sees anything of it."""
    found = emulator.repo(repo)
    assert found is None or (found["private"] and found["tags"] == {})


def writes(emulator: Emulator) -> list[str]:
    """What was asked to change, in order."""
    calls = [call for call in emulator.seen["calls"] if call[0] not in ("GET", "HEAD")]
    return [f"{method} {path}" for method, path, _ in calls if "validate-yaml" not in path]


def test_a_release_arrives_whole(
    emulator: Emulator, release: Release, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_way(way, monkeypatch)
    publication = release.publish()
    check_complete(emulator, release)
    repo = emulator.repo()
    assert (publication.to, publication.tag) == ("hub", "v1")
    assert publication.revision == repo["commits"][0]["id"]
    assert publication.location == f"{emulator.url}/org/model"
    assert len(repo["commits"]) == 2
    assert any(path.endswith("/objects/batch") for path in writes(emulator)) == (way == "lfs")


def test_large_files_go_ahead_and_are_not_sent_again(emulator: Emulator, release: Release) -> None:
    upload = begin_upload(release.checkpoint, release.spec, release.state, WRITER, release.url)
    upload.wait()
    assert upload.failure is None
    check_invisible(emulator)
    assert [c["title"] for c in emulator.repo()["commits"]] == ["initial commit"]
    before = len([w for w in writes(emulator) if w.startswith("PUT /__lfs__")])
    assert before == 3
    publish_hub(
        release.checkpoint,
        release.card,
        release.spec,
        "r1",
        release.state,
        upload,
        WRITER,
        release.url,
    )
    check_complete(emulator, release)
    assert len([w for w in writes(emulator) if w.startswith("PUT /__lfs__")]) == before


def test_a_finished_release_run_again_changes_nothing(emulator: Emulator, release: Release) -> None:
    first = release.publish()
    before = emulator.repo()
    emulator.no_faults()
    assert release.publish() == first
    assert emulator.repo() == before
    assert not [w for w in writes(emulator) if "preupload" not in w and "/objects/" not in w]


def test_the_next_release_is_one_commit_more(emulator: Emulator, release: Release) -> None:
    release.publish()
    second = make_release(release.root.parent / "second", release.url, salt=b"2")
    second.id = "r2"
    (second.checkpoint / "model-1.safetensors").unlink()
    manifest = second.root / "card" / "evidence" / "manifest.json"
    assert second.publish().tag == "v2"
    check_complete(emulator, second, "v2")
    assert len(emulator.repo()["commits"]) == 3
    assert "model-1.safetensors" in emulator.repo()["files"], "no evidence says that it was ours"
    assert not manifest.exists()


def test_what_the_old_evidence_lists_is_taken_away(emulator: Emulator, release: Release) -> None:
    listed = {
        n: {"sha256": hashlib.sha256(p.read_bytes()).hexdigest(), "size": 0}
        for n, p in release.contents().items()
        if p.is_relative_to(release.checkpoint)
    }
    manifest = release.root / "card" / "evidence" / "manifest.json"
    manifest.write_text(json.dumps({"files": listed}))
    release.publish()
    second = make_release(release.root.parent / "second", release.url, salt=b"2")
    second.id = "r2"
    (second.checkpoint / "model-1.safetensors").unlink()
    second.publish()
    files = emulator.repo()["files"]
    assert "model-1.safetensors" not in files and "evidence/manifest.json" not in files
    check_complete(emulator, second, "v2")


@pytest.mark.parametrize("private", [True, False])
def test_private_stays_private(emulator: Emulator, release: Release, private: bool) -> None:
    release.with_spec(private=private, tag="first").publish()
    assert emulator.repo()["private"] is private
    assert set(emulator.repo()["tags"]) == {"first"}


def test_as_a_pull_request(emulator: Emulator, release: Release) -> None:
    emulator.seed("org/model", {"README.md": card_text("Theirs").encode()})
    asked = release.with_spec(pull_request=True)
    publication = asked.publish()
    repo = emulator.repo()
    assert publication.location == f"{emulator.url}/org/model/discussions/1"
    assert (publication.tag, repo["tags"]) == (None, {})
    assert repo["refs"]["refs/pr/1"] == publication.revision
    assert len(repo["commits"]) == 1
    assert asked.publish() == publication
    assert set(emulator.repo()["refs"]) == {"main", "refs/pr/1"}


def test_a_lost_answer_opens_no_second_pull_request(emulator: Emulator, release: Release) -> None:
    emulator.seed("org/model", {"README.md": card_text("Theirs").encode()})
    emulator.fault("drop-after", match="POST /commit/")
    release.with_spec(pull_request=True).publish()
    assert set(emulator.repo()["refs"]) == {"main", "refs/pr/1"}


def test_a_rejected_release_leaves_nothing(emulator: Emulator, release: Release) -> None:
    upload = begin_upload(release.checkpoint, release.spec, release.state, WRITER, release.url)
    assert emulator.repo() is not None
    assert discard(release.spec, release.state, upload, WRITER, release.url) is True
    assert emulator.repo() is None
    assert discard(release.spec, release.state, None, WRITER, release.url) is False


def test_discard_survives_a_lost_answer(emulator: Emulator, release: Release) -> None:
    upload = begin_upload(release.checkpoint, release.spec, release.state, WRITER, release.url)
    upload.wait()
    emulator.fault("drop-after", match="DELETE /api/repos/delete")
    assert discard(release.spec, release.state, upload, WRITER, release.url) is True
    assert emulator.repo() is None


def test_discard_deletes_nothing_that_it_did_not_make(emulator: Emulator, release: Release) -> None:
    emulator.seed("org/model", {"README.md": card_text("Theirs").encode()}, private=True)
    upload = begin_upload(release.checkpoint, release.spec, release.state, WRITER, release.url)
    assert discard(release.spec, release.state, upload, WRITER, release.url) is False
    assert emulator.repo() is not None


def test_discard_deletes_nothing_that_was_committed_to(
    emulator: Emulator, release: Release
) -> None:
    begin_upload(release.checkpoint, release.spec, release.state, WRITER, release.url).wait()
    emulator.fault("status", match="POST /tag/", at=0, status=503)
    with pytest.raises(TransientError):
        release.publish()
    emulator.no_faults()
    assert discard(release.spec, release.state, None, WRITER, release.url) is False
    assert len(emulator.repo()["commits"]) == 2
    release.publish()
    check_complete(emulator, release)


def test_what_people_wrote_on_the_card_comes_back(
    emulator: Emulator, release: Release, tmp_path: Path
) -> None:
    theirs = card_text("Theirs").encode()
    emulator.seed("org/model", {"README.md": theirs})
    assert bring_card(release.spec, tmp_path / "card", WRITER, release.url) is True
    assert (tmp_path / "card" / "README.md").read_bytes() == theirs
    new = release.spec.model_copy(update={"repo": "org/other"})
    assert bring_card(new, tmp_path / "none", WRITER, release.url) is False


def test_a_dry_run_says_what_would_be_sent(emulator: Emulator, release: Release) -> None:
    plan = plan_hub(release.checkpoint, release.card, release.spec, "r1", WRITER, release.url)
    assert (plan.creates_repo, plan.tag, plan.becomes_public) == (True, "v1", True)
    assert {f.path for f in plan.files} == {*release.contents(), "evidence/release.json"}
    assert all(f.change == "new" for f in plan.files)
    assert writes(emulator) == [] and emulator.repo() is None
    release.publish()
    (release.checkpoint / "config.json").write_text("{}")
    again = plan_hub(release.checkpoint, release.card, release.spec, "r2", WRITER, release.url)
    changed = {f.path for f in again.files if f.change != "same"}
    assert changed == {"config.json", "evidence/release.json"}
    assert (again.creates_repo, again.tag, again.becomes_public) == (False, "v2", False)
    assert any("config.json" in line for line in again.lines())


REFUSED = [
    (None, {}, "hub-token-missing"),
    ("hf_wrong", {}, "hub-unauthorized"),
    ("hf_reader", {}, "hub-forbidden"),
    ("hf_writer", {"repo": "readers/model"}, "hub-namespace"),
    ("hf_writer", {"repo": "elsewhere/model"}, "hub-namespace"),
    ("hf_writer", {"pull_request": True}, "hub-not-found"),
]


@pytest.mark.parametrize(("token", "changed", "code"), REFUSED)
def test_preflight_refuses(
    emulator: Emulator, release: Release, token: str | None, changed: dict[str, object], code: str
) -> None:
    asked = release.with_spec(**changed)
    asked.token = SecretStr(token) if token else None
    with pytest.raises(BadInputError) as caught:
        asked.publish()
    assert caught.value.code == code
    assert writes(emulator) == []
    assert "\n" not in str(caught.value) and (token is None or token not in str(caught.value))


def test_preflight_refuses_a_name_that_is_not_ours(emulator: Emulator, release: Release) -> None:
    emulator.seed("org/model", {"weights.bin": b"\0" * 9})
    with pytest.raises(BadInputError) as caught:
        release.publish()
    assert caught.value.code == "hub-taken"


def test_preflight_refuses_a_card_that_could_not_be_kept(
    emulator: Emulator, release: Release
) -> None:
    broken = card_text("Theirs").replace("<!-- END quant:remarks -->", "")
    emulator.seed("org/model", {"README.md": broken.encode()})
    with pytest.raises(BadInputError, match=r"org/model/README\.md: line") as caught:
        release.publish()
    assert caught.value.code == "card-markers"


def test_preflight_refuses_to_hide_what_is_public(emulator: Emulator, release: Release) -> None:
    emulator.seed("org/model", {"README.md": card_text("Theirs").encode()})
    with pytest.raises(BadInputError) as caught:
        release.with_spec(private=True).publish()
    assert caught.value.code == "hub-public"


STATUSES = [
    (401, BadInputError, "hub-unauthorized"),
    (403, BadInputError, "hub-forbidden"),
    (404, BadInputError, "hub-not-found"),
    (409, BadInputError, "hub-conflict"),
    (412, BadInputError, "hub-moved"),
    (413, BadInputError, "hub-too-large"),
    (429, TransientError, "hub-rate-limited"),
    (500, TransientError, "hub-failed"),
    (503, TransientError, "hub-failed"),
]


@pytest.mark.parametrize(("status", "kind", "code"), STATUSES)
def test_each_refusal_ends_in_a_clear_line(
    emulator: Emulator, release: Release, status: int, kind: type[QuantgateError], code: str
) -> None:
    emulator.fault("status", match="POST /commit/", at=0, status=status, error="no, thank you")
    with pytest.raises(kind) as caught:
        release.publish()
    assert (caught.value.code, type(caught.value)) == (code, kind)
    assert "committing to org/model" in str(caught.value) and str(status) in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    commits = [call for call in emulator.seen["calls"] if "/commit/" in call[1]]
    assert len(commits) == (5 if kind is TransientError else 1)
    check_invisible(emulator)


def test_a_connection_that_never_answers_is_a_clear_line(
    emulator: Emulator, release: Release
) -> None:
    emulator.fault("drop-before", match="POST /commit/", at=0)
    with pytest.raises(TransientError, match="no answer from the Hub") as caught:
        release.publish()
    assert caught.value.code == "hub-unreachable"
    release.url = "http://127.0.0.1:9"
    with pytest.raises(TransientError, match="no answer"):
        release.publish()
    release.url = emulator.url


@pytest.mark.parametrize(
    "headers", [{"retry-after": "7"}, {"ratelimit": '"api";r=0;t=7', "ratelimit-policy": "x"}]
)
def test_a_rate_limit_is_waited_for_with_jitter(
    emulator: Emulator,
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
    headers: dict[str, str],
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tasks.hub.patience.PATIENCE", Patience())
    monkeypatch.setattr("tasks.hub.patience.time.sleep", waits.append)
    emulator.fault("status", match="POST /commit/", status=429, headers=headers, times=2)
    release.publish()
    check_complete(emulator, release)
    assert len(waits) == 2
    assert all(7 <= wait <= 7 * 1.25 for wait in waits) and waits[0] != waits[1]


def test_somebody_elses_commit_is_not_run_over(emulator: Emulator, release: Release) -> None:
    emulator.fault("commit-before", match="POST /commit/")
    with pytest.raises(BadInputError) as caught:
        release.publish()
    assert caught.value.code == "hub-moved"
    check_invisible(emulator)
    emulator.seed("org/model", {"README.md": card_text("Theirs").encode(), "theirs.txt": b"hello"})
    release.publish()
    check_complete(emulator, release)
    assert "theirs.txt" in emulator.repo()["files"]


def test_a_wrong_checksum_stays_unseen(emulator: Emulator, release: Release) -> None:
    emulator.fault("wrong-checksum", match="GET /tree/", at=0)
    with pytest.raises(TransientError, match="is not what was sent") as caught:
        release.publish()
    assert caught.value.code == "hub-checksum"
    check_invisible(emulator)
    emulator.no_faults()
    release.publish()
    check_complete(emulator, release)


def test_a_file_that_changed_since_it_was_measured_is_not_published(
    emulator: Emulator, release: Release
) -> None:
    listed = {"config.json": {"sha256": "0" * 64, "size": 8}}
    shard = {"model-1.safetensors": {"sha256": "1" * 64, "size": 1}}
    manifest = release.root / "card" / "evidence" / "manifest.json"
    manifest.write_text(json.dumps({"files": {**listed, **shard}}))
    with pytest.raises(QuantgateError, match=r"model-1\.safetensors"):
        release.publish()
    check_invisible(emulator)


def test_a_taken_tag_is_refused_before_the_commit(emulator: Emulator, release: Release) -> None:
    release.with_spec(tag="best").publish()
    second = make_release(release.root.parent / "second", release.url, salt=b"2")
    second.id = "r2"
    with pytest.raises(BadInputError) as caught:
        second.with_spec(tag="best").publish()
    assert caught.value.code == "hub-tag-taken"
    assert len(emulator.repo()["commits"]) == 2


def test_a_slow_answer_is_waited_for(emulator: Emulator, release: Release) -> None:
    emulator.fault("slow", match="POST /commit/", seconds=0.5)
    release.publish()
    check_complete(emulator, release)


def test_an_eval_result_that_the_hub_does_not_show_is_said(
    emulator: Emulator, release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "quantgate.hub"):
        release.publish()
    assert not caplog.records
    other = make_release(release.root.parent / "other", release.url).with_spec(repo="org/other")
    path = other.root / "card" / ".eval_results" / "gsm8k.yaml"
    path.write_text(f"- data: 3\n{path.read_text()}")
    with caplog.at_level(logging.WARNING, "quantgate.hub"):
        other.publish()
    said = [record.getMessage() for record in caplog.records if record.name == "quantgate.hub"]
    assert len(said) == 1 and "the Hub does not show" in said[0]


def test_the_spec_says_where_to(
    emulator: Emulator, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", emulator.url)
    monkeypatch.setenv("HF_TOKEN", "hf_writer")
    parts = (release.checkpoint, release.card)
    folder = release.spec.model_copy(update={"to": "folder", "folder": tmp_path / "out"})
    nowhere = release.spec.model_copy(update={"to": "nowhere"})
    assert publish(*parts, nowhere, "r1", release.state) is None
    out = publish(*parts, folder, "r1", release.state)
    hub = publish(*parts, release.spec, "r1", release.state)
    assert out is not None and hub is not None
    assert (out.to, hub.to) == ("folder", "hub")
    check_complete(emulator, release)
    published = emulator.repo()["files"]
    for path in Path(out.location).rglob("*"):
        name = path.relative_to(out.location).as_posix()
        if path.is_file() and name != ".gitattributes":
            assert published[name] == hashlib.sha256(path.read_bytes()).hexdigest(), name


def test_long_histories_are_searched_to_the_end(emulator: Emulator, release: Release) -> None:
    emulator.seed("org/model", {"README.md": card_text("Theirs").encode()}, history=60)
    hub = Hub.connect(WRITER, release.url)
    assert find_release(hub, "org/model", "r1", False) is None
    pages = [call for call in emulator.seen["calls"] if "/commits/" in call[1]]
    assert len(pages) == 2


@pytest.mark.parametrize(("status", "code"), [(401, "hub-unauthorized"), (403, "hub-forbidden")])
def test_a_refused_storage_token_is_a_clear_line(
    emulator: Emulator,
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
) -> None:
    set_way("xet", monkeypatch)
    emulator.fault("status", match="GET /xet-write-token/", at=0, status=status)
    with pytest.raises(QuantgateError) as caught:
        release.publish()
    assert caught.value.code == code
    assert "sending files to org/model" in str(caught.value)
    check_invisible(emulator)
