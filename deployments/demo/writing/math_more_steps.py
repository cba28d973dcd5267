"""Word problems that take two or three steps."""

from __future__ import annotations

import random

from writing.math_parts import draw_cast, factor, number
from writing.solutions import solution
from writing.words import Maker, pick


def _together(rng: random.Random) -> tuple[str, str]:
    c, a, b = draw_cast(rng), rng.randint(101, 499), rng.randint(101, 499)
    question = pick(
        rng,
        f"{c.n} has {a} {c.t}. {c.m} has {b} {c.t} more than {c.n}. "
        f"How many {c.t} do they have together?",
        f"{c.m} owns {b} {c.t} more than {c.n}, who owns {a}. How many {c.t} is that in total?",
    )
    first = pick(
        rng,
        f"{c.m} has {a} + {b} = {a + b} {c.t}.",
        f"the {c.t} of {c.m} are {a} + {b} = {a + b}.",
    )
    second = pick(
        rng,
        f"together they have {a} + {a + b} = {2 * a + b} {c.t}.",
        f"the total is {a} + {a + b} = {2 * a + b}.",
    )
    return question, solution(rng, [first, second], 2 * a + b)


def _lose_and_find(rng: random.Random) -> tuple[str, str]:
    c = draw_cast(rng)
    a, b = sorted((number(rng), number(rng)), reverse=True)
    e = number(rng)
    story = pick(
        rng,
        f"{c.n} had {a} {c.t}, lost {b} and then found {e}.",
        f"{c.n} starts with {a} {c.t}, gives {b} to {c.m} and gets {e} from {c.k}.",
        f"A shop has {a} {c.t}. {c.n} buys {b} of them, and a truck brings {e} new {c.t}.",
    )
    ask = pick(rng, f"How many {c.t} are there now?", f"How many {c.t} does that leave?")
    first = pick(
        rng, f"there were {a} - {b} = {a - b} {c.t}.", f"the rest was {a} - {b} = {a - b}."
    )
    second = pick(
        rng,
        f"there are {a - b} + {e} = {a - b + e} {c.t}.",
        f"adding the new ones gives {a - b} + {e} = {a - b + e} {c.t}.",
    )
    return f"{story} {ask}", solution(rng, [first, second], a - b + e)


def _boxes_and_sale(rng: random.Random) -> tuple[str, str]:
    c, a, d = draw_cast(rng), factor(rng, 60), rng.randint(2, 9)
    b = rng.randint(101, min(999, a * d - 1))
    question = pick(
        rng,
        f"{c.n} has {d} {c.box} with {a} {c.t} each and sells {b} {c.t}. How many are left?",
        f"There are {a} {c.t} in each of {d} {c.box}. {c.n} takes {b} {c.t} out. "
        f"How many {c.t} remain?",
    )
    first = pick(
        rng,
        f"the {c.box} hold {d} * {a} = {d * a} {c.t}.",
        f"there are {d} * {a} = {d * a} {c.t} at first.",
    )
    second = pick(
        rng,
        f"{d * a} - {b} = {d * a - b} {c.t} are left.",
        f"what remains is {d * a} - {b} = {d * a - b}.",
    )
    return question, solution(rng, [first, second], d * a - b)


def _pool_and_share(rng: random.Random) -> tuple[str, str]:
    c, d = draw_cast(rng), rng.randint(2, 9)
    share = rng.randint(-(-220 // d), min(299, 1900 // d))
    a = rng.randint(max(101, d * share - 999), min(999, d * share - 101))
    b = d * share - a
    question = pick(
        rng,
        f"{c.n} has {a} {c.t} and {c.m} has {b}. They share all of them equally among {d} "
        f"children. How many {c.t} does each child get?",
        f"{c.n} and {c.m} put their {a} and {b} {c.t} together and fill {d} {c.box} evenly. "
        f"How many {c.t} are in each one?",
    )
    first = pick(
        rng,
        f"they have {a} + {b} = {d * share} {c.t}.",
        f"together that is {a} + {b} = {d * share}.",
    )
    second = pick(
        rng,
        f"each one gets {d * share} / {d} = {share} {c.t}.",
        f"the share is {d * share} / {d} = {share}.",
    )
    return question, solution(rng, [first, second], share)


def _three_people(rng: random.Random, first: int = 0) -> tuple[str, str]:
    c, a, b = draw_cast(rng), first or rng.randint(101, 499), rng.randint(101, 499)
    e = rng.randint(101, a + b - 1)
    question = pick(
        rng,
        f"{c.n} has {a} {c.t}. {c.m} has {b} more than {c.n}, and {c.k} has {e} fewer than "
        f"{c.m}. How many {c.t} do {c.n} and {c.k} have together?",
        f"{c.m} has {b} {c.t} more than {c.n}, who has {a}. {c.k} has {e} less than {c.m}. "
        f"What do {c.n} and {c.k} have in total?",
    )
    steps = [
        pick(
            rng,
            f"{c.m} has {a} + {b} = {a + b} {c.t}.",
            f"for {c.m} it is {a} + {b} = {a + b}.",
        ),
        pick(
            rng,
            f"{c.k} has {a + b} - {e} = {a + b - e} {c.t}.",
            f"for {c.k} it is {a + b} - {e} = {a + b - e}.",
        ),
        pick(
            rng,
            f"the sum is {a} + {a + b - e} = {2 * a + b - e}.",
            f"both have {a} + {a + b - e} = {2 * a + b - e} {c.t}.",
        ),
    ]
    return question, solution(rng, steps, 2 * a + b - e)


def _shopping(rng: random.Random) -> tuple[str, str]:
    c, d, p, e = draw_cast(rng), rng.randint(2, 9), rng.randint(11, 60), rng.randint(101, 399)
    spent = d * p + e
    money = rng.randint(spent + 1, 1399)
    question = pick(
        rng,
        f"{c.n} has {money} dollars and buys {d} lamps at {p} dollars each and a desk for {e} "
        f"dollars. How many dollars are left?",
        f"A lamp costs {p} dollars and a desk {e} dollars. {c.n} buys {d} lamps and one desk "
        f"and pays from {money} dollars. How much money remains?",
    )
    steps = [
        pick(
            rng,
            f"the lamps cost {d} * {p} = {d * p} dollars.",
            f"{c.n} pays {d} * {p} = {d * p} dollars for the lamps.",
        ),
        pick(
            rng,
            f"with the desk that is {d * p} + {e} = {spent} dollars.",
            f"the whole price is {d * p} + {e} = {spent}.",
        ),
        pick(
            rng,
            f"{money} - {spent} = {money - spent} dollars are left.",
            f"what remains is {money} - {spent} = {money - spent}.",
        ),
    ]
    return question, solution(rng, steps, money - spent)


def _three_people_large(rng: random.Random) -> tuple[str, str]:
    return _three_people(rng, rng.randint(500, 699))


MORE_STEPS: dict[str, Maker] = {
    "together": _together,
    "lose_and_find": _lose_and_find,
    "boxes_and_sale": _boxes_and_sale,
    "pool_and_share": _pool_and_share,
    "three_people": _three_people,
    "shopping": _shopping,
}
MORE_STEPS_STRETCH: dict[str, Maker] = {"three_people_large": _three_people_large}
