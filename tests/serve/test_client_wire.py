from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tasks.serve.wire import Answer, Wire

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request(reader: asyncio.StreamReader) -> bytes:
    """Read one whole request; its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    return await reader.readexactly(length)


async def talk(server: Talk, posts: int = 1, keep_alive: float = 5) -> list[Answer]:
    """Post to a server that speaks raw bytes."""
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with Wire(httpx.URL(f"http://127.0.0.1:{port}/x"), 2, keep_alive) as wire:
        answers = [await wire.post(b"%d" % place) for place in range(posts)]
    listening.close()
    return answers


def says(response: bytes, close: bool = True) -> Talk:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                await request(reader)
            except asyncio.IncompleteReadError:
                break
            writer.write(response)
            if close:
                break
        await writer.drain()
        writer.close()

    return server


PACKED = gzip.compress(b"hello", mtime=0)


@pytest.mark.parametrize(
    ("response", "status", "content"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
        (b"HTTP/1.1 500 X\r\ncontent-length:5\r\n\r\nhello", 500, b"hello"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            200,
            b"ok",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            200,
            b"hello",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", 200, b"hello"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s"
            % (len(PACKED), PACKED),
            200,
            b"hello",
        ),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 204, b""),
    ],
)
def test_responses_of_every_form(response: bytes, status: int, content: bytes) -> None:
    assert asyncio.run(talk(says(response))) == [Answer(status, content)]


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (2 << 20),
    ],
)
def test_broken_responses_are_errors_after_sending(response: bytes) -> None:
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        asyncio.run(talk(says(response)))


def test_a_connection_is_kept_and_one_that_was_closed_is_opened_again() -> None:
    opened = 0

    def counting(inner: Talk) -> Talk:
        async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            await inner(reader, writer)

        return server

    fine = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    asyncio.run(talk(counting(says(fine, close=False)), posts=5))
    assert opened == 1
    asyncio.run(talk(counting(says(fine, close=False)), posts=3, keep_alive=0))
    assert opened == 1 + 3
    announced = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
    asyncio.run(talk(counting(says(announced)), posts=3))
    assert opened == 1 + 3 + 3


def test_a_server_that_closes_without_saying_so_costs_no_request() -> None:
    fine = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    answers = asyncio.run(talk(says(fine), posts=200))
    assert answers == [Answer(200, b"ok")] * 200


def test_no_connection_is_told_apart() -> None:
    async def go() -> None:
        async with Wire(httpx.URL("http://127.0.0.1:9/x"), 2, 2) as wire:
            await wire.post(b"")

    with pytest.raises(httpx.ConnectError):
        asyncio.run(go())
