"""The emulator refuses what the Hub refuses, and whatever it does not know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.hub.conftest import Emulator

MODEL = "/api/models/org/model"


@pytest.fixture
def raw(emulator: Emulator) -> Iterator[httpx.Client]:
    """A bare client; what it does wrong on purpose is forgotten afterwards."""
    emulator.seed("org/model", {"README.md": b"x"})
    headers = {"authorization": "Bearer hf_writer", "user-agent": "test"}
    with httpx.Client(base_url=emulator.url, headers=headers) as client:
        yield client
    emulator.control("reset")


def commit(raw: httpx.Client, *lines: dict[str, Any], **header: str) -> httpx.Response:
    first = {"key": "header", "value": {"summary": "s", "description": "", **header}}
    body = b"".join(json.dumps(line).encode() + b"\n" for line in (first, *lines))
    kind = {"content-type": "application/x-ndjson"}
    return raw.post(f"{MODEL}/commit/main", content=body, headers=kind)


def large(content: bytes, size: int | None = None) -> dict[str, Any]:
    oid = hashlib.sha256(content).hexdigest()
    value = {"path": "w.safetensors", "algo": "sha256", "oid": oid}
    return {"key": "lfsFile", "value": {**value, "size": len(content) if size is None else size}}


def test_what_nobody_foresaw_is_501(raw: httpx.Client, emulator: Emulator) -> None:
    answers = [
        raw.get("/api/spaces"),
        raw.get(MODEL, headers={"x-odd": "1"}),
        raw.get(MODEL, params={"odd": "1"}),
        raw.post("/api/repos/create", json={"name": "a"}),
        raw.post("/api/repos/create", json={"name": "a", "organization": "org", "typ": "model"}),
        raw.put(f"{MODEL}/settings", json={"visibility": "public", "odd": 1}),
        raw.get(MODEL, headers={"user-agent": ""}),
        commit(raw, {"key": "symlink", "value": {}}),
    ]
    known = [answer.status_code for answer in answers]
    assert known == [501] * len(answers)
    assert len(emulator.seen["violations"]) == len(answers)


def test_it_enforces_what_the_hub_enforces(raw: httpx.Client, emulator: Emulator) -> None:
    content = b"\0weights"
    oid = hashlib.sha256(content).hexdigest()
    assert commit(raw, large(content)).status_code == 400
    assert raw.put(f"/__lfs__/org/model/{oid}", content=b"other").status_code == 400
    assert raw.put(f"/__lfs__/org/model/{oid}", content=content).status_code == 200
    assert commit(raw, large(content, size=3)).status_code == 400
    assert commit(raw, large(content), parentCommit="0" * 40).status_code == 412
    assert commit(raw, large(content)).status_code == 200
    regular = {"content": "AAAA", "path": "b.safetensors", "encoding": "base64"}
    assert commit(raw, {"key": "file", "value": regular}).status_code == 400
    gone = {"key": "deletedFile", "value": {"path": "none.txt"}}
    assert commit(raw, gone).status_code == 404


def test_it_knows_who_may_do_what(raw: httpx.Client, emulator: Emulator) -> None:
    create = {"name": "new", "organization": "org", "type": "model", "visibility": "private"}
    wrong = {"authorization": "Bearer hf_wrong"}
    reader = {"authorization": "Bearer hf_reader"}
    assert raw.post("/api/repos/create", json=create, headers=wrong).status_code == 401
    assert raw.post("/api/repos/create", json=create, headers=reader).status_code == 403
    assert raw.post("/api/repos/create", json=create).status_code == 200
    assert raw.post("/api/repos/create", json=create).status_code == 409
    assert raw.get("/api/models/org/new", headers=reader).status_code == 200
    with httpx.Client(base_url=emulator.url, headers={"user-agent": "test"}) as stranger:
        assert stranger.get("/api/models/org/new").status_code == 401
        assert stranger.get(MODEL).status_code == 200
    tag = {"tag": "v1"}
    assert raw.post(f"{MODEL}/tag/main", json=tag, headers=reader).status_code == 403
    assert raw.post(f"{MODEL}/tag/main", json=tag).status_code == 200
    assert raw.post(f"{MODEL}/tag/main", json=tag).status_code == 409
    card = {"content": "---\nbase_model_relation: copied\n---\n", "repoType": "model"}
    assert raw.post("/api/validate-yaml", json=card).status_code == 400
