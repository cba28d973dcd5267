"""Looking. Each docstring names the client function that calls it."""

from __future__ import annotations

import re
import time
from typing import Any

import yaml
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.hub.emulator.access import MODEL, hub_of, repo_of
from tests.hub.emulator.cas import uploaded_files
from tests.hub.emulator.state import Commit, Entry, Hub, RefusalError, Repo
from tests.hub.emulator.strict import UnforeseenError, fields, query

PAGE = 50


def add_reading(app: FastAPI) -> None:
    @app.get(MODEL)
    async def info(request: Request, ns: str, name: str) -> dict[str, Any]:
        """HfApi.model_info."""
        return _info(request, repo_of(request, ns, name), "main")

    @app.get(MODEL + "/revision/{revision:path}")
    async def info_at(request: Request, ns: str, name: str, revision: str) -> dict[str, Any]:
        """HfApi.model_info with a revision."""
        return _info(request, repo_of(request, ns, name), revision)

    @app.get(MODEL + "/auth-check")
    async def may_read(request: Request, ns: str, name: str) -> dict[str, Any]:
        """HfApi.auth_check."""
        repo_of(request, ns, name)
        return {}

    @app.get(MODEL + "/auth-check/write")
    async def may_write(request: Request, ns: str, name: str) -> dict[str, Any]:
        """HfApi.auth_check(write=True)."""
        repo_of(request, ns, name, write=True)
        return {}

    @app.get(MODEL + "/refs")
    async def refs(request: Request, ns: str, name: str) -> dict[str, Any]:
        """HfApi.list_repo_refs."""
        query(request, {"include_prs"})
        repo = repo_of(request, ns, name)
        named = {"main": "refs/heads/main"}
        listed = {
            "branches": [_ref(named[k], k, v) for k, v in repo.refs.items() if k in named],
            "converts": [],
            "tags": [_ref(f"refs/tags/{k}", k, v) for k, v in repo.tags.items()],
        }
        if request.query_params.get("include_prs") == "1":
            prs = {k: v for k, v in repo.refs.items() if k.startswith("refs/pr/")}
            listed["pullRequests"] = [_ref(k, k.removeprefix("refs/"), v) for k, v in prs.items()]
        return listed

    @app.get(MODEL + "/commits/{revision:path}")
    async def commits(request: Request, ns: str, name: str, revision: str) -> Response:
        """HfApi.list_repo_commits, page by page."""
        query(request, {"p"})
        page = int(request.query_params.get("p", 0))
        history = repo_of(request, ns, name).history(revision)
        listed = [_commit(commit) for commit in history[page * PAGE : (page + 1) * PAGE]]
        headers = {}
        if (page + 1) * PAGE < len(history):
            url = f"{app.state.base}{request.url.path}?p={page + 1}"
            headers["link"] = f'<{url}>; rel="next"'
        return JSONResponse(listed, headers=headers)

    @app.get(MODEL + "/tree/{revision:path}")
    async def tree(request: Request, ns: str, name: str, revision: str) -> list[dict[str, Any]]:
        """HfApi.list_repo_tree, from snapshot_download as well."""
        query(request, {"recursive", "expand"})
        if request.query_params.get("recursive", "").lower() != "true":
            raise UnforeseenError("a tree that is not recursive")
        commit = repo_of(request, ns, name).resolve(revision)
        return [listed(app, path, entry) for path, entry in sorted(commit.files.items())]

    @app.post(MODEL + "/paths-info/{revision:path}")
    async def paths(request: Request, ns: str, name: str, revision: str) -> list[dict[str, Any]]:
        """HfApi.get_paths_info."""
        form = await request.form()
        fields(dict(form), {"paths", "expand"})
        commit = repo_of(request, ns, name).resolve(revision)
        asked = [str(path) for path in form.getlist("paths")]
        return [listed(app, path, commit.files[path]) for path in asked if path in commit.files]

    @app.api_route("/{ns}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    async def resolve(request: Request, ns: str, name: str, revision: str, path: str) -> Response:
        """file_download.get_hf_file_metadata (HEAD) and http_get."""
        commit = repo_of(request, ns, name).resolve(revision)
        if path not in commit.files:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        return content_of(app, request, commit, commit.files[path], f"{ns}/{name}")

    @app.get(MODEL + "/xet-read-token/{revision}")
    async def xet_read(request: Request, ns: str, name: str, revision: str) -> Response:
        """utils._xet, before xet_get."""
        repo_of(request, ns, name)
        return xet_token(hub_of(request))


def _ref(ref: str, name: str, commit: str) -> dict[str, str]:
    return {"name": name, "ref": ref, "targetCommit": commit}


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id,
        "title": commit.title,
        "message": commit.message,
        "authors": [{"user": commit.user}],
        "date": commit.date.isoformat().replace("+00:00", ".000Z"),
    }


def _info(request: Request, repo: Repo, revision: str) -> dict[str, Any]:
    query(request, {"blobs", "expand"})
    commit = repo.resolve(revision)
    if request.query_params.getlist("expand"):
        wanted = set(request.query_params.getlist("expand"))
        if not wanted <= {"evalResults", "sha"}:
            raise UnforeseenError(f"expand {sorted(wanted)}")
        return {"id": repo.id, "sha": commit.id, "evalResults": _eval_results(commit)}
    siblings: list[dict[str, Any]] = [{"rfilename": path} for path in sorted(commit.files)]
    if request.query_params.get("blobs"):
        for item in siblings:
            entry = commit.files[item["rfilename"]]
            item |= {"size": entry.size, "blobId": entry.oid}
            if entry.sha256:
                pointer = {"size": entry.size, "sha256": entry.sha256}
                item["lfs"] = pointer | {"pointerSize": len(entry.pointer)}
    return {"id": repo.id, "sha": commit.id, "private": repo.private, "siblings": siblings}


def _eval_results(commit: Commit) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path, entry in commit.files.items():
        if path.startswith(".eval_results/"):
            try:
                items = yaml.safe_load(entry.content or b"")
                found += [{"filename": path, "data": item} for item in items if item["dataset"]]
            except (yaml.YAMLError, TypeError, KeyError):
                found.append({"filename": path, "error": "not a list of eval results"})
    return found


def listed(app: FastAPI, path: str, entry: Entry) -> dict[str, Any]:
    item: dict[str, Any] = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    lying = app.state.faults.lying and path.endswith(".safetensors")
    if entry.sha256:
        sha256 = "0" * 64 if lying else entry.sha256
        item["lfs"] = {"size": entry.size, "oid": sha256, "pointerSize": len(entry.pointer)}
        xet = uploaded_files(app.state.hub.root / "cas").get(entry.sha256)
        if xet:
            item["xetHash"] = xet[0]
    return item


def content_of(
    app: FastAPI, request: Request, commit: Commit, entry: Entry, repo_id: str
) -> Response:
    headers = {"x-repo-commit": commit.id, "etag": f'"{entry.oid}"', "accept-ranges": "bytes"}
    hub: Hub = app.state.hub
    if entry.sha256:
        headers |= {"x-linked-etag": f'"{entry.sha256}"', "x-linked-size": str(entry.size)}
        xet = uploaded_files(hub.root / "cas").get(entry.sha256)
        if xet:
            route = f"{app.state.base}/api/models/{repo_id}/xet-read-token/{commit.id}"
            headers |= {"x-xet-hash": xet[0], "x-xet-refresh-route": route}
            return Response(headers={**headers, "content-length": str(entry.size)})
        data = hub.read_blob(entry.sha256)
    else:
        data = entry.content or b""
    if request.method == "HEAD":
        return Response(headers={**headers, "content-length": str(len(data))})
    start = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", "bytes=0-"))
    if start is None:
        raise UnforeseenError(f"range {request.headers['range']}")
    first = int(start[1])
    if first:
        headers["content-range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
    return Response(data[first:], 206 if first else 200, headers)


def xet_token(hub: Hub) -> Response:
    url, expires = f"local://{(hub.root / 'cas').resolve()}", int(time.time()) + 3600
    headers = {"x-xet-cas-url": url, "x-xet-access-token": "cas-token"}
    headers["x-xet-token-expiration"] = str(expires)
    token = {"casUrl": url, "accessToken": "cas-token", "exp": expires}
    return JSONResponse(token, headers=headers)
