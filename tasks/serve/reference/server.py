"""HTTP over the engine: SGLang's endpoints and codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tasks.errors import BadInputError
from tasks.serve.reference import payloads
from tasks.serve.reference.body import ChatBody, check_length, parse_body
from tasks.serve.reference.engine import Engine
from tasks.serve.reference.request import Request, Sampling
from tasks.serve.reference.totals import HEALTH

HEALTH_SECONDS = 20.0
Handler = Callable[[HttpRequest], Awaitable[Response]]


class Server:
    """The endpoints of one engine. Nothing is cached: `/flush_cache` resets the lifetime means."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.options = engine.options
        self.created = int(time.time())
        routes = [
            Route("/health", self._counted(self.health)),
            Route("/health_generate", self._counted(self.health)),
            Route("/v1/models", self._counted(self.models)),
            Route("/model_info", self._counted(self.model_info)),
            Route("/get_model_info", self._counted(self.model_info)),
            Route("/server_info", self._counted(self.server_info)),
            Route("/get_server_info", self._counted(self.server_info)),
            Route("/metrics", self._counted(self.metrics)),
            Route("/flush_cache", self._counted(self.flush), methods=["GET", "POST"]),
            Route("/v1/chat/completions", self._counted(self.chat), methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    def _counted(self, handler: Handler) -> Handler:
        async def handle(http: HttpRequest) -> Response:
            key = http.url.path, http.method
            counts = self.engine.totals.http
            counts[key] = counts.get(key, 0) + 1
            if self.engine.state != "ready":
                return _error(f"The engine is {self.engine.state}.", 503, "ServiceUnavailable")
            return await handler(http)

        return handle

    async def models(self, http: HttpRequest) -> Response:
        """The one model served."""
        return JSONResponse(payloads.models(self.options, self.engine.loaded, self.created))

    async def model_info(self, http: HttpRequest) -> Response:
        """What kind of model it is."""
        return JSONResponse(payloads.model_info(self.options, self.engine.loaded))

    async def server_info(self, http: HttpRequest) -> Response:
        """Settings and state."""
        engine = self.engine
        return JSONResponse(payloads.server_info(self.options, engine.loaded, engine.totals))

    async def metrics(self, http: HttpRequest) -> Response:
        """Prometheus text."""
        engine = self.engine
        text = payloads.metrics(self.options, engine.loaded, engine.totals)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def flush(self, http: HttpRequest) -> Response:
        """Forget the lifetime means; 400 while anything runs."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self.engine.flush(lambda done: _later(loop, answer, done))
        if await answer:
            return PlainTextResponse("Cache flushed: nothing ran, lifetime means are reset.\n")
        return PlainTextResponse("Not flushed: requests are running or waiting.\n", 400)

    async def health(self, http: HttpRequest) -> Response:
        """Generate one token; any work the engine does meanwhile is health too."""
        sampling = Sampling(max_tokens=1)
        request = Request(f"{HEALTH}_{uuid.uuid4().hex}", [0], sampling)
        begin = time.time()
        self.engine.submit(request)
        while time.time() < begin + HEALTH_SECONDS:
            if request.finish in ("stop", "length") or self.engine.totals.last_work > begin:
                request.aborted = not request.done
                return Response(status_code=200)
            if request.done:
                break
            await asyncio.sleep(0.02)
        request.aborted = True
        return Response(status_code=503)

    async def chat(self, http: HttpRequest) -> Response:
        """A chat completion, whole or as a stream."""
        try:
            body = parse_body(await http.body())
            # Long prompts take their time; the loop must go on answering.
            request = await run_in_threadpool(self._request, body)
        except BadInputError as error:
            return _error(str(error).strip())
        model = body.model or self.options.served_model_name
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        request.notify = lambda _: _wake(loop, changed)
        self.engine.submit(request)
        if body.stream:
            with_usage = bool((body.stream_options or {}).get("include_usage"))
            return StreamingResponse(
                self._stream(request, model, changed, with_usage), media_type="text/event-stream"
            )
        if not await _finished(http, request, changed):
            return Response(status_code=499)
        if request.error is not None:
            return _error(request.error, 503, "ServiceUnavailable")
        return JSONResponse(
            payloads.completion(request, model, self.options.num_steps, body.return_meta_info)
        )

    def _request(self, body: ChatBody) -> Request:
        loaded = self.engine.loaded
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        prompt = loaded.text.prompt(messages, body.chat_template_kwargs or {})
        asked = body.max_completion_tokens or body.max_tokens
        check_length(len(prompt), asked, loaded.context_length)
        if not prompt:
            raise BadInputError("prompt-empty", "The prompt has no tokens.", "Send some text.")
        sampling = body.sampling(loaded.text.defaults, loaded.context_length - len(prompt))
        return Request(uuid.uuid4().hex, prompt, sampling)

    async def _stream(
        self, request: Request, model: str, changed: asyncio.Event, with_usage: bool
    ) -> AsyncIterator[bytes]:
        sent = ""
        try:
            yield _event(payloads.chunk(request, model, {"role": "assistant", "content": ""}))
            while True:
                await changed.wait()
                changed.clear()
                done = request.done and request.ended > 0
                if done and request.error is not None:
                    body = payloads.error(request.error, 503, "ServiceUnavailable")
                    yield _event({"error": body})
                    break
                whole = request.text if done else self._so_far(request)
                if whole is not None and len(whole) > len(sent):
                    yield _event(payloads.chunk(request, model, {"content": whole[len(sent) :]}))
                    sent = whole
                if done:
                    yield _event(payloads.chunk(request, model, {}, final=True))
                    if with_usage:
                        yield _event(payloads.chunk(request, model, None))
                    break
            yield b"data: [DONE]\n\n"
        finally:
            request.aborted = True

    def _so_far(self, request: Request) -> str | None:
        """Text that no later token can change; None while a stop string might still begin."""
        if request.sampling.stop:
            return None
        return self.engine.loaded.text.decode(list(request.output)).rstrip("\ufffd")


class QuietServer(uvicorn.Server):
    """uvicorn without a log and without its own signal handlers."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            loop="asyncio",
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


async def _finished(http: HttpRequest, request: Request, changed: asyncio.Event) -> bool:
    """Wait for the end; False, and the request aborted, when the client goes first."""
    gone = asyncio.create_task(_gone(http))
    try:
        while not (request.done and request.ended > 0):
            waiting = asyncio.create_task(changed.wait())
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            changed.clear()
            if gone.done():
                request.aborted = True
                return False
        return True
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(changed.set)


def _later(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[bool], value: bool) -> None:
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(answer.set_result, value)


def _event(value: dict[str, object]) -> bytes:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _error(message: str, code: int = 400, kind: str = "BadRequestError") -> JSONResponse:
    return JSONResponse(payloads.error(message, code, kind), status_code=code)
