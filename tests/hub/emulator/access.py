"""What every endpoint does first: who asks, and for which repository."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from tests.hub.emulator.state import Hub, Repo
from tests.hub.emulator.strict import UnforeseenError

MODEL = "/api/models/{ns}/{name}"


def hub_of(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


def user_of(request: Request) -> Any:
    if not request.headers.get("user-agent"):
        raise UnforeseenError("no user agent")
    return hub_of(request).user(request.headers.get("authorization"))


def repo_of(request: Request, ns: str, name: str, write: bool = False) -> Repo:
    hub, user = hub_of(request), user_of(request)
    return hub.writable(user, f"{ns}/{name}") if write else hub.readable(user, f"{ns}/{name}")
