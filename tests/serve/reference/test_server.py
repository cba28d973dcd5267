"""The engine as a process: what it answers, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.reference.models import write_guessable, write_packed

FIXTURES = Path(__file__).parents[2] / "fixtures" / "sglang-0.5.17" / "D_quant_patched"
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
# Names that SGLang 0.5.17 exported on a GPU, as far as this engine has them.
SGLANG_METRICS = (
    *("num_running_reqs", "num_queue_reqs", "gen_throughput", "context_len", "num_requests_total"),
    *("weight_memory_usage_gb", "kv_cache_memory_usage_gb", "http_requests_total"),
    *("spec_accept_length", "spec_accept_rate", "spec_num_steps", "spec_num_draft_tokens"),
    *("prompt_tokens_total", "generation_tokens_total", "spec_verify_calls_total"),
)
QUESTION = [{"role": "user", "content": "How many apples does Tom have?"}]


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    url: str
    log: Path
    record: Path

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, trust_env=False)

    def chat(self, messages: Any = QUESTION, **body: Any) -> httpx.Response:
        sent = {"model": "small", "messages": messages, "temperature": 0, "max_tokens": 12} | body
        return httpx.post(self.url + "/v1/chat/completions", json=sent, timeout=60, trust_env=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(checkpoint: Path, folder: Path, *flags: str) -> Running:
    folder.mkdir(exist_ok=True)
    port, log, record = free_port(), folder / "log", folder / "record.jsonl"
    words = ["--checkpoint", str(checkpoint), "--port", str(port), "--served-model-name", "small"]
    words += ["--context-length", "256", "--record", str(record), *flags]
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.serve.reference", *words],
        stdout=subprocess.DEVNULL,
        stderr=log.open("wb"),
        env=ENV,
    )
    return Running(process, f"http://127.0.0.1:{port}", log, record)


def status(running: Running, path: str = "/health") -> int | None:
    try:
        return running.get(path).status_code
    except httpx.TransportError:
        return None


def wait(running: Running, code: int, limit: float = 120) -> list[int | None]:
    seen: list[int | None] = []
    end = time.monotonic() + limit
    while not seen or seen[-1] != code:
        assert running.process.poll() is None, running.log.read_text()
        assert time.monotonic() < end, (seen[-5:], running.log.read_text())
        seen.append(status(running))
        time.sleep(0.05)
    return seen


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    return write_packed(write_guessable(folder / "source"), folder / "packed")


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Running]:
    running = start(checkpoint, checkpoint.parent / "run")
    try:
        codes = wait(running, 200)
        assert 503 in codes, "it must answer, and say 503, while it loads"
        assert not [code for code in codes if code not in (None, 503, 200)]
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def shape(value: Any) -> Any:
    """Names and JSON types of a payload, numbers being one type."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__


def recorded(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text())


def test_a_chat_completion_has_the_shape_of_sglangs(server: Running) -> None:
    answer = server.chat(return_meta_info=True).json()
    expected = recorded("chat.json")
    assert shape(answer) == shape(expected)
    assert list(answer["choices"][0]["meta_info"]) == list(expected["choices"][0]["meta_info"])
    assert list(answer) == list(expected)
    meta = answer["choices"][0]["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert answer["usage"]["completion_tokens"] == meta["completion_tokens"] == 12
    without = server.chat().json()
    assert "meta_info" not in without["choices"][0]
    assert without["choices"][0]["message"] == answer["choices"][0]["message"]


def test_the_other_pages_have_sglangs_names_and_types(server: Running) -> None:
    models = server.get("/v1/models").json()
    assert shape(models) == shape(recorded("v1_models.json"))
    assert models["data"][0] | {"created": 0} == {
        "id": "small",
        "object": "model",
        "created": 0,
        "owned_by": "quantgate",
        "root": "small",
        "parent": None,
        "max_model_len": 256,
    }
    info, expected = server.get("/model_info").json(), recorded("model_info.json")
    assert {key: shape(value) for key, value in info.items()}.items() <= shape(expected).items()
    server.chat()
    info, expected = server.get("/server_info").json(), recorded("server_info.json")
    own = {"device_name", "draft_kv_cache_dtype", "startup_time", "internal_states"}
    common = {key: shape(value) for key, value in info.items() if key not in own}
    assert set(common) <= set(expected)
    for key in ("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"):
        assert info[key] == expected[key]
    assert info["speculative_num_draft_tokens"] == 3
    assert info["speculative_draft_model_quantization"] == "modelopt_fp4"
    assert info["kv_cache_dtype"] == info["draft_kv_cache_dtype"] == "float8_e4m3fn"
    assert 1 <= info["internal_states"][0]["avg_spec_accept_length"] <= 3


def test_metrics_carry_sglangs_names_and_count(server: Running) -> None:
    def values() -> dict[str, float]:
        lines = server.get("/metrics").text.splitlines()
        return {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1])
            for line in lines
            if not line.startswith("#")
        }

    before = values()
    meta = server.chat(return_meta_info=True).json()["choices"][0]["meta_info"]
    after = values()
    assert set(after) <= {f"sglang:{name}" for name in SGLANG_METRICS}
    assert "# TYPE sglang:spec_verify_calls_total counter" in server.get("/metrics").text
    grown = {name: after[name] - before[name] for name in after}
    assert grown["sglang:generation_tokens_total"] == 12
    assert grown["sglang:spec_verify_calls_total"] == meta["spec_verify_ct"]
    assert grown["sglang:prompt_tokens_total"] == meta["prompt_tokens"]
    assert grown["sglang:num_requests_total"] == 1


def test_many_at_once_answer_as_one_alone_and_records_recount_the_counters(
    server: Running,
) -> None:
    questions = [f"Tom has {7 * n} apples and buys {n} more." for n in range(24)]
    asked = [[{"role": "user", "content": text}] for text in questions]
    with ThreadPoolExecutor(24) as pool:
        crowd = list(pool.map(lambda one: server.chat(one, return_meta_info=True).json(), asked))
    alone = [server.chat(one).json() for one in asked[:3]]
    contents = [one["choices"][0]["message"]["content"] for one in crowd]
    assert contents[:3] == [one["choices"][0]["message"]["content"] for one in alone]
    lines = [json.loads(line) for line in server.record.read_text().splitlines()]
    by_id = {line["request"]: line for line in lines}
    accepted_sometimes = False
    for answer in crowd:
        line, meta = by_id[answer["id"]], answer["choices"][0]["meta_info"]
        final = line["output_ids"] + line["cut_ids"]
        place, correct = 1, 0
        for draft in line["drafts"]:
            good = 0
            while good < len(draft) and final[place + good] == draft[good]:
                good += 1
            correct, place = correct + good, place + good + 1
        assert place == len(final)
        assert meta["spec_verify_ct"] == len(line["drafts"])
        assert meta["spec_num_correct_drafts"] == correct
        assert meta["spec_num_proposed_drafts"] == 2 * len(line["drafts"])
        accepted_sometimes |= correct > 0
    assert accepted_sometimes


def test_the_mean_since_the_last_flush(server: Running) -> None:
    assert server.get("/flush_cache").status_code == 200
    assert "avg_spec_accept_length" not in server.get("/server_info").json()["internal_states"][0]
    meta = server.chat(return_meta_info=True).json()["choices"][0]["meta_info"]
    state = server.get("/server_info").json()["internal_states"][0]
    expected = 1 + meta["spec_num_correct_drafts"] / meta["spec_verify_ct"]
    assert state["avg_spec_accept_length"] == pytest.approx(expected)


def test_a_stop_string_is_cut_and_named(server: Running) -> None:
    whole = server.chat(max_tokens=30).json()["choices"][0]["message"]["content"]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    choice = server.chat(max_tokens=30, stop=[stop]).json()["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
    other = server.chat(max_tokens=30, stop="\u2603").json()["choices"][0]
    assert (other["message"]["content"], other["finish_reason"]) == (whole, "length")


def test_a_stop_token_ends_the_text_and_is_not_in_it(server: Running) -> None:
    last = server.record.read_text().splitlines()
    server.chat(max_tokens=20)
    line = json.loads(server.record.read_text().splitlines()[len(last)])
    token = line["output_ids"][10]
    first = line["output_ids"].index(token)
    answer = server.chat(max_tokens=20, stop_token_ids=[token]).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", token)
    assert answer["usage"]["completion_tokens"] == first + 1


def test_a_stream_adds_up_to_the_answer(server: Running) -> None:
    whole = server.chat(max_tokens=20).json()
    text = server.chat(max_tokens=20, stream=True, stream_options={"include_usage": True}).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    theirs = (FIXTURES / "chat_stream.txt").read_text().splitlines()
    expected = json.loads(theirs[0].removeprefix("data: "))
    assert shape(events[0]) == shape(expected)
    deltas = [event["choices"][0]["delta"].get("content") or "" for event in events[:-1]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"] == whole["usage"]


def test_seeds_repeat_and_differ(server: Running) -> None:
    def text(seed: int) -> str:
        body = server.chat(temperature=0.9, seed=seed).json()
        return str(body["choices"][0]["message"]["content"])

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 2}, "n:"),
        ({"presence_penalty": 1.5}, "presence_penalty"),
        ({"stream": True, "return_meta_info": True}, "return_meta_info"),
        ({"max_tokens": 5000}, "context length"),
        ({"messages": [{"role": "user", "content": "apples " * 400}]}, "context length"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "text",
        ),
    ],
)
def test_a_bad_request_is_refused_in_one_line(
    server: Running, body: dict[str, Any], words: str
) -> None:
    response = server.chat(**body)
    assert response.status_code == 400, response.text
    error = response.json()
    assert error["object"] == "error"
    assert error["type"] == "BadRequestError"
    assert error["code"] == 400
    assert words in error["message"]
    assert "\n" not in error["message"]


def test_broken_json_and_unknown_paths_are_refused(server: Running) -> None:
    url = server.url + "/v1/chat/completions"
    response = httpx.post(url, content=b'{"messages', timeout=20, trust_env=False)
    assert response.status_code == 400
    assert server.get("/v1/chat/completions").status_code == 405
    assert server.get("/nothing").status_code == 404
    assert server.chat(unknown_key=1, chat_template_kwargs={"enable_thinking": False}).is_success


def test_a_client_that_leaves_frees_its_row(server: Running) -> None:
    sent = {"messages": QUESTION, "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(server.url + "/v1/chat/completions", json=sent, timeout=0.3, trust_env=False)
    deadline = time.monotonic() + 20
    while server.get("/flush_cache").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_only_loopback_is_served(checkpoint: Path, tmp_path: Path) -> None:
    for flags in (("--host", "0.0.0.0"), ("--num-steps", "0"), ("--dtype", "bfloat16")):
        running = start(checkpoint, tmp_path, *flags)
        assert running.process.wait(60) == 2
        assert flags[0] in running.log.read_text()


def test_a_port_that_is_taken_ends_it_with_one_line(
    server: Running, checkpoint: Path, tmp_path: Path
) -> None:
    port = server.url.rsplit(":", 1)[1]
    running = start(checkpoint, tmp_path, "--port", port)
    assert running.process.wait(60) == 1
    assert f"Cannot bind 127.0.0.1:{port}" in running.log.read_text()


def test_a_load_that_fails_ends_it_with_one_clear_line(checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in checkpoint.iterdir():
        (broken / path.name).symlink_to(path)
    (broken / "model.safetensors").unlink()
    (broken / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:-9])
    running = start(broken, tmp_path / "run")
    assert running.process.wait(120) == 1
    lines = [line for line in running.log.read_text().splitlines() if "Load failed" in line]
    assert len(lines) == 1
    assert "shard-truncated" in lines[0]
    assert "ready to roll" not in running.log.read_text()


def test_a_signal_while_loading_ends_it_at_once(checkpoint: Path, tmp_path: Path) -> None:
    running = start(checkpoint, tmp_path)
    wait(running, 503)
    running.process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert running.process.wait(30) == 0
    assert time.monotonic() - begin < 10


def test_a_signal_ends_it_within_seconds_and_answers_what_is_under_way(server: Running) -> None:
    sent = {"max_tokens": 230, "ignore_eos": True, "messages": QUESTION}
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(lambda: server.chat(**sent))
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        assert server.process.wait(30) == 0
        assert time.monotonic() - begin < 10
        assert under_way.result().status_code == 503
    log = server.log.read_text()
    assert "The server is fired up and ready to roll!" in log
    assert "Traceback" not in log
