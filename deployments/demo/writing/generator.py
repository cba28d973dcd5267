"""Endless pairs of question and answer, each owned by one split."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from writing.chat import CHAT
from writing.code import CODE
from writing.math_more_steps import MORE_STEPS, MORE_STEPS_STRETCH
from writing.math_one_step import ONE_STEP, ONE_STEP_STRETCH
from writing.prose import PROSE
from writing.words import Maker

SPLITS: dict[str, frozenset[int]] = {
    "calibration": frozenset({0}),
    "eval": frozenset({1}),
    "train": frozenset(range(2, 10)),
}


@dataclass(frozen=True)
class Pair:
    """One question with its answer, and the kind of text it is."""

    kind: str
    topic: str
    question: str
    answer: str


KINDS: dict[str, dict[str, Maker]] = {
    "math": {**ONE_STEP, **MORE_STEPS},
    "stretch": {**ONE_STEP_STRETCH, **MORE_STEPS_STRETCH},
    "code": CODE,
    "prose": PROSE,
    "chat": CHAT,
}


def split_of(question: str) -> str:
    """Return the split that owns a question, decided by the hash of its text alone."""
    bucket = int(hashlib.sha256(question.encode()).hexdigest()[:8], 16) % 10
    return next(name for name, buckets in SPLITS.items() if bucket in buckets)


def pairs(
    split: str, seed: int, kind: str = "math", topics: tuple[str, ...] = ()
) -> Iterator[Pair]:
    """Yield endless pairs of one kind that belong to `split`, of the given topics or of all."""
    rng = random.Random(f"{split}/{kind}/{seed}")
    names = topics or tuple(KINDS[kind])
    while True:
        topic = rng.choice(names)
        question, answer = KINDS[kind][topic](rng)
        if split_of(question) == split:
            yield Pair(kind, topic, question, answer)


def distinct(source: Iterator[Pair], count: int) -> list[Pair]:
    """Take the first `count` pairs of `source` that have different questions."""
    found: dict[str, Pair] = {}
    while len(found) < count:
        pair = next(source)
        found.setdefault(pair.question, pair)
    return list(found.values())
