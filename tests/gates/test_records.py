from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.artifacts import Verdict
from tasks.errors import BadInputError
from tasks.gates.acceptance import run_acceptance
from tasks.gates.gsm8k import run_gsm8k
from tasks.gates.records import Records, read_records
from tasks.gates.smoke import run_smoke
from tasks.spec import AcceptanceGate, Gsm8kGate, ServeSpec, SmokeGate, SpeculationSpec
from tests.gates.conftest import GSM8K, questions, timeless
from tests.servers.fake import Brain, FakeEngine, Reply, solver

HEADER = {"gate": "gsm8k", "inputs": {"url": "u", "data": "d"}, "prompts": [{"id": "1"}]}

KILLED = """
import sys
from pathlib import Path
from tasks.artifacts import Endpoint
from tasks.gates.acceptance import run_acceptance
from tasks.gates.gsm8k import run_gsm8k
from tasks.spec import AcceptanceGate, Gsm8kGate, SpeculationSpec
url, out, gate, options = sys.argv[1:]
endpoint = Endpoint(url=url, engine="sglang", model="tiny")
if gate == "gsm8k":
    run_gsm8k(endpoint, Gsm8kGate.model_validate_json(options), Path(out))
else:
    run_acceptance(
        endpoint, AcceptanceGate.model_validate_json(options), SpeculationSpec(), Path(out)
    )
"""


def kill_half_way(fake: FakeEngine, out: Path, gate: str, options: str, answers: int) -> None:
    """Run a gate in a process of its own and kill -9 it once it has recorded `answers`."""
    command = [sys.executable, "-c", KILLED, fake.http.url, str(out), gate, options]
    child = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 60
        records = out / "records.jsonl"
        while time.monotonic() < deadline and child.poll() is None:
            if records.exists() and records.read_bytes().count(b'"answer"') >= answers:
                break
            time.sleep(0.01)
        assert child.poll() is None, "it ended before it could be killed"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def slowly(reply: Reply, _: int) -> None:
    reply.delay = 0.03


def test_a_gsm8k_run_killed_and_resumed_reports_as_an_uninterrupted_one(tmp_path: Path) -> None:
    brain = solver(questions(), wrong=lambda place: place in (3, 70, 150))
    gate = Gsm8kGate(data=GSM8K, min_accuracy=0.9, max_tokens=256, concurrency=4, limit=120)
    with FakeEngine(brain=brain, spoil=slowly) as fake:
        kill_half_way(fake, tmp_path / "a", "gsm8k", gate.model_dump_json(), 40)
        before = sum(x["record"] == "answer" for x in read_records(tmp_path / "a/records.jsonl"))
        resumed = run_gsm8k(fake.endpoint, gate, tmp_path / "a")
        whole = run_gsm8k(fake.endpoint, gate, tmp_path / "b")
    assert 40 <= before < 110
    assert resumed.verdict is Verdict.PASS
    assert timeless(resumed) == timeless(whole)
    lines = read_records(tmp_path / "a/records.jsonl")
    names = [line["id"] for line in lines if line["record"] == "answer"]
    assert len(names) == len(set(names))
    assert sum(line["record"] == "session" for line in lines) == 2


def test_an_acceptance_run_killed_and_resumed_reports_the_same(tmp_path: Path) -> None:
    gate = AcceptanceGate(min_accept=2.2, concurrency=4)
    with FakeEngine(spoil=slowly) as fake:
        kill_half_way(fake, tmp_path / "a", "acceptance", gate.model_dump_json(), 90)
        resumed = run_acceptance(fake.endpoint, gate, SpeculationSpec(), tmp_path / "a")
        whole = run_acceptance(fake.endpoint, gate, SpeculationSpec(), tmp_path / "b")
    assert resumed.verdict is Verdict.PASS, resumed.reasons
    assert timeless(resumed) == timeless(whole)


def test_a_wave_cut_short_is_asked_again(tmp_path: Path) -> None:
    """vLLM counts by totals, so that half a wave counts nothing."""
    gate = AcceptanceGate(min_accept=2.2)
    with FakeEngine(engine="vllm") as fake:
        whole = run_acceptance(fake.endpoint, gate, SpeculationSpec(), tmp_path)
        path = tmp_path / "records.jsonl"
        lines = path.read_bytes().split(b"\n")
        marks = [place for place, line in enumerate(lines) if b'"totals","session"' in line]
        assert len(marks) == 15
        path.write_bytes(b"\n".join(lines[: marks[6] + 5]) + b"\n")
        asked = fake.count
        again = run_acceptance(fake.endpoint, gate, SpeculationSpec(), tmp_path)
        assert fake.count == asked + 8 * 16
    assert whole.verdict is Verdict.PASS and timeless(again) == timeless(whole)
    assert any(line["record"] == "discard" for line in read_records(path))


def test_a_smoke_run_cut_short_is_continued(tmp_path: Path, brain: Brain) -> None:
    gate = SmokeGate(max_tokens=256, require_log=False)
    with FakeEngine(brain=brain) as fake:
        whole = run_smoke(fake.endpoint, gate, ServeSpec(), tmp_path)
        path = tmp_path / "records.jsonl"
        path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:17]) + b"\n")
        asked = fake.count
        again = run_smoke(fake.endpoint, gate, ServeSpec(), tmp_path)
        assert 0 < fake.count - asked < asked
    assert whole.verdict is Verdict.PASS and timeless(again) == timeless(whole)


def test_a_torn_last_line_is_cut_and_asked_again(tmp_path: Path, brain: Brain) -> None:
    gate = Gsm8kGate(data=GSM8K, min_accuracy=0.5, max_tokens=256, limit=30)
    with FakeEngine(brain=brain) as fake:
        first = run_gsm8k(fake.endpoint, gate, tmp_path)
        path = tmp_path / "records.jsonl"
        lines = path.read_bytes().split(b"\n")
        answers = [line for line in lines if b'"answer"' in line]
        path.write_bytes(b"\n".join(lines[:2] + answers[:10]) + b"\n" + answers[10][:40])
        assert len(read_records(path)) == 12
        asked = fake.count
        again = run_gsm8k(fake.endpoint, gate, tmp_path)
        assert fake.count > asked
    assert timeless(again) == timeless(first)


def test_every_line_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    with Records(tmp_path, HEADER) as records:
        for place in range(3):
            records.append({"record": "answer", "id": str(place)})
            assert len(read_records(records.path)) == place + 2


def test_records_of_other_inputs_are_refused_by_name(tmp_path: Path) -> None:
    with Records(tmp_path, HEADER):
        pass
    other = {**HEADER, "inputs": {"url": "u", "data": "e"}}
    with pytest.raises(BadInputError, match="other data"):
        Records(tmp_path, other)
    with pytest.raises(BadInputError, match="other gate"):
        Records(tmp_path, {**HEADER, "gate": "smoke"})
    with pytest.raises(BadInputError, match="other prompts"):
        Records(tmp_path, {**HEADER, "prompts": []})
    with Records(tmp_path, HEADER) as records:
        assert len(records.lines) == 1


def test_a_file_that_is_no_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("hello\n", encoding="utf-8")
    with pytest.raises(BadInputError):
        Records(tmp_path, HEADER)
    (tmp_path / "records.jsonl").write_text(json.dumps({"record": "x"}) + "\n", encoding="utf-8")
    with pytest.raises(BadInputError, match="no header"):
        Records(tmp_path, HEADER)
