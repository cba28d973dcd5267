"""One lean HTTP/1.1 connection, for POSTs one after another.

httpx's own pool looks at every connection for every request, which costs more than the request
itself when many are under way (measured: 5 ms of CPU a request at 64, against under 0.4 ms here).
Each worker of the client has one of these instead. Errors are httpx's, so that callers tell them
apart as ever. Bodies without a plain length (chunked) are left to h11.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from types import TracebackType

import h11
import httpx

LIMIT = 1 << 20
"""Bytes that a response's head may have, at most, and that are read at a time."""


@dataclass(frozen=True)
class Answer:
    """Status and whole body of a response, decoded."""

    status: int
    content: bytes


class Wire:
    """Keeps its connection open between requests, at most `keep_alive` idle seconds.

    Args:
        url: where every POST goes.
        connect_timeout: seconds to open a connection.
        keep_alive: idle seconds after which a new connection is opened instead.

    Example:
        async with Wire(httpx.URL("http://127.0.0.1:30000/v1/chat/completions"), 10, 2) as wire:
            answer = await wire.post(b"{}")
    """

    def __init__(self, url: httpx.URL, connect_timeout: float, keep_alive: float) -> None:
        self._url = url
        self._connect_timeout = connect_timeout
        self._keep_alive = keep_alive
        self._tls: ssl.SSLContext | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._used = 0.0
        self._head = (
            b"POST %s HTTP/1.1\r\nhost: %s\r\nuser-agent: quantgate\r\naccept: application/json\r\n"
            b"content-type: application/json\r\naccept-encoding: identity\r\ncontent-length: "
        ) % (url.raw_path, url.netloc)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drop()

    async def post(self, body: bytes) -> Answer:
        """Send `body` and give the whole response.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout: no connection could be opened; nothing was
                sent.
            httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError: after sending began.
        """
        reader, writer = await self._connection()
        again = False
        try:
            writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
            await writer.drain()
            answer, again = await self._receive(reader)
            return answer
        except asyncio.IncompleteReadError as error:
            words = "closed in the middle" if error.partial else "closed without an answer"
            raise httpx.RemoteProtocolError(words) from error
        except (asyncio.LimitOverrunError, h11.RemoteProtocolError, ValueError) as error:
            raise httpx.RemoteProtocolError(f"no HTTP response: {error}") from error
        except OSError as error:
            raise httpx.ReadError(str(error) or "connection reset") from error
        finally:
            self._used = time.monotonic()
            if not again:
                self._drop()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._writer is not None:
            await asyncio.sleep(0)  # a close that has already come must be seen before sending
            idle = time.monotonic() - self._used
            if idle < self._keep_alive and not self._reader.at_eof():
                return self._reader, self._writer
            self._drop()
        secure = self._url.scheme == "https"
        if secure and self._tls is None:
            self._tls = httpx.create_ssl_context()
        port = self._url.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self._connect_timeout):
                self._reader, self._writer = await asyncio.open_connection(
                    self._url.host, port, ssl=self._tls, limit=LIMIT
                )
        except TimeoutError as error:
            words = f"no connection within {self._connect_timeout:g} s"
            raise httpx.ConnectTimeout(words) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return self._reader, self._writer

    async def _receive(self, reader: asyncio.StreamReader) -> tuple[Answer, bool]:
        """(response, whether the connection may be used again)."""
        status = 100
        while status < 200:
            head = await reader.readuntil(b"\r\n\r\n")
            if head[:5] != b"HTTP/":
                raise ValueError(f"it begins with {head[:20]!r}")
            status = int(head[9:12])
        fields = head.lower()
        again = b"\r\nconnection: close" not in fields and head[5:8] == b"1.1"
        at = fields.find(b"\r\ncontent-length:")
        if at < 0 or b"\r\ntransfer-encoding:" in fields or b"\r\ncontent-encoding:" in fields:
            return await _by_h11(reader, head), False
        length = int(fields[at + 17 : fields.index(b"\r\n", at + 2)])
        return Answer(status, await reader.readexactly(length)), again

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


async def _by_h11(reader: asyncio.StreamReader, head: bytes) -> Answer:
    """Read a response of any other form; `head` was read already."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(head)
    status, headers, body = 0, [], []
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            parser.receive_data(await reader.read(LIMIT))
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            break
    decoded = httpx.Response(status, headers=headers, content=b"".join(body))
    return Answer(status, decoded.content)
