"""How fast the gates' client is, and what serving once saves.

    python -m tests.bench.gates [--python VENV/bin/python] [--requests 2000] [--rounds 3] [--json]
    python -m tests.bench.gates --flow [--release DIR]

First form: requests per second at concurrency 64 against one local mock server, ours (records
written to disk) beside lm-eval's `local-chat-completions` and sgl-eval's sampler, in turn, medians
over the rounds. `--python` names an interpreter that has `lm-eval[api]` and `sgl-eval`; one that is
not installed is left out. The mock must sustain three times the fastest client alone (measured with
pipelined requests), or the ratios are void.

Second form: wall time of one engine that all three gates measure, beside three scripts that each
start the engine for one gate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONCURRENCY = 64
CHAT = Path("tests/fixtures/sglang-0.5.17/D_quant_patched/chat.json")
MODELS = Path("tests/fixtures/sglang-0.5.17/D_quant_patched/v1_models.json")


def reply(body: bytes) -> bytes:
    """One keep-alive HTTP response."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class Mock(asyncio.Protocol):
    """Answers every POST with one recorded chat completion, every GET with the model list."""

    chat = reply(json.dumps(json.loads(CHAT.read_bytes())).encode()) if CHAT.exists() else b""
    models = reply(MODELS.read_bytes()) if MODELS.exists() else b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer + data if self.buffer else data
        out = []
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            if buffer[:3] == b"GET":
                out.append(self.models)
                buffer = buffer[end + 4 :]
                continue
            at = buffer.lower().find(b"content-length:", 0, end)
            stop = buffer.find(b"\r\n", at)
            whole = end + 4 + int(buffer[at + 15 : stop])
            if len(buffer) < whole:
                break
            out.append(self.chat)
            buffer = buffer[whole:]
        self.buffer = buffer
        if out:
            self.transport.write(b"".join(out))


async def serve_mock() -> None:
    """Listen on a free loopback port, print it, and serve for ever."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Mock, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def mock() -> Iterator[int]:
    """The mock server in a process of its own; gives its port."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.gates", "--mock"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        yield int(child.stdout.readline())
    finally:
        child.terminate()
        child.wait()


def sustained(port: int, requests: int) -> float:
    """Requests a second that the mock answers when asking costs next to nothing (pipelined)."""
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 200}]}).encode()
    one = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    batch = (one + body) * 32
    size = 32 * len(Mock.chat)
    with socket.create_connection(("127.0.0.1", port)) as wire:
        began, done = time.perf_counter(), 0
        while done < requests:
            wire.sendall(batch)
            left = size
            while left:
                left -= len(wire.recv(min(left, 1 << 20)))
            done += 32
        return done / (time.perf_counter() - began)


def ours(port: int, requests: int) -> float:
    """Requests a second of this project's client, each recorded to disk as in a gate."""
    from tasks.artifacts import Endpoint
    from tasks.gates.session import Plan, measure
    from tasks.serve.dialects import Prompt, Sampling

    prompts = [
        Prompt(str(i), ({"role": "user", "content": question(i)},), Sampling(64, temperature=0.0))
        for i in range(requests)
    ]
    endpoint = Endpoint(url=f"http://127.0.0.1:{port}", engine="vllm", model="tiny")
    plan = Plan("bench", prompts, {}, CONCURRENCY, 60)
    with tempfile.TemporaryDirectory() as out:
        lines = measure(endpoint, plan, Path(out), lambda _: False)
        spans = [(x["at"], x["at"] + x["latency"]) for x in lines if x["record"] == "answer"]
        assert len(spans) == requests
        return requests / (max(end for _, end in spans) - min(start for start, _ in spans))


def question(place: int) -> str:
    """Different prompts of the length of a GSM8K problem."""
    return f"Problem {place}. " + "A farmer sells eggs at the market every morning. " * 5


LM_EVAL = """
import json, sys, time, logging
logging.disable(logging.WARNING)
port, count, wide = map(int, sys.argv[1:4])
questions = json.load(sys.stdin)
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion
model = LocalChatCompletion(
    model="tiny", base_url=f"http://127.0.0.1:{port}/v1/chat/completions",
    num_concurrent=wide, tokenized_requests=False, max_retries=1,
)
asked = [
    Instance(
        request_type="generate_until", doc={}, idx=i,
        arguments=(
            JsonChatStr(json.dumps([{"role": "user", "content": q}])),
            {"until": [], "max_gen_toks": 64, "temperature": 0.0},
        ),
    )
    for i, q in enumerate(questions)
]
began = time.perf_counter()
answers = model.generate_until(asked, disable_tqdm=True)
assert len(answers) == count and all(answers)
print("RATE", count / (time.perf_counter() - began))
"""

SGL_EVAL = """
import json, sys, time, logging
from concurrent.futures import ThreadPoolExecutor
port, count, wide = map(int, sys.argv[1:4])
questions = json.load(sys.stdin)
from sgl_eval.sampler import ChatCompletionSampler
from sgl_eval.types import GenConfig
sampler = ChatCompletionSampler(base_url=f"http://127.0.0.1:{port}/v1", model="tiny")
gen = GenConfig(max_tokens=64, temperature=0.0)
began = time.perf_counter()
with ThreadPoolExecutor(max_workers=wide) as pool:
    samples = list(pool.map(lambda q: sampler([{"role": "user", "content": q}], gen), questions))
assert len(samples) == count and all(s.text for s in samples)
print("RATE", count / (time.perf_counter() - began))
"""


def other(python: str, script: str, port: int, requests: int) -> float | None:
    """Requests a second of a client in another interpreter; None where it is not installed."""
    asked = json.dumps([question(i) for i in range(requests)])
    command = [python, "-c", script, str(port), str(requests), str(CONCURRENCY)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    rates = [x for x in done.stdout.splitlines() if x.startswith("RATE")]
    if not rates:
        lines = done.stderr.strip().splitlines()
        print(f"left out: {lines[-1] if lines else 'no output'}", file=sys.stderr)
        return None
    return float(rates[0].split()[1])


def compare_clients(python: str, requests: int, rounds: int) -> dict[str, Any]:
    """Medians of the rates, the ratio to the fastest other client, and whether the mock held."""
    rates: dict[str, list[float]] = {"ours": [], "lm-eval": [], "sgl-eval": []}
    with mock() as port:
        alone = [sustained(port, 4 * requests)]
        for _ in range(rounds):
            runs: dict[str, Callable[[], float | None]] = {
                "ours": lambda: own_process(port, requests),
                "lm-eval": lambda: other(python, LM_EVAL, port, requests),
                "sgl-eval": lambda: other(python, SGL_EVAL, port, requests),
            }
            for name, run in runs.items():
                rate = run()
                if rate is not None:
                    rates[name].append(rate)
            alone.append(sustained(port, 4 * requests))
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    others = [rate for name, rate in medians.items() if name != "ours"]
    held = min(alone) >= 3 * max(medians.values())
    return {
        "requests_per_second": medians,
        "rounds": rates,
        "mock_alone": alone,
        "mock_holds": held,
        "ratio": medians["ours"] / max(others) if others and held else None,
    }


def own_process(port: int, requests: int) -> float | None:
    """Ours, in a fresh process as the others are."""
    command = [sys.executable, "-m", "tests.bench.gates", "--ours", str(port)]
    command += ["--requests", str(requests)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def compare_flow(release: Path) -> dict[str, float]:
    """Seconds of one engine for three gates, and of three engines for one gate each."""
    from tasks.gates.acceptance import run_acceptance
    from tasks.gates.gsm8k import run_gsm8k
    from tasks.gates.smoke import run_smoke
    from tasks.serve.engines import serve
    from tasks.spec import load_spec

    spec = load_spec(Path("deployments/demo/release.yaml"))
    gates, speculation = spec.gates, spec.serve.speculation
    assert gates.acceptance is not None
    acceptance = gates.acceptance
    wait = spec.serve.ready_timeout
    runs: list[Callable[[Any, Path], Any]] = [
        lambda e, out: run_smoke(e, gates.smoke, spec.serve, out, release),
        lambda e, out: run_gsm8k(e, gates.gsm8k, out, release, ready_timeout=wait),
        lambda e, out: run_acceptance(e, acceptance, speculation, out, ready_timeout=wait),
    ]
    found = {}
    for name, groups in (("once", [runs]), ("three_times", [[run] for run in runs])):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            for place, group in enumerate(groups):
                log = Path(folder) / f"{place}.log"
                with serve(release, spec.serve, None, log, "bench") as endpoint:
                    for step, run in enumerate(group):
                        run(endpoint, Path(folder) / f"{place}-{step}")
        found[name] = time.perf_counter() - began
    return {**found, "saved": found["three_times"] - found["once"]}


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gates")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--flow", action="store_true")
    parser.add_argument("--release", type=Path)
    parser.add_argument("--mock", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ours", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.mock:
        asyncio.run(serve_mock())
    if given.ours:
        print(ours(given.ours, given.requests))
        return 0
    if given.flow:
        from tests.gates.matrix.__main__ import build_release

        with tempfile.TemporaryDirectory() as scratch:
            found = compare_flow(given.release or build_release(Path(scratch)))
    else:
        found = compare_clients(given.python, given.requests, given.rounds)
    print(json.dumps(found, indent=None if given.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
