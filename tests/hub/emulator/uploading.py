"""Sending large files. Each docstring names the client function that calls it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from fastapi import FastAPI, Request, Response

from tests.hub.emulator.access import MODEL, hub_of, repo_of
from tests.hub.emulator.reading import xet_token
from tests.hub.emulator.state import Hub, RefusalError, upload_mode
from tests.hub.emulator.strict import UnforeseenError, body, fields, query

PART = 200_000
"""Bytes a part of a multipart upload; larger blobs are sent in parts."""


def add_uploading(app: FastAPI) -> None:
    @app.post(MODEL + "/preupload/{revision:path}")
    async def preupload(request: Request, ns: str, name: str, revision: str) -> dict[str, Any]:
        """_commit_api._fetch_upload_modes, from HfApi.preupload_lfs_files."""
        query(request, {"create_pr"})
        repo = repo_of(request, ns, name, write="create_pr" not in request.query_params)
        known, given = repo.resolve(revision).files, await body(request)
        fields(given, {"files"})
        answered = []
        for file in given["files"]:
            fields(file, {"path", "sample", "size"})
            sample = base64.b64decode(file["sample"])
            mode = upload_mode(file["path"], file["size"], sample)
            item = {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
            if file["path"] in known:
                entry = known[file["path"]]
                item["oid"] = entry.sha256 or entry.oid
            answered.append(item)
        return {"files": answered}

    @app.post("/{ns}/{name}.git/info/lfs/objects/batch")
    async def batch(request: Request, ns: str, name: str) -> dict[str, Any]:
        """lfs.post_lfs_batch_info."""
        repo_of(request, ns, name, write=True)
        given = await body(request, "application/vnd.git-lfs+json")
        fields(given, {"operation", "transfers", "objects", "hash_algo"}, {"ref"})
        if given["operation"] != "upload" or given["hash_algo"] != "sha256":
            raise UnforeseenError("an LFS operation other than upload")
        objects = [_lfs_object(app, f"{ns}/{name}", item) for item in given["objects"]]
        return {"transfer": "multipart", "objects": objects}

    @app.put("/__lfs__/{ns}/{name}/{oid}")
    async def put(request: Request, ns: str, name: str, oid: str) -> Response:
        """lfs._upload_single_part; as to a bucket, without a token."""
        hub_of(request).put_blob(oid, await request.body())
        return Response()

    @app.put("/__lfs__/{ns}/{name}/{oid}/part/{number}")
    async def put_part(request: Request, ns: str, name: str, oid: str, number: int) -> Response:
        """lfs._upload_parts_iteratively."""
        data = await request.body()
        (hub_of(request).root / f"{oid}.{number}").write_bytes(data)
        return Response(headers={"etag": hashlib.sha1(data).hexdigest()})

    @app.post("/__lfs__/{ns}/{name}/{oid}/complete")
    async def complete(request: Request, ns: str, name: str, oid: str) -> dict[str, Any]:
        """lfs._upload_multi_part, when all parts are there."""
        given = await body(request, "application/vnd.git-lfs+json")
        fields(given, {"oid", "parts"})
        content = b""
        for place, part in enumerate(given["parts"], start=1):
            fields(part, {"partNumber", "etag"})
            path = hub_of(request).root / f"{oid}.{place}"
            data = path.read_bytes() if path.exists() else b""
            if part["partNumber"] != place or hashlib.sha1(data).hexdigest() != part["etag"]:
                raise RefusalError(400, f"part {place} is missing or is another one")
            content += data
        hub_of(request).put_blob(oid, content)
        return {}

    @app.post("/{ns}/{name}.git/info/lfs/objects/verify")
    async def verify(request: Request, ns: str, name: str) -> dict[str, Any]:
        """lfs.lfs_upload, its last step."""
        given = await body(request)
        fields(given, {"oid", "size"})
        if hub_of(request).blobs.get(given["oid"]) != given["size"]:
            raise RefusalError(404, "the object is not there")
        return {}

    @app.get(MODEL + "/xet-write-token/{revision:path}")
    async def xet_write(request: Request, ns: str, name: str, revision: str) -> Response:
        """hf_xet, for _commit_api._upload_xet_files."""
        query(request, {"create_pr"})
        hub = hub_of(request)
        user = hub.user(request.headers.get("authorization"))
        if "create_pr" in request.query_params:
            hub.readable(user, f"{ns}/{name}")
        else:
            hub.writable(user, f"{ns}/{name}")
        return xet_token(hub)


def _lfs_object(app: FastAPI, repo_id: str, item: dict[str, Any]) -> dict[str, Any]:
    fields(item, {"oid", "size"})
    hub: Hub = app.state.hub
    if hub.blobs.get(item["oid"]) == item["size"]:
        return item
    url = f"{app.state.base}/__lfs__/{repo_id}/{item['oid']}"
    verify = {"href": f"{app.state.base}/{repo_id}.git/info/lfs/objects/verify"}
    if item["size"] <= PART:
        return {**item, "actions": {"upload": {"href": url}, "verify": verify}}
    count = -(-item["size"] // PART)
    header = {f"{n:05d}": f"{url}/part/{n}" for n in range(1, count + 1)}
    upload = {"href": f"{url}/complete", "header": {**header, "chunk_size": str(PART)}}
    return {**item, "actions": {"upload": upload, "verify": verify}}
