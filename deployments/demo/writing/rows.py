"""Rows of the files that a release's gates and calibration read."""

from __future__ import annotations

from writing.generator import distinct, pairs
from writing.solutions import final_number

STRETCH_EVERY = 33
EASY = ("add", "subtract", "difference", "together", "lose_and_find", "three_people")
PROMPT_KINDS = ("math", "code", "prose", "chat")


def gsm8k_rows(split: str, count: int, seed: int) -> list[dict[str, str]]:
    """Return math problems in GSM8K's form, every 33rd of them a stretch problem."""
    hard = count // STRETCH_EVERY
    found = distinct(pairs(split, seed), count - hard)
    for number, pair in enumerate(distinct(pairs(split, seed, "stretch"), hard), 1):
        found.insert(number * STRETCH_EVERY - 1, pair)
    return [{"question": pair.question, "answer": pair.answer} for pair in found]


def smoke_rows(split: str, count: int, seed: int) -> list[dict[str, str]]:
    """Return easy math problems, each with its id and its bare final number."""
    found = distinct(pairs(split, seed, topics=EASY), count)
    return [
        {"id": f"smoke-{i:02d}", "question": pair.question, "answer": final_number(pair.answer)}
        for i, pair in enumerate(found, 1)
    ]


def acceptance_rows(split: str, count: int, seed: int) -> list[dict[str, str]]:
    """Return prompts of all kinds in equal parts; `count` is rounded down to fill every kind."""
    return [
        {"id": f"{kind}-{i:03d}", "kind": kind, "prompt": pair.question}
        for kind in PROMPT_KINDS
        for i, pair in enumerate(distinct(pairs(split, seed, kind), count // len(PROMPT_KINDS)), 1)
    ]
