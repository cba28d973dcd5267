from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import GateReport
from tasks.gates.problems import known_answers
from tests.servers.fake import Brain, solver

GSM8K = Path("tests/fixtures/gsm8k/test-200.jsonl")


def questions() -> list[tuple[str, str]]:
    """The fixture's problems, then the smoke gate's, as (question, right answer)."""
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").split("\n") if line]
    own = [(row["question"], row["answer"].partition("####")[2].strip()) for row in rows]
    return own + [(problem.question, problem.gold) for problem in known_answers(None)]


@pytest.fixture(scope="session")
def brain() -> Brain:
    """Knows every answer."""
    return solver(questions())


@pytest.fixture(scope="session")
def data() -> Path:
    return GSM8K


def codes(report: GateReport) -> set[str]:
    return {reason.code for reason in report.reasons}


SPEED = ("requests_per_second", "output_tokens_per_second", "latency_seconds")


def timeless(report: GateReport) -> dict[str, Any]:
    """A report without what the clock decides."""
    kept = report.model_dump(mode="json", exclude={"seconds"})
    for name in SPEED:
        kept["measured"].pop(name, None)
    return kept
