"""Evaluation: the prompts, rendered as a server renders them."""

from __future__ import annotations

import json
import random
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from writing import generator, solutions


def prompt_ids(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    """Render messages through the chat template."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def user(text: str) -> list[dict[str, str]]:
    """Make a conversation of one user message."""
    return [{"role": "user", "content": text}]


def long_conversations(tokenizer: PreTrainedTokenizerFast) -> list[tuple[list[int], str]]:
    """Make 20 conversations of 700 to 900 tokens that end in a problem with a known answer."""
    source, found = generator.pairs("eval", 7), []
    others = {kind: generator.pairs("eval", 7, kind) for kind in ("chat", "prose", "code")}
    rng = random.Random(7)
    while len(found) < 20:
        messages: list[dict[str, str]] = []
        while True:
            last = next(source)
            ids = prompt_ids(tokenizer, [*messages, *user(last.question)])
            if len(ids) >= 700:
                break
            turn = last if rng.random() < 0.6 else next(others[rng.choice(list(others))])
            messages += [*user(turn.question), {"role": "assistant", "content": turn.answer}]
        if len(ids) <= 900:
            found.append((ids, solutions.final_number(last.answer)))
    return found


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
