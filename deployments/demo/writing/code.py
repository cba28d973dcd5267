"""Requests for a small Python function."""

from __future__ import annotations

import random

from writing.words import Maker, pick

CODE_TASKS: tuple[tuple[str, str, str, str], ...] = (
    ("adds {k} to a number", "add_{k}", "x", "return x + {k}"),
    ("subtracts {k} from a number", "minus_{k}", "x", "return x - {k}"),
    ("multiplies a number by {k}", "times_{k}", "x", "return x * {k}"),
    ("returns the remainder of a number divided by {k}", "mod_{k}", "x", "return x % {k}"),
    ("checks whether a number is divisible by {k}", "divides_{k}", "x", "return x % {k} == 0"),
    ("checks whether a number is greater than {k}", "above_{k}", "x", "return x > {k}"),
    ("returns the sum of a list plus {k}", "sum_plus_{k}", "items", "return sum(items) + {k}"),
    (
        "counts the numbers in a list that are greater than {k}",
        "count_above_{k}",
        "items",
        "return sum(1 for x in items if x > {k})",
    ),
    (
        "returns the numbers in a list that are less than {k}",
        "below_{k}",
        "items",
        "return [x for x in items if x < {k}]",
    ),
    (
        "adds {k} to every number in a list",
        "shift_{k}",
        "items",
        "return [x + {k} for x in items]",
    ),
    (
        "sums the multiples of {k} in a list",
        "sum_multiples_{k}",
        "items",
        "return sum(x for x in items if x % {k} == 0)",
    ),
    ("returns the first {k} letters of a text", "first_{k}", "text", "return text[:{k}]"),
    ("returns the last {k} letters of a text", "last_{k}", "text", "return text[-{k}:]"),
    ("repeats a text {k} times", "repeat_{k}", "text", "return text * {k}"),
    (
        "checks whether a text is longer than {k} letters",
        "longer_{k}",
        "text",
        "return len(text) > {k}",
    ),
    (
        "limits a number to at most {k}",
        "limit_{k}",
        "x",
        "if x > {k}:\n        return {k}\n    return x",
    ),
)


def _code(rng: random.Random) -> tuple[str, str]:
    does, name, argument, body = rng.choice(CODE_TASKS)
    k = rng.randint(2, 999)
    does, name, body = (part.format(k=k) for part in (does, name, body))
    question = pick(
        rng,
        f"Write a Python function that {does}.",
        f"Please write a short Python function which {does}.",
        f"In Python, write a function {name} that {does}.",
        f"I need a Python function named {name} that {does}.",
        f"Show me a small Python function that {does}.",
    )
    opening = pick(
        rng,
        "Here is the function:",
        f"This function {does}:",
        "You can write it like this:",
        f"The function {name} does it:",
    )
    doc = pick(rng, "", "", f'    """A function that {does}."""\n')
    closing = pick(
        rng,
        "",
        f"\nCall it as {name}({argument}).",
        f"\nIt takes {argument} and {does}.",
    )
    code = f"```python\ndef {name}({argument}):\n{doc}    {body}\n```"
    return question, f"{opening}\n{code}{closing}"


CODE: dict[str, Maker] = {"code": _code}
