"""Ways in which only a server can be wrong, for the scriptable fake server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.servers.fake import FakeEngine, Reply, Spoil, after, drop, every, hang


@dataclass(frozen=True)
class Wrong:
    """One fault of a server. `make` gives a fresh `spoil` for one run."""

    name: str
    make: Callable[[FakeEngine], Spoil]
    info: dict[str, Any] = field(default_factory=dict)


def truncates(_: FakeEngine) -> Spoil:
    """Ends every answer at half the median length and says that it stopped by itself."""

    def spoil(reply: Reply, __: int) -> None:
        words = reply.text.split(" ")
        limit = 7
        if len(words) > limit:
            reply.text, reply.finish = " ".join(words[:limit]), "stop"
            reply.tokens = limit

    return spoil


def refuses_then_recovers(_: FakeEngine) -> Spoil:
    def spoil(reply: Reply, count: int) -> None:
        if 30 <= count < 36:
            reply.status = 500

    return spoil


def dies(fake: FakeEngine) -> Spoil:
    def spoil(reply: Reply, count: int) -> None:
        if count >= 40:
            reply.drop = True
            if not fake.dead:
                fake.dead = True
                fake.http.die()

    return spoil


def duplicates(_: FakeEngine) -> Spoil:
    """Answers every second question with the answer before it."""
    before: list[Reply] = []

    def spoil(reply: Reply, count: int) -> None:
        if count % 2 == 0 and before:
            for name in ("text", "tokens", "verify_ct", "correct", "histogram"):
                setattr(reply, name, getattr(before[0], name))
        before[:] = [reply]

    return spoil


def flatters(_: FakeEngine) -> Spoil:
    """Claims 2.7 tokens a verification whatever happened, in counters that agree."""

    def spoil(reply: Reply, _: int) -> None:
        verify = max(1, round((reply.tokens - 1) / 2.7))
        correct = min(2 * verify, reply.tokens - verify)
        twos = max(correct - verify, correct // 2 - verify // 8)
        twos = min(twos, correct // 2)
        histogram = [verify - (correct - 2 * twos) - twos, correct - 2 * twos, twos]
        reply.changes = {
            "spec_verify_ct": verify,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": 2 * verify,
            "spec_correct_drafts_histogram": histogram,
            "spec_accept_length": reply.tokens / verify,
        }

    return spoil


def flatters_unseen(fake: FakeEngine) -> Spoil:
    """The same, where no /metrics says otherwise."""
    fake.exports = False
    return flatters(fake)


def becomes_another(fake: FakeEngine) -> Spoil:
    """Starts anew as another model under the same name, time and again."""

    def spoil(_: Reply, count: int) -> None:
        if count % 15 == 0:
            fake.info["model_path"] = f"/models/{count}"

    return spoil


def speculates_on_every_second(_: FakeEngine) -> Spoil:
    def spoil(reply: Reply, count: int) -> None:
        reply.speculation = count % 2 == 0

    return spoil


def counts_beside_no_bill(fake: FakeEngine) -> Spoil:
    """Counters of a good head beside every answer, and no number of tokens to hold them against."""

    def spoil(reply: Reply, count: int) -> None:
        body = json.loads(fake.payload(reply, count))
        del body["usage"]
        meta = body["choices"][0]["meta_info"]
        del meta["completion_tokens"]
        reply.raw = json.dumps(body).encode()

    return spoil


def degenerates(_: FakeEngine) -> Spoil:
    """Falls into a loop once it has answered 150 requests."""

    def spoil(reply: Reply, count: int) -> None:
        if count > 150:
            reply.text, reply.tokens = "the river and " * 20, 60

    return spoil


def errs_with_200(reply: Reply, _: int) -> None:
    reply.raw = b'{"error": {"message": "out of memory"}}'


def bills_in_words(fake: FakeEngine) -> Spoil:
    def spoil(reply: Reply, count: int) -> None:
        body = json.loads(fake.payload(reply, count))
        body["usage"]["completion_tokens"] = str(reply.tokens)
        reply.raw = json.dumps(body).encode()

    return spoil


def claims(_: FakeEngine) -> Spoil:
    """States a length of 2.7 beside counters that say otherwise."""

    def spoil(reply: Reply, _: int) -> None:
        reply.changes = {"spec_accept_length": 2.7}

    return spoil


def reasons_aloud(_: FakeEngine) -> Spoil:
    """Sends the reasoning as the answer, though it ends with the right number."""

    def spoil(reply: Reply, _: int) -> None:
        thought = "Okay, the user wants a number. Let me go through it step by step again. "
        reply.text = f"{thought}{reply.text}\n</think>"

    return spoil


def reasons_twice(_: FakeEngine) -> Spoil:
    """Sends the reasoning in both fields."""

    def spoil(reply: Reply, _: int) -> None:
        reply.text = reply.reasoning = f"Okay, let me think about it once more. {reply.text}"

    return spoil


def is_another(_: FakeEngine) -> Spoil:
    def spoil(reply: Reply, _: int) -> None:
        reply.model = "some-other-model"

    return spoil


def poor(_: FakeEngine) -> Spoil:
    return lambda reply, count: None


WRONG = [
    Wrong("truncates at half the median answer", truncates),
    Wrong("drops every 50th request", lambda _: every(50, drop)),
    Wrong("answers 500, then recovers", refuses_then_recovers),
    Wrong("dies in the middle", dies),
    Wrong("hangs", lambda _: after(25, hang)),
    Wrong("duplicates answers", duplicates),
    Wrong("reports fake accept lengths", flatters, {"accept": (0.3, 0.2)}),
    Wrong("the same, with no /metrics", flatters_unseen, {"accept": (0.3, 0.2)}),
    Wrong("becomes another model under the same name", becomes_another),
    Wrong("speculates on every second request", speculates_on_every_second),
    Wrong("counters beside no number of tokens", counts_beside_no_bill),
    Wrong("degenerates after 150 requests", degenerates),
    Wrong("errors with status 200", lambda _: every(20, errs_with_200)),
    Wrong("bills tokens as text", bills_in_words),
    Wrong("states another length than its counters", claims, {"accept": (0.3, 0.2)}),
    Wrong("returns the reasoning as the answer", reasons_aloud),
    Wrong("returns the reasoning in both fields", reasons_twice),
    Wrong("answers as another model than asked", is_another),
    Wrong("serves under another name than asked", poor, {"model": "some-other-model"}),
    Wrong("reports no speculation", poor, {"info": {"speculative_algorithm": None}}),
]
