"""Word problems that one step of arithmetic solves."""

from __future__ import annotations

import random

from writing.math_parts import draw_cast, factor, how_many, number
from writing.solutions import solution
from writing.words import Maker, pick


def _add(rng: random.Random, more: int = 0) -> tuple[str, str]:
    c, a, b = draw_cast(rng), number(rng), more or number(rng)
    story = pick(
        rng,
        f"{c.n} has {a} {c.t} and buys {b} more.",
        f"{c.n} owns {a} {c.t}. {c.m} gives {c.n} another {b} {c.t}.",
        f"There are {a} {c.t} in the house of {c.n}, who then finds {b} more {c.t}.",
        f"On Monday {c.n} collects {a} {c.t}, and on Tuesday {b} more.",
    )
    step = pick(
        rng,
        f"{c.n} has {a} + {b} = {a + b} {c.t}.",
        f"the {c.t} add up to {a} + {b} = {a + b}.",
        f"adding both numbers gives {a} + {b} = {a + b} {c.t}.",
    )
    return f"{story} {how_many(rng, c, c.n)}", solution(rng, [step], a + b)


def _subtract(rng: random.Random) -> tuple[str, str]:
    c = draw_cast(rng)
    a, b = sorted((number(rng), number(rng)), reverse=True)
    story = pick(
        rng,
        f"{c.n} has {a} {c.t} and gives {b} of them to {c.m}.",
        f"{c.n} had {a} {c.t} but lost {b} of them.",
        f"From a collection of {a} {c.t}, {c.n} sells {b}.",
        f"{c.n} takes {a} {c.t} to the market and {c.m} buys {b} of them.",
    )
    step = pick(
        rng,
        f"{c.n} keeps {a} - {b} = {a - b} {c.t}.",
        f"there are {a} - {b} = {a - b} {c.t} left.",
        f"taking {b} away from {a} leaves {a} - {b} = {a - b} {c.t}.",
    )
    return f"{story} {how_many(rng, c, c.n)}", solution(rng, [step], a - b)


def _multiply(rng: random.Random) -> tuple[str, str]:
    c, a, d = draw_cast(rng), factor(rng), rng.randint(2, 9)
    question = pick(
        rng,
        f"{c.n} fills {d} {c.box} with {a} {c.t} each. How many {c.t} is that in all?",
        f"Each of {d} {c.box} holds {a} {c.t}. How many {c.t} are there altogether?",
        f"{c.n} packs {a} {c.t} a day. How many {c.t} does {c.n} pack in {d} days?",
    )
    step = pick(
        rng,
        f"there are {d} * {a} = {d * a} {c.t} in all.",
        f"multiplying gives {d} * {a} = {d * a} {c.t}.",
        f"the total is {d} * {a} = {d * a}.",
    )
    return question, solution(rng, [step], d * a)


def _divide(rng: random.Random) -> tuple[str, str]:
    c, a, d = draw_cast(rng), factor(rng), rng.randint(2, 9)
    question = pick(
        rng,
        f"{c.n} shares {a * d} {c.t} equally among {d} friends. How many does each friend get?",
        f"{a * d} {c.t} are split evenly over {d} {c.box}. How many {c.t} go into each one?",
        f"In {d} days {c.n} uses {a * d} {c.t}, the same number every day. How many a day?",
    )
    step = pick(
        rng,
        f"each part is {a * d} / {d} = {a} {c.t}.",
        f"dividing gives {a * d} / {d} = {a} {c.t}.",
        f"the share is {a * d} / {d} = {a}.",
    )
    return question, solution(rng, [step], a)


def _difference(rng: random.Random) -> tuple[str, str]:
    c = draw_cast(rng)
    a, b = sorted(rng.sample(range(101, 1000), 2), reverse=True)
    story = pick(
        rng,
        f"{c.n} has {a} {c.t} and {c.m} has {b}.",
        f"{c.m} counted {b} {c.t}, while {c.n} counted {a}.",
        f"There are {a} {c.t} for {c.n} and {b} {c.t} for {c.m}.",
    )
    ask = pick(
        rng,
        f"How many more {c.t} does {c.n} have than {c.m}?",
        f"How many {c.t} does {c.m} need to catch up with {c.n}?",
        f"By how many {c.t} is {c.n} ahead of {c.m}?",
    )
    step = pick(
        rng,
        f"the difference is {a} - {b} = {a - b} {c.t}.",
        f"{c.n} is ahead of {c.m} by {a} - {b} = {a - b}.",
        f"comparing both gives {a} - {b} = {a - b} {c.t}.",
    )
    return f"{story} {ask}", solution(rng, [step], a - b)


def _larger(rng: random.Random) -> tuple[str, str]:
    c = draw_cast(rng)
    a, b = rng.sample(range(101, 1000), 2)
    who, top, low = (c.n, a, b) if a > b else (c.m, b, a)
    verb = pick(rng, "collected", "counted", "sold", "found")
    question = (
        f"{c.n} {verb} {a} {c.t} and {c.m} {verb} {b}. "
        f"How many {c.t} did the one with more {c.t} have?"
    )
    step = pick(
        rng,
        f"{top} is greater than {low}, which means {who} had more, {top} {c.t}.",
        f"{who} had more {c.t}, because {top} is greater than {low}.",
    )
    return question, solution(rng, [step], top)


def _add_small(rng: random.Random) -> tuple[str, str]:
    return _add(rng, rng.randint(11, 99))


ONE_STEP: dict[str, Maker] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "difference": _difference,
    "larger": _larger,
}
ONE_STEP_STRETCH: dict[str, Maker] = {"add_small": _add_small}
