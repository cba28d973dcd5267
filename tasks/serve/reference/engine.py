"""The engine's thread: takes requests, keeps the batch full, tells how each one ended."""

from __future__ import annotations

import json
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tasks.errors import QuantgateError
from tasks.serve.reference.log import say
from tasks.serve.reference.options import Options
from tasks.serve.reference.request import Request
from tasks.serve.reference.totals import Totals

if TYPE_CHECKING:
    from tasks.serve.reference.batch import Batch
    from tasks.serve.reference.load import Loaded

State = Literal["loading", "ready", "failed", "stopped"]
PREFILL_TOKENS = 2048
"""Padded prompt tokens prefilled at once; one longer prompt goes alone."""
TOTAL_TOKENS = 65536
"""Rows times their longest length, as far as can be foreseen, over which requests wait."""
FORESEEN = 512
LOG_EVERY = 40


@dataclass(frozen=True)
class _Flush:
    answer: Callable[[bool], None]


class Engine:
    """Loads a checkpoint and serves requests, in one thread of its own.

    Args:
        options: what to serve.
        on_state: called from that thread when the state changes.
    """

    def __init__(self, options: Options, on_state: Callable[[State], None]) -> None:
        self.options = options
        self.state: State = "loading"
        self.totals = Totals()
        self._loaded: Loaded | None = None
        self._on_state = on_state
        self._inbox: queue.SimpleQueue[Request | _Flush | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def loaded(self) -> Loaded:
        """What was loaded; only once the state is `ready`."""
        assert self._loaded is not None
        return self._loaded

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; `request.notify` tells what becomes of it."""
        self._inbox.put(request)

    def flush(self, answer: Callable[[bool], None]) -> None:
        """Reset the lifetime speculation means, if nothing runs; `answer` gets whether it did."""
        self._inbox.put(_Flush(answer))

    def stop(self, timeout: float = 2.0) -> bool:
        """End every request with an error and stop; whether the thread ended in time."""
        self._stopping.set()
        self._inbox.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            from tasks.serve.reference.load import load

            self._loaded = load(self.options)
        except QuantgateError as error:
            say("Load failed [%s]: %s", error.code, error)
            self._change("failed")
            return
        except Exception:
            say("Load failed with an exception.\n%s", traceback.format_exc())
            self._change("failed")
            return
        if self._stopping.is_set():
            return
        self._change("ready")
        say("The server is fired up and ready to roll!")
        try:
            self._serve(self._loaded)
        except Exception:
            say("Scheduler hit an exception: %s", traceback.format_exc())
            self._change("failed")
        finally:
            self._end_all("The engine was stopped.")

    def _change(self, state: State) -> None:
        self.state = state
        self._on_state(state)

    def _serve(self, loaded: Loaded) -> None:
        from tasks.serve.reference.batch import Batch

        batch = Batch(loaded.main, loaded.draft, self.options.num_steps)
        self._batch = batch
        while not self._stopping.is_set():
            self._receive(batch)
            self._drop_aborted(batch)
            if self._waiting and len(batch) < self.options.max_batch:
                self._prefill(batch)
            if batch.requests:
                self._decode(batch)
            self.totals.running, self.totals.queued = len(batch), len(self._waiting)

    def _receive(self, batch: Batch) -> None:
        idle = not batch.requests and not self._waiting
        if idle:
            batch.rest()
            self.totals.rest()
        while True:
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                return
            idle = False
            if item is None:
                return
            if isinstance(item, Request):
                self._waiting.append(item)
                continue
            free = not batch.requests and not self._waiting
            if free:
                self.totals.forget_speculation()
            item.answer(free)

    def _drop_aborted(self, batch: Batch) -> None:
        for row in reversed(range(len(batch))):
            if batch.requests[row].aborted:
                self._leave(batch, row, "abort")
        for request in [one for one in self._waiting if one.aborted]:
            self._waiting.remove(request)
            request.end("abort", "The request was aborted.")

    def _prefill(self, batch: Batch) -> None:
        group: list[Request] = []
        longest = max((_foreseen(one) for one in batch.requests), default=0)
        widest = 0
        while self._waiting and len(batch) + len(group) < self.options.max_batch:
            request = self._waiting[0]
            widest = max(widest, len(request.prompt))
            longest = max(longest, _foreseen(request))
            rows = len(batch) + len(group) + 1
            over = widest * (len(group) + 1) > PREFILL_TOKENS
            if (group and over) or (rows > 1 and rows * longest > TOTAL_TOKENS):
                break
            group.append(self._waiting.popleft())
        if not group:
            return
        now = time.time()
        for request in group:
            request.started = now
        gained = batch.admit(group)
        for request in group:
            request.prefilled = time.time()
        tokens = sum(len(request.prompt) for request in group)
        self.totals.prefilled(tokens)
        say(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: 0, #running-req: %d,"
            " #queue-req: %d",
            len(group),
            tokens,
            len(batch) - len(group),
            len(self._waiting),
        )
        self._extend(batch, len(batch) - len(group), gained)

    def _decode(self, batch: Batch) -> None:
        begin = time.monotonic()
        rows = len(batch)
        gained = batch.step()
        accepted = sum(len(tokens) - 1 for tokens in gained)
        self.totals.stepped(rows, accepted, batch.steps, time.monotonic() - begin)
        if self.totals.steps % LOG_EVERY == 0:
            self._log_decode(rows)
        self._extend(batch, 0, gained)

    def _log_decode(self, rows: int) -> None:
        spec = self.totals.recent_speculation()
        words = f" accept len: {spec[0]:.2f}, accept rate: {spec[1]:.2f}," if spec else ""
        say(
            "Decode batch, #running-req: %d,%s gen throughput (token/s): %.2f, #queue-req: %d",
            rows,
            words,
            self.totals.throughput,
            len(self._waiting),
        )

    def _extend(self, batch: Batch, first: int, gained: list[list[int]]) -> None:
        """Give rows `first` and on their new tokens; those that end leave, the last row first."""
        for row in reversed(range(first, first + len(gained))):
            request = batch.requests[row]
            if self._take(request, gained[row - first]):
                self._leave(batch, row, None)
            else:
                request.notify(request)

    def _take(self, request: Request, tokens: list[int]) -> bool:
        """Append tokens up to the request's end; whether it has come."""
        text, sampling = self.loaded.text, request.sampling
        limit = min(sampling.max_tokens, self.loaded.context_length - len(request.prompt))
        for place, token in enumerate(tokens):
            request.output.append(token)
            if token in sampling.stop_ids or (token in text.ends and not sampling.ignore_eos):
                request.finish, request.matched = "stop", token
            elif sampling.stop and self._stop_string(request):
                request.finish = "stop"
            elif len(request.output) >= limit:
                request.finish = "length"
            if request.done:
                request.cut = tokens[place + 1 :]
                return True
        return False

    def _stop_string(self, request: Request) -> bool:
        from tasks.serve.reference.text import cut_at_stop

        found = cut_at_stop(self.loaded.text.decode(request.output), request.sampling.stop)
        if found is None:
            return False
        request.text, request.matched = found
        return True

    def _leave(self, batch: Batch, row: int, abort: Literal["abort"] | None) -> None:
        request = batch.requests[row]
        batch.leave(row)
        if abort:
            request.end("abort", "The request was aborted.")
            return
        if request.text is None:
            ends = request.finish == "stop" and request.output[-1] == request.matched
            request.text = self.loaded.text.decode(request.output[:-1] if ends else request.output)
        self.totals.finished(request)
        if self.options.record is not None:
            self._write_record(request)
        assert request.finish is not None
        request.end(request.finish)

    def _write_record(self, request: Request) -> None:
        assert self.options.record is not None
        line = {
            "request": request.id,
            "prompt_ids": request.prompt,
            "drafts": [step.draft for step in request.steps],
            "verified": [step.verified for step in request.steps],
            "output_ids": request.output,
            "cut_ids": request.cut,
        }
        with self.options.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _end_all(self, why: str) -> None:
        left = [*self._batch.requests, *self._waiting] if hasattr(self, "_batch") else []
        while True:
            try:
                item = self._inbox.get(block=False)
            except queue.Empty:
                break
            if isinstance(item, Request):
                left.append(item)
        for request in left:
            if not request.done:
                request.end("abort", why)


def _foreseen(request: Request) -> int:
    return len(request.prompt) + min(request.sampling.max_tokens, FORESEEN)
