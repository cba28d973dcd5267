"""What the emulator lets in: a request that nobody foresaw is answered 501 and remembered."""

from __future__ import annotations

from typing import Any

from fastapi import Request

HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "range",
        "transfer-encoding",
        "user-agent",
        "x-amzn-trace-id",
        "x-hf-download-counter",
        "x-xet-session-id",
    }
)


class UnforeseenError(Exception):
    """The client sent what the emulator does not know; answered 501."""


def check_headers(request: Request) -> None:
    """Refuse unknown headers, and bodies without a content type."""
    unknown = sorted(set(request.headers) - HEADERS)
    if unknown:
        raise UnforeseenError(f"header {', '.join(unknown)}")


def fields(given: dict[str, Any], needed: set[str], allowed: set[str] | None = None) -> None:
    """Refuse a body that lacks a field or has one more than is known."""
    missing, extra = needed - set(given), set(given) - needed - (allowed or set())
    if missing or extra:
        raise UnforeseenError(f"fields missing {sorted(missing)}, unknown {sorted(extra)}")


def query(request: Request, allowed: set[str]) -> None:
    """Refuse a query parameter that is not known."""
    extra = set(request.query_params) - allowed
    if extra:
        raise UnforeseenError(f"query {sorted(extra)}")


async def body(request: Request, kind: str = "application/json") -> dict[str, Any]:
    """A JSON body with the content type that the client always sends."""
    if not request.headers.get("content-type", "").startswith(kind):
        raise UnforeseenError(f"content type {request.headers.get('content-type')}")
    data = await request.json()
    if not isinstance(data, dict):
        raise UnforeseenError("a body that is no object")
    return data
