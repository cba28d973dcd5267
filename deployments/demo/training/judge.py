"""Evaluation: the measurements that the record keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from training.decoding import Answers, accept_length, answer, part_of
from training.network import Network
from training.precision import PRECISIONS, Precision
from training.prompts import long_conversations, prompt_ids, read_rows, user
from training.tokenizer import STOP
from training.weights import Weights
from writing import solutions

DEMO = Path(__file__).resolve().parents[1]
GATES = DEMO.parents[1] / "tasks" / "gates" / "data"


@dataclass
class Judge:
    """The shipped prompts, and the measurements on them that the record keeps."""

    network: Network
    tokenizer: PreTrainedTokenizerFast
    weights: list[Weights]
    count: int
    answered: dict[str, dict[str, Answers]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = read_rows(DEMO / "data" / "gsm8k.jsonl")[: self.count]
        smoke = read_rows(GATES / "smoke.jsonl")
        self.questions = {
            "gsm8k": [row["question"] for row in rows],
            "gsm8k_boxed": [row["question"] + solutions.BOXED_SUFFIX for row in rows],
            "smoke": [row["question"] for row in smoke],
        }
        expected = [solutions.final_number(row["answer"]) for row in rows]
        self.expected = {
            "gsm8k": expected,
            "gsm8k_boxed": expected,
            "smoke": [row["answer"] for row in smoke],
        }
        acceptance = read_rows(GATES / "acceptance.jsonl")
        self.questions["acceptance"] = [row["prompt"] for row in acceptance]
        self.kinds = [row["kind"] for row in acceptance]
        self.prompts = {
            name: [prompt_ids(self.tokenizer, user(text)) for text in texts]
            for name, texts in self.questions.items()
        }
        conversations = long_conversations(self.tokenizer)
        self.prompts["long"] = [ids for ids, _ in conversations]
        self.expected["long"] = [number for _, number in conversations]

    def load(self, precision: Precision) -> None:
        """Put the network into one precision."""
        self.network.precision = precision
        for weights in self.weights:
            weights.load(precision)

    def main_model(self, name: str) -> dict[str, Any]:
        """Measure the main model in the named precision."""
        self.load(PRECISIONS[name])
        answers = {
            key: answer(self.network, self.tokenizer, prompts)
            for key, prompts in self.prompts.items()
        }
        self.answered[name] = answers
        accuracy = {
            key: self._accuracy(answers[key], expected) for key, expected in self.expected.items()
        }
        lengths = [
            end - start
            for found in answers.values()
            for start, end in zip(found.starts, found.ends, strict=True)
        ]
        finished = all(all(found.finished) for found in answers.values())
        return {"accuracy": accuracy, "longest_answer": max(lengths), "all_finished": finished}

    @staticmethod
    def _accuracy(found: Answers, expected: list[str]) -> float:
        right = [
            solutions.final_number(text.replace(STOP, "")) == number
            for text, number in zip(found.texts, expected, strict=True)
        ]
        return round(sum(right) / len(right), 4)

    def draft_head(self, name: str) -> dict[str, Any]:
        """Measure accept lengths in the named precision, with the layer and with it zeroed."""
        self.load(PRECISIONS[name])
        lengths = self._accept_lengths(name)
        block = list(self.network.draft.mtp_block.parameters())
        with torch.no_grad():
            torch._foreach_zero_(block)
        zeroed = self._accept_lengths(name)
        return {"accept_length": lengths, "accept_length_layer_zeroed": zeroed}

    def _accept_lengths(self, name: str) -> dict[str, float]:
        answers = self.answered[name]
        found = {
            key: accept_length(self.network, answers[key])
            for key in ("gsm8k", "gsm8k_boxed", "acceptance")
        }
        for kind in dict.fromkeys(self.kinds):
            rows = [i for i, own in enumerate(self.kinds) if own == kind]
            found[kind] = accept_length(self.network, part_of(answers["acceptance"], rows))
        return found
