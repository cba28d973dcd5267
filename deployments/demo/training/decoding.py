"""Evaluation: greedy answers, and how many drafts of them a release would accept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerFast

from training.network import Network


@dataclass
class Answers:
    """Greedy answers to some prompts: the whole rows, right-padded, and where answers begin."""

    ids: Tensor
    starts: list[int]
    ends: list[int]
    texts: list[str]
    finished: list[bool]


@torch.no_grad()
def answer(
    network: Network, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]], limit: int = 256
) -> Answers:
    """Decode greedily without a cache: right padding never reaches a causal model's past."""
    device, stop = network.main.device, tokenizer.eos_token_id
    starts = [len(prompt) for prompt in prompts]
    ids = torch.zeros(len(prompts), max(starts) + limit, dtype=torch.long, device=device)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    ends = torch.tensor(starts, device=device)
    limits, open_rows = ends + limit, torch.arange(len(prompts), device=device)
    while len(open_rows):
        last = ends[open_rows]
        hidden = network.hidden(ids[open_rows, : int(last.max())])
        hidden = hidden[torch.arange(len(last), device=device), last - 1]
        chosen = network.logits(hidden).argmax(-1)
        ids[open_rows, last] = chosen
        ends[open_rows] += 1
        open_rows = open_rows[(chosen != stop) & (ends[open_rows] < limits[open_rows])]
    bounds = list(zip(starts, ends.tolist(), strict=True))
    texts = [tokenizer.decode(ids[i, a:b].tolist()) for i, (a, b) in enumerate(bounds)]
    finished = [bool(ids[i, b - 1] == stop) for i, (_, b) in enumerate(bounds)]
    return Answers(ids[:, : int(ends.max())], starts, ends.tolist(), texts, finished)


@torch.no_grad()
def accept_length(network: Network, answers: Answers) -> float:
    """Replay speculative decoding of two draft steps: 1 + accepted drafts / verifications."""
    ids, size = answers.ids, answers.ids.shape[1] - 1
    hidden, cache = network.hidden(ids)[:, :size], DynamicCache()
    first = network.first_draft(hidden, ids[:, 1:], cache)
    one = network.logits(first).argmax(-1)
    two = network.logits(network.second_draft(first, one, cache)).argmax(-1)
    accepted = verifications = 0
    for row, a, b in zip(range(len(ids)), answers.starts, answers.ends, strict=True):
        known, *drafts = (part[row].tolist() for part in (ids, one, two))
        last = a  # the index of the newest token that the main model has confirmed
        while last < b - 1:
            right = 0
            while right < 2 and last + 1 + right < b:
                if drafts[right][last - 1] != known[last + 1 + right]:
                    break
                right += 1
            accepted, verifications, last = accepted + right, verifications + 1, last + right + 1
    return round(1 + accepted / max(1, verifications), 4)


def part_of(answers: Answers, rows: list[int]) -> Answers:
    """Return some of the answers."""
    return Answers(
        answers.ids[rows],
        [answers.starts[i] for i in rows],
        [answers.ends[i] for i in rows],
        [answers.texts[i] for i in rows],
        [answers.finished[i] for i in rows],
    )
