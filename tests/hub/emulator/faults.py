"""Faults on demand, laid around the app: each rule acts on the n-th matching call, once or more."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CONTROL = "/__emulator__/"


@dataclass
class Rule:
    """One fault.

    Attributes:
        kind: status, drop-before, drop-after, slow, kill-before, kill-after, commit-before,
            wrong-checksum.
        at: which matching call, counted from 1; 0: every one.
        match: "METHOD part-of-path"; empty: any call.
        status, headers, error: of the answer given instead (`status`).
        seconds: of the delay (`slow`).
        pid: the process to kill.
        times: how many calls in a row.
    """

    kind: str
    at: int = 1
    match: str = ""
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    error: str = "emulated fault"
    seconds: float = 0.0
    pid: int = 0
    times: int = 1
    seen: int = 0

    def hits(self, method: str, path: str) -> bool:
        wanted, _, part = self.match.partition(" ")
        if self.match and (wanted != method or part not in path):
            return False
        self.seen += 1
        return self.at == 0 or self.at <= self.seen < self.at + self.times


class Faults:
    """ASGI middleware: remembers every call and lets the rules act."""

    def __init__(self, app: Any, interfere: Callable[[str, str], None]) -> None:
        self.app, self.interfere = app, interfere
        self.rules: list[Rule] = []
        self.calls: list[list[Any]] = []
        self.lying = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].startswith(CONTROL):
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        call = [method, path, None]
        self.calls.append(call)
        rule = next((rule for rule in self.rules if rule.hits(method, path)), None)
        self.lying = rule is not None and rule.kind == "wrong-checksum"

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                call[2] = message["status"]
            await send(message)

        if rule is None or rule.kind == "wrong-checksum":
            await self.app(scope, receive, noted)
            return
        await self._act(rule, scope, receive, send, noted)

    async def _act(self, rule: Rule, scope: Any, receive: Any, send: Any, noted: Any) -> None:
        if rule.kind == "status":
            await _drain(receive)
            await _answer(noted, rule)
        elif rule.kind == "slow":
            await asyncio.sleep(rule.seconds)
            await self.app(scope, receive, noted)
        elif rule.kind == "commit-before":
            self.interfere(scope["method"], scope["path"])
            await self.app(scope, receive, noted)
        elif rule.kind in ("drop-before", "kill-before"):
            await _drain(receive)
            _end(rule, send)
        elif rule.kind in ("drop-after", "kill-after"):
            await self.app(scope, receive, _swallow)
            _end(rule, send)
        else:
            raise ValueError(rule.kind)


def _end(rule: Rule, send: Any) -> None:
    if rule.kind.startswith("kill"):
        os.kill(rule.pid, signal.SIGKILL)
    send.__self__.transport.abort()


async def _swallow(message: Any) -> None:
    return None


async def _drain(receive: Any) -> None:
    while (await receive()).get("more_body"):
        pass


async def _answer(send: Any, rule: Rule) -> None:
    content = json.dumps({"error": rule.error}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content))}
    headers |= {"x-error-message": rule.error, **rule.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": rule.status, "headers": raw})
    await send({"type": "http.response.body", "body": content})
