"""Prompts and problems: read from files, checked before anything is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from tasks.errors import BadInputError, TransientError
from tasks.gates.answers import number

SHIPPED = Path(__file__).parent / "data"
GSM8K_REPO, GSM8K_FILE = "openai/gsm8k", "main/test-00000-of-00001.parquet"


@dataclass(frozen=True)
class Problem:
    """One question with its right answer, a number as GSM8K writes it."""

    id: str
    question: str
    gold: str


@dataclass(frozen=True)
class Writing:
    """One prompt of a kind (math, code, prose, chat)."""

    id: str
    kind: str
    prompt: str


Row = TypeVar("Row", Problem, Writing)


def gsm8k_problems(data: Path | None, limit: int | None, cache: Path) -> list[Problem]:
    """The first `limit` problems of a JSONL file in GSM8K's form, or of the Hub's test split.

    `question` and `answer`, where the right answer stands after `####` (or is the whole answer).
    Ids are `id` where there is one, else the line's number.

    Raises:
        BadInputError: unreadable, empty, or a line without them.
        TransientError: the Hub did not give it.
    """
    if data is None:
        return _from_hub(cache)[:limit]
    return _read(data, _problem)[:limit]


def known_answers(prompts: Path | None) -> list[Problem]:
    """The smoke gate's questions: the given file, or the shipped ones."""
    return _read(prompts or SHIPPED / "smoke.jsonl", _problem)


def writings(prompts: Path | None) -> list[Writing]:
    """The acceptance gate's prompts: the given file, or the shipped ones."""
    return _read(prompts or SHIPPED / "acceptance.jsonl", _writing)


def content_digest(value: Any) -> str:
    """sha256 of a value as canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _problem(row: dict[str, Any], position: int) -> Problem:
    gold = _field(row, "answer").rpartition("####")[2].strip()
    if number(gold) is None:
        raise ValueError(f"`answer` ends in no number: {gold[:40]!r}")
    return Problem(str(row.get("id", position)), _field(row, "question"), gold)


def _writing(row: dict[str, Any], position: int) -> Writing:
    return Writing(
        str(row.get("id", position)), str(row.get("kind", "prompt")), _field(row, "prompt")
    )


def _field(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, int | float) and name == "answer":
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"no text in `{name}`")
    return value


def _read(path: Path, make: Callable[[dict[str, Any], int], Row]) -> list[Row]:
    made: list[Row] = []
    remedy = "Give a JSONL file in the documented form."
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError("data-unreadable", f"{path}: {error}.", remedy) from error
    for position, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("no JSON object")
            made.append(make(row, position))
        except ValueError as error:
            raise BadInputError(
                "data-unreadable", f"{path}, line {position}: {error}.", remedy
            ) from error
    if not made:
        raise BadInputError("data-empty", f"{path}: holds no rows.", remedy)
    if len({row.id for row in made}) < len(made):
        raise BadInputError("data-unreadable", f"{path}: an `id` twice.", "Make ids unique.")
    return made


def _from_hub(cache: Path) -> list[Problem]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadInputError(
            "data-unreadable",
            "The Hub keeps GSM8K as Parquet and pyarrow is not installed.",
            "Install the extra `quantize`, or give a JSONL file (gates.gsm8k.data, --data).",
        ) from error
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(GSM8K_REPO, GSM8K_FILE, repo_type="dataset", local_dir=cache)
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:
        raise TransientError(
            "data-unreachable",
            f"{GSM8K_REPO} could not be had from the Hub: {error}.",
            "Try again, or give a JSONL file (gates.gsm8k.data, --data).",
        ) from error
    return [_problem(row, position) for position, row in enumerate(rows, 1)]
