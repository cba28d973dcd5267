from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import Endpoint
from tasks.errors import BadInputError
from tasks.serve.client import Client, StalledError, base_url
from tasks.serve.dialects import Prompt, Sampling
from tests.servers.fake import FakeEngine, Reply, after, drop, every, hang, status


def prompt(place: int = 0, **sampling: Any) -> Prompt:
    values = {"max_tokens": 64, "temperature": 0.0, **sampling}
    return Prompt(str(place), ({"role": "user", "content": f"Say {place}"},), Sampling(**values))


def ask(fake: FakeEngine, one: Prompt, timeout: float = 5) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with Client(fake.endpoint, timeout=timeout) as client:
            await client.facts()
            return await client.ask(one)

    return asyncio.run(go())


def ask_all(
    endpoint: Endpoint,
    count: int,
    *,
    concurrency: int = 8,
    timeout: float = 5,
    change: Callable[[Client], None] = lambda _: None,
    stop: Callable[[list[dict[str, Any]]], bool] = lambda _: False,
) -> list[dict[str, Any]]:
    landed: list[dict[str, Any]] = []

    def land(record: dict[str, Any]) -> bool:
        landed.append(record)
        return stop(landed)

    async def go() -> None:
        async with Client(endpoint, concurrency=concurrency, timeout=timeout) as client:
            change(client)
            await client.ask_all([prompt(place) for place in range(count)], land)

    asyncio.run(go())
    return landed


def test_a_reply_becomes_a_flat_record_with_its_counters() -> None:
    with FakeEngine() as fake:
        record = ask(fake, prompt())
    assert record["status"] == "ok" and record["error"] is None
    assert record["finish_reason"] == "stop" and record["text"]
    counters = record["speculation"]
    assert counters["verify_ct"] > 0 and sum(counters["histogram"]) == counters["verify_ct"]
    assert abs(record["completion_tokens"] - counters["verify_ct"] - counters["correct"]) <= 1
    assert record["attempts"] == [{"at": record["at"], "error": None}]


def test_the_body_asks_for_counters_and_never_for_stops_or_streams() -> None:
    with FakeEngine() as fake:
        ask(fake, prompt(top_p=0.9, top_k=20, seed=3, thinking="off"))
        body = fake.bodies[-1]
    assert body["return_meta_info"] is True and body["stream"] is False
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert (body["top_p"], body["top_k"], body["seed"]) == (0.9, 20, 3)
    assert "stop" not in body and "min_p" not in body and body["model"] == "tiny"
    with FakeEngine(engine="vllm") as fake:
        ask(fake, prompt())
        assert "return_meta_info" not in fake.bodies[-1]


@pytest.mark.parametrize("spoil", [status(500), status(400), drop])
def test_what_fails_after_sending_is_lost_and_not_sent_again(spoil: Any) -> None:
    with FakeEngine(spoil=spoil) as fake:
        record = ask(fake, prompt())
        assert record["status"] == "lost" and record["error"]
        assert len(record["attempts"]) == 1 and fake.count == 1


def test_a_timeout_is_lost_and_not_sent_again() -> None:
    with FakeEngine(spoil=hang) as fake:
        record = ask(fake, prompt(), timeout=0.3)
        assert record["status"] == "lost" and "Timeout" in record["error"]
        assert fake.count == 1


def test_a_body_that_is_no_completion_is_lost() -> None:
    for raw in (b"<html>", b'{"choices": []}', b'{"error": {"message": "no"}}', b"[]"):

        def spoil(reply: Reply, _: int, raw: bytes = raw) -> None:
            reply.raw = raw

        with FakeEngine(spoil=spoil) as fake:
            record = ask(fake, prompt())
        assert record["status"] == "lost" and "malformed" in record["error"], raw


@pytest.mark.parametrize(
    "part",
    [
        {"usage": {"completion_tokens": "12"}},
        {"usage": {"prompt_tokens": 1.5}},
        {"usage": [12]},
        {"model": {"name": "tiny"}},
        {"id": ["a"]},
        {"choices": [{"message": {"content": [{"text": "7"}]}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "7"}, "finish_reason": {"type": "stop"}}]},
    ],
)
def test_a_completion_with_parts_of_another_kind_is_lost(part: dict[str, Any]) -> None:
    whole = {"choices": [{"message": {"content": "7"}, "finish_reason": "stop"}], **part}

    def spoil(reply: Reply, _: int) -> None:
        reply.raw = json.dumps(whole).encode()

    with FakeEngine(spoil=spoil) as fake:
        record = ask(fake, prompt())
    assert record["status"] == "lost" and "malformed" in record["error"]


def test_half_a_surrogate_pair_can_be_recorded() -> None:
    def spoil(reply: Reply, _: int) -> None:
        reply.text = "It costs 7 \ud83d"

    with FakeEngine(spoil=spoil) as fake:
        record = ask(fake, prompt())
    assert record["text"] == "It costs 7 \ufffd" and record["text"].encode()


def test_a_connection_that_never_opened_is_tried_again_and_every_attempt_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasks.serve.client.CONNECT_RETRIES", (0.01, 0.02))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    records = ask_all(Endpoint(url=url, engine="sglang", model="tiny"), 2)
    for record in records:
        assert record["status"] == "lost"
        assert len(record["attempts"]) == 3
        assert all("Connect" in attempt["error"] for attempt in record["attempts"])


def test_concurrency_is_bounded_and_used() -> None:
    under_way, most = 0, 0

    class Counting(FakeEngine):
        async def _chat(self, body: dict[str, Any]) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.02)
            under_way -= 1
            return await super()._chat(body)

    with Counting() as fake:
        records = ask_all(fake.endpoint, 40, concurrency=8)
    assert len(records) == 40 and most == 8


def test_it_stops_when_told_and_drops_what_is_under_way() -> None:
    with FakeEngine() as fake:
        records = ask_all(fake.endpoint, 200, concurrency=4, stop=lambda landed: len(landed) >= 20)
    assert 20 <= len(records) < 30


def test_every_fiftieth_loss_is_seen() -> None:
    with FakeEngine(spoil=every(50, drop)) as fake:
        records = ask_all(fake.endpoint, 200)
    assert sum(record["status"] == "lost" for record in records) == 4


def test_a_hung_server_ends_the_run_in_bounded_time() -> None:
    def hasten(client: Client) -> None:
        client.stall_after, client.stall_limit = 0.3, 0.8

    with FakeEngine(spoil=after(10, hang)) as fake:
        began = time.monotonic()
        with pytest.raises(StalledError):
            ask_all(fake.endpoint, 30, concurrency=4, timeout=60, change=hasten)
        assert time.monotonic() - began < 10


def test_a_slow_server_that_shows_life_is_waited_for() -> None:
    def hasten(client: Client) -> None:
        client.stall_after, client.stall_limit = 0.2, 0.5

    def slow(reply: Reply, _: int) -> None:
        reply.delay = 1.5 if reply.body["max_tokens"] > 1 else 0.0

    with FakeEngine(spoil=slow) as fake:
        records = ask_all(fake.endpoint, 2, concurrency=2, timeout=60, change=hasten)
    assert [record["status"] for record in records] == ["ok", "ok"]


def test_readiness_is_waited_for_but_not_for_ever() -> None:
    async def wait(fake: FakeEngine, limit: float, doomed: Any = lambda: None) -> str | None:
        async with Client(fake.endpoint) as client:
            return await client.wait_ready(limit, doomed)

    with FakeEngine(ready_after=3) as fake:
        assert asyncio.run(wait(fake, 20)) is None
    with FakeEngine(ready_after=10**6) as fake:
        assert "503" in str(asyncio.run(wait(fake, 0.5)))
        assert asyncio.run(wait(fake, 60, lambda: "log says so")) == "log says so"


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:3000", "ftp://x", "http://", "http://a b", "http://x:99999", "http://[::"],
)
def test_a_malformed_url_is_bad_input(url: str) -> None:
    with pytest.raises(BadInputError) as caught:
        base_url(url)
    assert caught.value.exit_code == 2


def test_a_good_url_loses_only_its_tail() -> None:
    assert base_url("http://h:30000/v1/") == "http://h:30000"
    assert base_url(" https://h/prefix ") == "https://h/prefix"


def test_facts_of_the_recorded_server() -> None:
    async def facts(fake: FakeEngine) -> Any:
        async with Client(fake.endpoint) as client:
            return await client.facts(), await client.totals()

    with FakeEngine() as fake:
        found, totals = asyncio.run(facts(fake))
    assert (found.version, found.algorithm) == ("0.5.17", "EAGLE")
    assert (found.num_steps, found.topk, found.draft_tokens) == (2, 1, 3)
    assert found.models == ("tiny",) and found.max_model_len == 4096
    assert found.architectures == ("Qwen3_5MoeForConditionalGeneration",)
    assert totals == {"drafts": 0.0}


def test_recorded_payloads_parse_as_they_are() -> None:
    import json

    from tasks.serve.dialects import dialect, parse_metrics

    root = Path("tests/fixtures/sglang-0.5.17")
    speak = dialect("sglang")
    for folder, correct, verified in (
        ("D_quant_patched", 42, 21),
        ("A_bf16", 42, 21),
        ("G_quant_broken_fc", 0, 63),
    ):
        reply = speak.reply(json.loads((root / folder / "chat.json").read_text(encoding="utf-8")))
        assert reply["finish_reason"] == "length" and reply["completion_tokens"] == 64
        assert reply["speculation"]["correct"] == correct, folder
        assert reply["speculation"]["verify_ct"] == verified, folder
    metrics = parse_metrics((root / "D_quant_patched/metrics.txt").read_text(encoding="utf-8"))
    assert speak.totals(metrics) == {"drafts": 590.0}
