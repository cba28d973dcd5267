"""What the answer to a word problem looks like, to write it and to read it."""

from __future__ import annotations

import random
import re

from writing.words import pick

EQUATION = re.compile(r"(\d+ [-+*/] \d+ =)( \d+)")
BOXED_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def solution(rng: random.Random, steps: list[str], result: int) -> str:
    """Join reasoning steps with varied connectives and close with GSM8K's answer line."""
    opening = pick(rng, "", "", "First, ", "To start, ", "We know that ")
    link = pick(rng, "Then ", "Next, ", "After that, ", "Now ", "So ")
    text = " ".join([opening + steps[0], *(link + step for step in steps[1:])])
    return f"{text[0].upper()}{text[1:]}\n#### {result}"


def final_number(answer: str) -> str:
    """Return what stands after the last `####` of an answer, or an empty string."""
    return answer.rpartition("####")[2].strip() if "####" in answer else ""


def equations(answer: str) -> list[tuple[str, str]]:
    """Return the equations that an answer contains, each as `A op B =` and its result."""
    return [(left, right) for left, right in EQUATION.findall(answer)]
