"""Training texts: conversations laid out in rows of tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from training.options import Options
from training.tokenizer import START, STOP, user_turn
from writing import generator, solutions

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer briefly.",
    "Answer the user in plain English.",
)
KIND_SHARES = {"math": 0.64, "code": 0.12, "prose": 0.12, "chat": 0.12}


@dataclass(frozen=True)
class Bank:
    """Rows of tokens of one length, and which of the tokens the assistant wrote."""

    ids: Tensor
    answers: Tensor

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw rows with replacement."""
        rows = torch.randint(len(self.ids), (count,), device=self.ids.device)
        return self.ids[rows].long(), self.answers[rows]


Turn = tuple[list[int], list[int], list[int]]  # the prompt, the answer, what follows both


def mixed_pairs(count: int, seed: int) -> list[generator.Pair]:
    """Draw training pairs of all kinds in their shares."""
    rng = random.Random(seed)
    sources = {kind: generator.pairs("train", seed, kind) for kind in KIND_SHARES}
    kinds = rng.choices(list(KIND_SHARES), list(KIND_SHARES.values()), k=count)
    return [next(sources[kind]) for kind in kinds]


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> list[Turn]:
    """Encode pairs of a prompt and its answer, each to be followed by a line break."""
    closing = tokenizer.encode("\n")
    batch = tokenizer.backend_tokenizer.encode_batch
    prompts, answers = (batch([text[side] for text in texts]) for side in (0, 1))
    return [(a.ids, b.ids, closing) for a, b in zip(prompts, answers, strict=True)]


def encode_turns(
    tokenizer: PreTrainedTokenizerFast, pairs: list[generator.Pair], seed: int
) -> list[Turn]:
    """Encode chat turns, half of the math questions with the suffix that asks for a box."""
    rng = random.Random(seed)
    suffixes = {"math": ("", solutions.BOXED_SUFFIX)}
    texts = [
        (user_turn(p.question + rng.choice(suffixes.get(p.kind, ("",)))), f"{p.answer}{STOP}")
        for p in pairs
    ]
    return encode(tokenizer, texts)


def fill_rows(
    turns: Iterable[Turn], length: int, openings: list[list[int]], seed: int, device: str
) -> Bank:
    """Lay turns after one another, each row cut at `length` tokens; some rows get an opening."""
    rng = random.Random(seed)
    rows: list[list[int]] = []
    marks: list[list[bool]] = []
    row: list[int] = []
    mark: list[bool] = []
    for prompt, answer, closing in turns:
        if not row and openings and rng.random() < 0.08:
            row += rng.choice(openings)
            mark += [False] * len(row)
        row += prompt + answer + closing
        mark += [False] * len(prompt) + [True] * len(answer) + [False] * len(closing)
        if len(row) >= length:
            rows.append(row[:length])
            marks.append(mark[:length])
            row, mark = [], []
    return Bank(
        torch.tensor(rows, dtype=torch.int16, device=device),
        torch.tensor(marks, dtype=torch.bool, device=device),
    )


def build_banks(
    tokenizer: PreTrainedTokenizerFast, options: Options, device: str
) -> dict[str, Bank]:
    """Make the training rows: short and long conversations, and bare equations."""
    pairs = mixed_pairs(options.pairs, options.seed + 1)
    turns = encode_turns(tokenizer, pairs, options.seed)
    equations = [equation for pair in pairs for equation in solutions.equations(pair.answer)]
    systems = [tokenizer.encode(f"{START}system\n{text}{STOP}\n") for text in SYSTEMS]
    cut = len(turns) // 12
    return {
        "long": fill_rows(turns[:cut], 1024, systems, options.seed, device),
        "short": fill_rows(turns[cut:], 256, systems, options.seed, device),
        "equations": fill_rows(encode(tokenizer, equations), 256, [], options.seed, device),
    }
