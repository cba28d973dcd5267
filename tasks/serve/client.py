"""Talk to an engine over HTTP: bounded concurrency, honest retries, one record a request.

A request is sent again only when no connection could be opened. A 5xx, a reset, a malformed body or
a timeout after sending is final: the request is lost. Every attempt is in the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tasks.artifacts import Endpoint
from tasks.errors import BadInputError
from tasks.serve.dialects import (
    MalformedReplyError,
    Prompt,
    Sampling,
    ServerFacts,
    dialect,
    parse_metrics,
)
from tasks.serve.wire import Wire

CONNECT_RETRIES = (0.3, 1.0, 3.0)
"""Seconds waited before each further attempt to open a connection."""
CONNECT_TIMEOUT = 10.0
KEEP_ALIVE = 2.0
"""Seconds an idle connection is kept: less than any server's own limit (uvicorn: 5)."""
STALL_AFTER = 60.0
"""Seconds without an answer after which signs of life are looked for."""
STALL_LIMIT = 120.0
"""Seconds without any sign of life after which a server counts as hung."""

Land = Callable[[dict[str, Any]], bool]
"""Called with each record as it lands; True stops the run."""


class StalledError(Exception):
    """Nothing landed and nothing moved in the server for `STALL_LIMIT` seconds."""


def base_url(url: str) -> str:
    """The server's base URL without a trailing slash or `/v1`.

    Raises:
        BadInputError: not an http(s) URL with a host.
    """
    try:
        parsed = httpx.URL(url.strip())
        good = parsed.scheme in ("http", "https") and parsed.host and not parsed.query
        good = good and (parsed.port is None or 0 < parsed.port < 65536)
    except (httpx.InvalidURL, ValueError, TypeError):
        good = False
    if not good or any(c.isspace() for c in url.strip()):
        raise BadInputError(
            "url-malformed", f"--url {url}: not an http URL.", "Write http://HOST:PORT."
        )
    return url.strip().rstrip("/").removesuffix("/v1")


class Client:
    """An open conversation with one endpoint (`async with`).

    Args:
        endpoint: where it answers and which dialect it speaks.
        concurrency: requests under way at once, at most.
        timeout: seconds that a request may take once sent.
    """

    def __init__(self, endpoint: Endpoint, *, concurrency: int = 1, timeout: float = 900) -> None:
        self.endpoint = endpoint
        self.url = base_url(endpoint.url)
        self.dialect = dialect(endpoint.engine)
        self.model = endpoint.model or ""
        self.concurrency = concurrency
        self.timeout = timeout
        self.stall_after = STALL_AFTER
        self.stall_limit = STALL_LIMIT
        self._http = httpx.AsyncClient(
            base_url=self.url,
            limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE),
            trust_env=False,
            verify=self.url.startswith("https"),
            timeout=httpx.Timeout(20),
        )
        self._chat = httpx.URL(f"{self.url}/v1/chat/completions")
        self._began = time.monotonic()
        self._last_sign = self._began

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def ready(self, timeout: float = 20.0) -> str | None:
        """None when it answers as ready, else why not, in words; never raises for the network."""
        why = "no answer"
        for path in self.dialect.ready_paths:
            try:
                response = await self._http.get(path, timeout=httpx.Timeout(timeout))
            except httpx.HTTPError as error:
                return describe(error)
            if response.status_code == 200:
                return None
            why = f"HTTP {response.status_code} from {path}"
            if response.status_code != 404:
                return why
        page = await self.page("/v1/models", timeout)
        return None if page else why

    async def wait_ready(self, limit: float, doomed: Callable[[], str | None]) -> str | None:
        """Poll until ready. None when it is, else why it never was.

        `doomed` is called between polls and ends the wait when it gives a reason (a load log that
        condemns, a process that is gone).
        """
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            why = await self.ready(max(0.5, min(20.0, left)))
            if why is None:
                return None
            reason = doomed()
            if reason is not None:
                return reason
            if time.monotonic() >= deadline:
                return f"not ready within {limit:g} s: {why}"
            await asyncio.sleep(min(0.5, max(0.05, limit / 100)))

    async def page(self, path: str, timeout: float = 20.0) -> Any:
        """A GET's JSON; None when it fails in any way."""
        try:
            response = await self._http.get(path, timeout=httpx.Timeout(timeout))
            return response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    async def facts(self) -> ServerFacts:
        """What the server says about itself; takes its first model where none was asked for."""
        paths = ("/v1/models", *self.dialect.info_paths)
        facts = self.dialect.facts({path: await self.page(path) for path in paths})
        if not self.model and facts.models:
            self.model = facts.models[0]
        return facts

    async def metrics(self) -> dict[str, float]:
        """/metrics as numbers; empty when the server does not export them."""
        try:
            response = await self._http.get("/metrics", timeout=httpx.Timeout(20))
            return parse_metrics(response.text) if response.status_code == 200 else {}
        except httpx.HTTPError:
            return {}

    async def totals(self) -> dict[str, float] | None:
        """The server's lifetime speculation totals; None when it exports none."""
        return self.dialect.totals(await self.metrics())

    async def ask(self, prompt: Prompt, wire: Wire | None = None) -> dict[str, Any]:
        """Send one prompt and give its record, whatever happens to it; `wire` None: on a new one.

        Fields: id, meta, prompt_sha256, max_tokens, at, latency (s), status (`ok` or `lost`),
        error, attempts [{at, error}], and for `ok` the reply's fields (see `Dialect.reply`).
        """
        if wire is None:
            async with self._wire() as own:
                return await self.ask(prompt, own)
        content = json.dumps(self.dialect.body(self.model, prompt)).encode()
        began = time.monotonic()
        attempts: list[dict[str, Any]] = []
        fields: dict[str, Any] = {}
        error: str | None = None
        for wait in (*CONNECT_RETRIES, None):
            attempt: dict[str, Any] = {"at": self._clock(), "error": None}
            attempts.append(attempt)
            sent = time.monotonic()
            fields, error, again = await self._send(wire, content)
            attempt["error"] = error
            if not again or wait is None:
                began = sent
                break
            await asyncio.sleep(wait)
        return self._record(prompt, attempts, time.monotonic() - began, error, fields)

    async def _send(self, wire: Wire, content: bytes) -> tuple[dict[str, Any], str | None, bool]:
        """(reply's fields, error, whether another attempt is allowed)."""
        try:
            async with asyncio.timeout(self.timeout):
                answer = await wire.post(content)
            if answer.status != 200:
                words = answer.content[:200].decode(errors="replace")
                return {}, f"HTTP {answer.status}: {words}", False
            return self.dialect.reply(json.loads(answer.content)), None, False
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            return {}, describe(error), True
        except (httpx.HTTPError, TimeoutError) as error:
            return {}, describe(error), False
        except (ValueError, MalformedReplyError) as error:
            return {}, f"malformed reply: {error}", False

    async def ask_all(self, prompts: Iterable[Prompt], land: Land) -> None:
        """Ask every prompt in order, at most `concurrency` at once, until `land` says stop.

        Requests that are under way when it stops are dropped without a record.

        Raises:
            StalledError: the server hangs; what was under way landed as lost before.
        """
        queue = iter(prompts)
        under_way: dict[str, tuple[Prompt, float]] = {}
        workers = [
            asyncio.create_task(self._work(queue, land, under_way)) for _ in range(self.concurrency)
        ]
        self._last_sign = time.monotonic()
        watch = asyncio.create_task(self._watch())
        pending = {*workers}
        try:
            while pending:
                done, _ = await asyncio.wait({*pending, watch}, return_when=asyncio.FIRST_COMPLETED)
                if watch in done:
                    self._bury(under_way, land)
                    watch.result()
                pending -= done
                if any(worker.result() for worker in done):
                    return
        finally:
            for task in (*workers, watch):
                task.cancel()
            await asyncio.gather(*workers, watch, return_exceptions=True)

    async def _work(
        self, queue: Iterator[Prompt], land: Land, under_way: dict[str, tuple[Prompt, float]]
    ) -> bool:
        async with self._wire() as wire:
            for prompt in queue:
                under_way[prompt.id] = prompt, self._clock()
                record = await self.ask(prompt, wire)
                del under_way[prompt.id]
                self._last_sign = time.monotonic()
                if land(record):
                    return True
        return False

    def _bury(self, under_way: dict[str, tuple[Prompt, float]], land: Land) -> None:
        error = f"server hung: no sign of life for {self.stall_limit:g} s"
        for prompt, at in under_way.values():
            attempts = [{"at": at, "error": error}]
            land(self._record(prompt, attempts, self._clock() - at, error, {}))

    def _record(
        self,
        prompt: Prompt,
        attempts: list[dict[str, Any]],
        latency: float,
        error: str | None,
        fields: dict[str, Any],
    ) -> dict[str, Any]:
        return {
            "record": "answer",
            "id": prompt.id,
            "meta": prompt.meta,
            "prompt_sha256": prompt_digest(prompt.messages),
            "max_tokens": prompt.sampling.max_tokens,
            "at": attempts[-1]["at"],
            "latency": round(latency, 6),
            "status": "lost" if error else "ok",
            "error": error,
            "attempts": attempts,
            **fields,
        }

    async def _watch(self) -> None:
        """Look for signs of life whenever nothing lands; raise when there are none."""
        seen: Any = None
        canary: asyncio.Task[dict[str, Any]] | None = None
        try:
            while True:
                quiet = time.monotonic() - self._last_sign
                if quiet < self.stall_after:
                    seen = canary = None
                    await asyncio.sleep(min(1.0, self.stall_after - quiet + 0.01))
                    continue
                if canary is None:
                    canary = asyncio.create_task(self.ask(_canary()))
                signs = await self._signs()
                alive = seen is not None and any(
                    a != b for a, b in zip(signs, seen, strict=True) if None not in (a, b)
                )
                if alive or (canary.done() and canary.result()["status"] == "ok"):
                    self._last_sign = time.monotonic()
                elif quiet > self.stall_after + self.stall_limit:
                    raise StalledError(f"no sign of life for {self.stall_limit:g} s")
                seen = signs
                await asyncio.sleep(min(5.0, self.stall_limit / 10))
        finally:
            if canary is not None:
                canary.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await canary

    async def _signs(self) -> tuple[Any, ...]:
        """Numbers that move only while an engine works."""
        metrics = await self.metrics()
        moving = ("generation_tokens", "prompt_tokens", "spec_verify_calls", "spec_decode_num")
        work = {k: v for k, v in metrics.items() if any(name in k for name in moving)}
        info = await self.facts()
        return (str(work) if work else None, info.generation_throughput, self._batches())

    def _batches(self) -> int | None:
        log = self.endpoint.log
        if log is None or not log.is_file():
            return None
        return _count(log, (b"Decode batch", b"Prefill batch"))

    def _wire(self) -> Wire:
        return Wire(self._chat, CONNECT_TIMEOUT, KEEP_ALIVE)

    def _clock(self) -> float:
        return round(time.monotonic() - self._began, 6)


def _count(log: Path, needles: Sequence[bytes]) -> int:
    with log.open("rb") as lines:
        return sum(any(needle in line for needle in needles) for line in lines)


def _canary() -> Prompt:
    return Prompt("canary", ({"role": "user", "content": "Hi"},), Sampling(1, temperature=0))


def prompt_digest(messages: Sequence[dict[str, str]]) -> str:
    """sha256 over the messages as canonical JSON: tells which conversation a record answers."""
    text = json.dumps(list(messages), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def describe(error: BaseException) -> str:
    """An exception in one line: its kind and what it says."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
