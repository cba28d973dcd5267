"""A scriptable engine that answers as SGLang 0.5.17 did (payloads in tests/fixtures), or vLLM.

    brain = solver(problems)                     # question -> answer text
    with FakeEngine(brain=brain) as fake: ...    # fake.endpoint
    FakeEngine(brain=brain, spoil=every(50, status(500)))

`spoil(reply, count)` sees each reply before it goes out, with the number of chat requests so far,
and may change it: that is where a server goes wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tasks.artifacts import Endpoint
from tests.servers.http import Answer, HttpServer

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sglang-0.5.17"
RECORDED = FIXTURES / "D_quant_patched"


def recorded(name: str, folder: Path = RECORDED) -> Any:
    """One recorded payload, a fresh copy."""
    return json.loads(_text(folder / name))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@dataclass
class Reply:
    """What one chat request will get; `spoil` changes it."""

    text: str
    body: dict[str, Any]
    finish: str = "stop"
    reasoning: str | None = None
    status: int = 200
    drop: bool = False
    hang: bool = False
    delay: float = 0.0
    model: str | None = None
    id: str | None = None
    tokens: int = 0
    prompt_tokens: int = 0
    verify_ct: int = 0
    correct: int = 0
    histogram: list[int] = field(default_factory=list)
    speculation: bool = True
    raw: bytes | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    """Overrides inside meta_info."""


Brain = Callable[[str], str]
Spoil = Callable[[Reply, int], None]


def solver(
    problems: Iterable[tuple[str, str]], wrong: Callable[[int], bool] = lambda _: False
) -> Brain:
    """Answers questions it knows with a little work and `#### answer`; `wrong(place)` misses."""
    known = {question: (place, gold) for place, (question, gold) in enumerate(problems)}

    def brain(content: str) -> str:
        for question, (place, gold) in known.items():
            if content.startswith(question):
                given = "0.125" if wrong(place) else gold
                opening = " ".join(question.split()[:6])
                return f"{opening} and so on: that makes {given}.\n#### {given}"
        return prose(content)

    return brain


def prose(content: str) -> str:
    """Varied harmless text, the same for the same prompt."""
    draw = random.Random(content)
    words = [
        "the",
        "a",
        "river",
        "house",
        "walks",
        "under",
        "over",
        "quiet",
        "green",
        "seven",
        "lamp",
        "turns",
        "slowly",
        "home",
    ]
    return " ".join(draw.choice(words) for _ in range(draw.randint(30, 60))).capitalize() + "."


class FakeEngine:
    """A server with one behaviour.

    Args:
        brain: last user message -> answer text.
        accept: chance that the first, second, ... draft of a verification is accepted.
        spoil: changes a reply before it goes out.
        info: overrides in /server_info.
        engine: dialect to speak (`sglang`, `reference` or `vllm`).
        ready_after: health checks answered 503 before the first 200.

    Attributes:
        decodes: whether its totals move when it answers.
        exports: whether it has /metrics.
    """

    def __init__(
        self,
        *,
        brain: Brain = prose,
        accept: tuple[float, ...] = (0.85, 0.75),
        spoil: Spoil | None = None,
        info: dict[str, Any] | None = None,
        engine: str = "sglang",
        model: str = "tiny",
        asked: str | None = "tiny",
        ready_after: int = 0,
        max_model_len: int | None = 4096,
        seed: int = 0,
        log: Path | None = None,
    ) -> None:
        self.brain, self.accept, self.spoil, self.engine = brain, accept, spoil, engine
        self.model, self.ready_after, self.log, self.asked = model, ready_after, log, asked
        self.max_model_len, self.seed = max_model_len, seed
        self.info = {**recorded("server_info.json"), "served_model_name": model, **(info or {})}
        self.count = self.verifications = self.accepted = self.drafted = 0
        self.positions = [0] * len(accept)
        self.bodies: list[dict[str, Any]] = []
        self.dead = False
        self.decodes = self.exports = True
        self.http = HttpServer(self._handle)

    def __enter__(self) -> FakeEngine:
        self.http.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(url=self.http.url, engine=self.engine, model=self.asked, log=self.log)

    async def _handle(self, method: str, path: str, body: bytes) -> Answer:
        if path in ("/health", "/health_generate"):
            self.ready_after -= 1
            return Answer(status=200 if self.ready_after < 0 else 503)
        if path == "/v1/chat/completions" and method == "POST":
            return await self._chat(json.loads(body))
        page = self._page(path)
        if page is None:
            return Answer(b'{"detail": "Not Found"}', status=404)
        return Answer(page)

    def _page(self, path: str) -> bytes | None:
        listed = recorded("v1_models.json")
        listed["data"][0] |= {"id": self.model, "max_model_len": self.max_model_len}
        pages = {"/v1/models": listed}
        if self.engine == "vllm":
            pages["/version"] = {"version": "0.20.0"}
        else:
            pages |= {"/server_info": self.info, "/model_info": recorded("model_info.json")}
        if path == "/metrics" and self.exports:
            return self._metrics().encode()
        return json.dumps(pages[path]).encode() if path in pages else None

    async def _chat(self, body: dict[str, Any]) -> Answer:
        self.bodies.append(body)
        self.count += 1
        count = self.count
        reply = self._reply(body)
        if self.spoil is not None:
            self.spoil(reply, count)
        if reply.hang:
            await asyncio.sleep(3600)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.drop:
            return Answer(drop=True)
        if reply.status != 200:
            return Answer(b'{"error": {"message": "scripted"}}', status=reply.status)
        if self.decodes:
            self._account(reply)
        return Answer(reply.raw if reply.raw is not None else self.payload(reply, count))

    def _reply(self, body: dict[str, Any]) -> Reply:
        text = self.brain(body["messages"][-1]["content"])
        words = text.split(" ")
        limit = body.get("max_tokens") or 10**6
        finish = "stop"
        if len(words) > limit:
            text, finish, words = " ".join(words[:limit]), "length", words[:limit]
        size = sum(8 + len(message["content"].split(" ")) for message in body["messages"])
        reply = Reply(text, body, finish=finish, tokens=len(words), prompt_tokens=size)
        self._speculate(reply)
        return reply

    def _speculate(self, reply: Reply) -> None:
        """Spend the reply's tokens on verifications that accept by chance, seeded by the text.

        As in SGLang the first token comes from the prompt, and what the last verification accepts
        beyond the end is counted though it is cut.
        """
        draw = random.Random(f"{self.seed}{reply.text}")
        histogram = [0] * (len(self.accept) + 1)
        left = reply.tokens - 1
        while left > 0:
            taken = 0
            while taken < len(self.accept) and draw.random() < self.accept[taken]:
                taken += 1
            histogram[taken] += 1
            left -= taken + 1
        reply.verify_ct = sum(histogram)
        reply.correct = sum(place * times for place, times in enumerate(histogram))
        while len(histogram) > 1 and histogram[-1] == 0:
            histogram.pop()
        reply.histogram = histogram

    def _account(self, reply: Reply) -> None:
        self.verifications += reply.verify_ct
        self.accepted += reply.correct
        self.drafted += reply.verify_ct * len(self.accept)
        for place in range(len(self.accept)):
            self.positions[place] += sum(reply.histogram[place + 1 :])

    def payload(self, reply: Reply, count: int) -> bytes:
        payload = recorded("chat.json") if self.engine != "vllm" else _vllm_chat()
        name = reply.id or f"{count:032x}"
        payload |= {"id": name, "model": reply.model or reply.body.get("model") or self.model}
        choice = payload["choices"][0]
        choice["message"] |= {"content": reply.text, "reasoning_content": reply.reasoning}
        choice |= {"finish_reason": reply.finish}
        choice["matched_stop"] = 248046 if reply.finish == "stop" else None
        payload["usage"] |= {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.tokens,
            "total_tokens": reply.prompt_tokens + reply.tokens,
        }
        if self.engine == "vllm":
            return json.dumps(payload).encode()
        meta = choice["meta_info"]
        meta |= {
            "id": name,
            "finish_reason": {"type": reply.finish},
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.tokens,
            "spec_accept_length": reply.tokens / max(1, reply.verify_ct),
            "spec_num_correct_drafts": reply.correct,
            "spec_num_proposed_drafts": reply.verify_ct * len(self.accept),
            "spec_verify_ct": reply.verify_ct,
            "spec_correct_drafts_histogram": reply.histogram,
        }
        meta |= reply.changes
        if not reply.speculation:
            for key in [key for key in meta if key.startswith("spec_")]:
                del meta[key]
        if not reply.body.get("return_meta_info"):
            del choice["meta_info"]
        return json.dumps(payload).encode()

    def _metrics(self) -> str:
        if self.engine != "vllm":
            name = f'sglang:spec_verify_calls_total{{model_name="{self.model}"}}'
            return f"{name} {self.verifications}\n"
        label = f'{{engine="0",model_name="{self.model}"}}'
        lines = [
            f"vllm:spec_decode_num_drafts_total{label} {self.verifications}",
            f"vllm:spec_decode_num_draft_tokens_total{label} {self.drafted}",
            f"vllm:spec_decode_num_accepted_tokens_total{label} {self.accepted}",
        ]
        for place, times in enumerate(self.positions):
            lines.append(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                f'{{engine="0",model_name="{self.model}",position="{place}"}} {times}'
            )
        return "\n".join(lines) + "\n"


def _vllm_chat() -> dict[str, Any]:
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant"}, "finish_reason": "stop"}],
        "usage": {},
    }


def every(nth: int, change: Spoil) -> Spoil:
    """Apply `change` to each nth request."""
    return lambda reply, count: change(reply, count) if count % nth == 0 else None


def after(start: int, change: Spoil) -> Spoil:
    """Apply `change` to every request after the first `start`."""
    return lambda reply, count: change(reply, count) if count > start else None


def status(code: int) -> Spoil:
    """Answer with an HTTP status."""

    def change(reply: Reply, _: int) -> None:
        reply.status = code

    return change


def drop(reply: Reply, _: int) -> None:
    """Reset the connection instead of answering."""
    reply.drop = True


def hang(reply: Reply, _: int) -> None:
    """Never answer."""
    reply.hang = True
