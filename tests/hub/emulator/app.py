"""The emulator put together, with the endpoints by which tests steer it."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from tests.hub.emulator.changing import add_account, add_changing
from tests.hub.emulator.faults import CONTROL, Faults, Rule
from tests.hub.emulator.reading import add_reading
from tests.hub.emulator.state import Entry, Hub, RefusalError, Repo, upload_mode
from tests.hub.emulator.strict import UnforeseenError, check_headers
from tests.hub.emulator.uploading import add_uploading


def build(root: Path, base: str) -> Faults:
    """The emulator as an ASGI app; `base` is the URL under which it is reached."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(_checked)])
    hub = app.state.hub = Hub(root / "0")
    faults = Faults(app, lambda method, path: _interfere(hub, path))
    app.state.base, app.state.faults, app.state.root = base, faults, root

    @app.exception_handler(UnforeseenError)
    async def _unforeseen(request: Request, error: UnforeseenError) -> Response:
        hub.violations.append(f"{request.method} {request.url.path}: {error}")
        return JSONResponse({"error": f"not emulated: {error}"}, status_code=501)

    @app.exception_handler(RefusalError)
    async def _refused(request: Request, error: RefusalError) -> Response:
        headers = {"x-error-message": error.message}
        if error.code:
            headers["x-error-code"] = error.code
        return JSONResponse({"error": error.message, **error.body}, error.status, headers)

    _add_control(app)
    add_account(app)
    add_reading(app)
    add_uploading(app)
    add_changing(app)

    @app.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"])
    async def _unknown(request: Request, path: str) -> Response:
        raise UnforeseenError("no such endpoint")

    return faults


def _checked(request: Request) -> None:
    if not request.url.path.startswith(CONTROL):
        check_headers(request)


def _interfere(hub: Hub, path: str) -> None:
    """Somebody else's commit, just before the one at `path`."""
    found = re.match(r"/api/models/([^/]+/[^/]+)/", path)
    if found and found[1] in hub.repos:
        repo = hub.repos[found[1]]
        files = {**repo.resolve("main").files, "theirs.txt": Entry(5, b"hello")}
        repo.add("main", "bob", "somebody else's", "", files)


def _add_control(app: FastAPI) -> None:
    @app.post(f"{CONTROL}reset")
    async def _reset(request: Request) -> dict[str, Any]:
        number = len(list(app.state.root.iterdir()))
        app.state.hub.clear(app.state.root / str(number))
        faults: Faults = app.state.faults
        faults.rules, faults.calls = [], []
        return {}

    @app.post(f"{CONTROL}faults")
    async def _set_faults(request: Request) -> dict[str, Any]:
        app.state.faults.rules = [Rule(**rule) for rule in await request.json()]
        app.state.faults.calls = []
        return {}

    @app.get(f"{CONTROL}seen")
    async def _seen() -> dict[str, Any]:
        hub, faults = app.state.hub, app.state.faults
        return {
            "calls": faults.calls,
            "violations": hub.violations,
            "repos": {name: _seen_repo(repo) for name, repo in hub.repos.items()},
        }

    @app.post(f"{CONTROL}seed")
    async def _seed(request: Request) -> dict[str, Any]:
        """A repository as somebody made it: {id, private, files, history}; files are base64."""
        given = await request.json()
        repo = Repo(id=given["id"], private=given["private"])
        files = {n: _stored(app.state.hub, n, c) for n, c in given["files"].items()}
        repo.add("main", "alice", "initial commit", "", files)
        for number in range(given["history"]):
            repo.add("main", "bob", f"change {number}", "", files)
        app.state.hub.repos[repo.id] = repo
        return {"head": repo.refs["main"]}


def _stored(hub: Hub, name: str, content: str) -> Entry:
    data = base64.b64decode(content)
    if upload_mode(name, len(data), data[:512]) == "regular":
        return Entry(len(data), data)
    sha256 = hashlib.sha256(data).hexdigest()
    hub.put_blob(sha256, data)
    return Entry(len(data), sha256=sha256)


def _seen_repo(repo: Repo) -> dict[str, Any]:
    history = repo.history("main")
    return {
        "private": repo.private,
        "commits": [{"id": c.id, "title": c.title, "message": c.message} for c in history],
        "files": {
            name: entry.sha256 or hashlib.sha256(entry.content or b"").hexdigest()
            for name, entry in history[0].files.items()
        },
        "readme": (history[0].files["README.md"].content or b"").decode()
        if "README.md" in history[0].files
        else None,
        "tags": repo.tags,
        "refs": repo.refs,
    }
