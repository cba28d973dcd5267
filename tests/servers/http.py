"""A small HTTP/1.1 server in a thread: fast enough to measure clients, rude enough to test them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Handler = Callable[[str, str, bytes], Awaitable["Answer"]]
"""(method, path, body) -> Answer."""


@dataclass
class Answer:
    """What goes back. `drop`: close the connection instead of answering."""

    body: bytes = b""
    status: int = 200
    drop: bool = False
    content_type: bytes = b"application/json"


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it are answered in turn."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.buffer = b""
        self.transport: asyncio.Transport | None = None
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.busy:
            self._next()

    def _next(self) -> None:
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        self.busy = True
        task = self.server.loop.create_task(self._answer(method, path, rest[:length]))
        self.server.tasks.add(task)
        task.add_done_callback(self.server.tasks.discard)

    async def _answer(self, method: str, path: str, body: bytes) -> None:
        answer = await self.server.handler(method, path, body)
        if self.transport is None or self.transport.is_closing():
            return
        if answer.drop:
            self.transport.abort()
            return
        self.transport.write(
            b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
            % (answer.status, answer.content_type, len(answer.body), answer.body)
        )
        self.busy = False
        if self.buffer:
            self._next()


class HttpServer:
    """Serve `handler` on a free loopback port until `close` (`with HttpServer(...) as server`)."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.loop = asyncio.new_event_loop()
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._server = self.loop.run_until_complete(
            self.loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        self.loop.run_forever()

    def die(self) -> None:
        """Stop listening and reset every connection, from any thread."""
        self.loop.call_soon_threadsafe(self._die)

    def _die(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def close(self) -> None:
        """End the thread."""
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self._end)
        self._thread.join(10)

    def _end(self) -> None:
        self._die()
        for task in list(self.tasks):
            task.cancel()
        self.loop.call_later(0.02, self.loop.stop)
