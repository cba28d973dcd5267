"""Accounts, repositories, commits, tags. Each docstring names the client function that calls it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import yaml
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.hub.emulator.access import MODEL, hub_of, repo_of, user_of
from tests.hub.emulator.cas import uploaded_files
from tests.hub.emulator.state import Commit, Entry, Hub, RefusalError, Repo, upload_mode
from tests.hub.emulator.strict import UnforeseenError, body, fields, query


def add_account(app: FastAPI) -> None:
    @app.get("/api/whoami-v2")
    async def whoami(request: Request) -> dict[str, Any]:
        """HfApi.whoami."""
        query(request, set())
        user = user_of(request)
        if user is None:
            raise RefusalError(401, "Invalid username or password.")
        orgs = [{"name": org, "roleInOrg": role} for org, role in user.orgs.items()]
        access = {"displayName": "test", "role": user.role}
        return {"type": "user", "name": user.name, "orgs": orgs, "auth": {"accessToken": access}}

    @app.get("/api/agent-harnesses")
    async def harnesses(request: Request) -> Response:
        """utils._detect_agent, from the `hf` command line."""
        raise RefusalError(404, "not served here")

    @app.post("/api/repos/create")
    async def create(request: Request) -> dict[str, Any]:
        """HfApi.create_repo."""
        given = await body(request)
        fields(given, {"name", "organization", "type"}, {"visibility"})
        repo_id = f"{given['organization']}/{given['name']}"
        hub_of(request).create(user_of(request), repo_id, given.get("visibility") == "private")
        return {"url": f"{app.state.base}/{repo_id}"}

    @app.delete("/api/repos/delete")
    async def delete(request: Request) -> Response:
        """HfApi.delete_repo."""
        given = await body(request)
        fields(given, {"name", "organization", "type"})
        hub_of(request).delete(user_of(request), f"{given['organization']}/{given['name']}")
        return Response(status_code=200)

    @app.post("/api/validate-yaml")
    async def validate(request: Request) -> Response:
        """HfApi._validate_yaml, from HfApi.create_commit."""
        given = await body(request)
        fields(given, {"content", "repoType"})
        errors = _metadata_errors(given["content"])
        status = 400 if errors else 200
        return JSONResponse({"errors": errors, "warnings": []}, status)


def _metadata_errors(card: str) -> list[dict[str, str]]:
    found = re.match(r"---\s*\n(.*?)\n---\s*\n", card, re.DOTALL)
    try:
        data = yaml.safe_load(found[1]) if found else {}
    except yaml.YAMLError:
        return [{"message": "the metadata is not YAML"}]
    if not isinstance(data, dict):
        return [{"message": "the metadata is no mapping"}]
    wrong = [key for key in ("license", "pipeline_tag") if not isinstance(data.get(key, ""), str)]
    relation = data.get("base_model_relation", "quantized")
    if relation not in ("adapter", "merge", "quantized", "finetune"):
        wrong.append("base_model_relation")
    return [{"message": f'"{key}" is wrong'} for key in wrong]


def add_changing(app: FastAPI) -> None:
    @app.post(MODEL + "/commit/{revision:path}")
    async def commit(request: Request, ns: str, name: str, revision: str) -> dict[str, Any]:
        """_commit_api._send_commit, from HfApi.create_commit."""
        query(request, {"create_pr"})
        as_pr = request.query_params.get("create_pr") == "1"
        repo = repo_of(request, ns, name, write=not as_pr)
        if request.headers.get("content-type") != "application/x-ndjson":
            raise UnforeseenError("a commit that is not ndjson")
        lines = [json.loads(line) for line in (await request.body()).splitlines()]
        made = _make_commit(hub_of(request), repo, user_of(request).name, lines, as_pr)
        answer = {"commitUrl": f"{app.state.base}/{repo.id}/commit/{made.id}", "success": True}
        answer |= {"commitOid": made.id, "hookOutput": ""}
        if as_pr:
            number = sum(ref.startswith("refs/pr/") for ref in repo.refs)
            answer["pullRequestUrl"] = f"{app.state.base}/{repo.id}/discussions/{number}"
        return answer

    @app.post(MODEL + "/tag/{revision:path}")
    async def tag(request: Request, ns: str, name: str, revision: str) -> dict[str, Any]:
        """HfApi.create_tag."""
        repo, given = repo_of(request, ns, name, write=True), await body(request)
        fields(given, {"tag"})
        if given["tag"] in repo.tags:
            raise RefusalError(409, "Tag reference exists already")
        repo.tags[given["tag"]] = repo.resolve(revision).id
        return {}

    @app.put(MODEL + "/settings")
    async def settings(request: Request, ns: str, name: str) -> dict[str, Any]:
        """HfApi.update_repo_settings."""
        repo, given = repo_of(request, ns, name, write=True), await body(request)
        fields(given, {"visibility"})
        repo.private = given["visibility"] == "private"
        return {"private": repo.private}


def _make_commit(
    hub: Hub, repo: Repo, user: str, lines: list[dict[str, Any]], as_pr: bool
) -> Commit:
    if not lines or lines[0].get("key") != "header":
        raise UnforeseenError("a commit without its header")
    header = lines[0]["value"]
    fields(header, {"summary", "description"}, {"parentCommit"})
    head = repo.resolve("main")
    parent = header.get("parentCommit", head.id)
    if parent != head.id and not as_pr:
        raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
    files = dict(repo.resolve(parent).files)
    for line in lines[1:]:
        fields(line, {"key", "value"})
        _apply(hub, files, line["key"], line["value"])
    number = 1 + sum(ref.startswith("refs/pr/") for ref in repo.refs)
    ref = f"refs/pr/{number}" if as_pr else "main"
    return repo.add_on(parent, ref, user, header["summary"], header["description"], files)


def _apply(hub: Hub, files: dict[str, Entry], key: str, value: dict[str, Any]) -> None:
    if key == "file":
        fields(value, {"content", "path", "encoding"})
        data = base64.b64decode(value["content"], validate=True)
        if upload_mode(value["path"], len(data), data[:512]) != "regular":
            raise RefusalError(400, f"{value['path']} must be uploaded as a large file")
        files[value["path"]] = Entry(len(data), data)
    elif key == "lfsFile":
        fields(value, {"path", "algo", "oid", "size"})
        xet = uploaded_files(hub.root / "cas").get(value["oid"], ("", None))[1]
        if value["size"] not in (hub.blobs.get(value["oid"]), xet):
            raise RefusalError(400, f"{value['path']}: the large file was not uploaded")
        files[value["path"]] = Entry(value["size"], sha256=value["oid"])
    elif key == "deletedFile":
        fields(value, {"path"})
        if value["path"] not in files:
            raise RefusalError(404, "A file with this name doesn't exist", "EntryNotFound")
        del files[value["path"]]
    else:
        raise UnforeseenError(f"a commit line {key}")
