"""Generator of the demo release's texts: arithmetic word problems and simple chat pairs.

The math problems have GSM8K's own form, `{"question", "answer"}`, where the answer gives the
reasoning first and ends in a line `#### N`. Three other kinds (code, prose, chat) make the
prompts on which the draft head's acceptance is measured.

Files of math problems also hold a few stretch problems, whose numbers lie just outside what
training covers, so that a model which has learned the rest still does not answer everything.

The three splits are disjoint by construction: the SHA-256 of a question's text, modulo 10,
decides which split owns it (0 calibration, 1 eval, 2 to 9 train), and a generator asked for one
split rejects every question that another one owns. Seeds only choose among a split's own texts.

    python deployments/demo/problems.py --split eval --count 400 --seed 0 --out FILE
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SPLITS: dict[str, frozenset[int]] = {
    "calibration": frozenset({0}),
    "eval": frozenset({1}),
    "train": frozenset(range(2, 10)),
}
EQUATION = re.compile(r"(\d+ [-+*/] \d+ =)( \d+)")
BOXED_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True)
class Pair:
    """One question with its answer, and the kind of text it is."""

    kind: str
    topic: str
    question: str
    answer: str


Maker = Callable[[random.Random], tuple[str, str]]


def words(text: str) -> list[str]:
    """Split a list that is written as one text, at its bars if it has any."""
    return text.split("|") if "|" in text else text.split()


NAMES = words(
    "Tom Ana Ben Mia Leo Zoe Sam Eva Max Ida Kim Jon Amy Dan Lia Rob Nina Paul Ruth Carl Emma "
    "Hugo Vera Omar Tara Igor Lucy Noah Rosa Finn Maya Alan Clara Peter Julia Marco"
)
THINGS = words(
    "apples books coins cards pens cups stamps shells marbles keys stickers beads bottles "
    "buttons candles tickets bricks photos magnets plums lemons badges pencils tiles eggs "
    "flowers ribbons spoons stones chairs"
)
BOXES = words("boxes bags crates baskets trays drawers shelves jars cartons packs")
PLACES = words(
    "the old town|the forest|the harbor|the mountains|the garden|the desert|a quiet village|"
    "the city park|the north coast|a small island|the valley|the river bank|the market square|"
    "the train station|the lighthouse|the countryside|the museum|the snowy hills"
)


# --- Math ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cast:
    """The people and things that one problem is about."""

    n: str
    m: str
    k: str
    t: str
    box: str


def _cast(rng: random.Random) -> Cast:
    n, m, k = rng.sample(NAMES, 3)
    return Cast(n, m, k, rng.choice(THINGS), rng.choice(BOXES))


def _number(rng: random.Random) -> int:
    return rng.randint(101, 999)


def _factor(rng: random.Random, low: int = 21) -> int:
    return rng.randint(low, 299)


def _pick(rng: random.Random, *wordings: str) -> str:
    return rng.choice(wordings)


def _solution(rng: random.Random, steps: list[str], result: int) -> str:
    """Join reasoning steps with varied connectives and close with GSM8K's answer line."""
    opening = _pick(rng, "", "", "First, ", "To start, ", "We know that ")
    link = _pick(rng, "Then ", "Next, ", "After that, ", "Now ", "So ")
    text = " ".join([opening + steps[0], *(link + step for step in steps[1:])])
    return f"{text[0].upper()}{text[1:]}\n#### {result}"


def _ask(rng: random.Random, c: Cast, who: str) -> str:
    return _pick(
        rng,
        f"How many {c.t} does {who} have now?",
        f"How many {c.t} does {who} have at the end?",
        f"What is the number of {c.t} that {who} has now?",
    )


def _add(rng: random.Random, more: int = 0) -> tuple[str, str]:
    c, a, b = _cast(rng), _number(rng), more or _number(rng)
    story = _pick(
        rng,
        f"{c.n} has {a} {c.t} and buys {b} more.",
        f"{c.n} owns {a} {c.t}. {c.m} gives {c.n} another {b} {c.t}.",
        f"There are {a} {c.t} in the house of {c.n}, who then finds {b} more {c.t}.",
        f"On Monday {c.n} collects {a} {c.t}, and on Tuesday {b} more.",
    )
    step = _pick(
        rng,
        f"{c.n} has {a} + {b} = {a + b} {c.t}.",
        f"the {c.t} add up to {a} + {b} = {a + b}.",
        f"adding both numbers gives {a} + {b} = {a + b} {c.t}.",
    )
    return f"{story} {_ask(rng, c, c.n)}", _solution(rng, [step], a + b)


def _subtract(rng: random.Random) -> tuple[str, str]:
    c = _cast(rng)
    a, b = sorted((_number(rng), _number(rng)), reverse=True)
    story = _pick(
        rng,
        f"{c.n} has {a} {c.t} and gives {b} of them to {c.m}.",
        f"{c.n} had {a} {c.t} but lost {b} of them.",
        f"From a collection of {a} {c.t}, {c.n} sells {b}.",
        f"{c.n} takes {a} {c.t} to the market and {c.m} buys {b} of them.",
    )
    step = _pick(
        rng,
        f"{c.n} keeps {a} - {b} = {a - b} {c.t}.",
        f"there are {a} - {b} = {a - b} {c.t} left.",
        f"taking {b} away from {a} leaves {a} - {b} = {a - b} {c.t}.",
    )
    return f"{story} {_ask(rng, c, c.n)}", _solution(rng, [step], a - b)


def _multiply(rng: random.Random) -> tuple[str, str]:
    c, a, d = _cast(rng), _factor(rng), rng.randint(2, 9)
    question = _pick(
        rng,
        f"{c.n} fills {d} {c.box} with {a} {c.t} each. How many {c.t} is that in all?",
        f"Each of {d} {c.box} holds {a} {c.t}. How many {c.t} are there altogether?",
        f"{c.n} packs {a} {c.t} a day. How many {c.t} does {c.n} pack in {d} days?",
    )
    step = _pick(
        rng,
        f"there are {d} * {a} = {d * a} {c.t} in all.",
        f"multiplying gives {d} * {a} = {d * a} {c.t}.",
        f"the total is {d} * {a} = {d * a}.",
    )
    return question, _solution(rng, [step], d * a)


def _divide(rng: random.Random) -> tuple[str, str]:
    c, a, d = _cast(rng), _factor(rng), rng.randint(2, 9)
    question = _pick(
        rng,
        f"{c.n} shares {a * d} {c.t} equally among {d} friends. How many does each friend get?",
        f"{a * d} {c.t} are split evenly over {d} {c.box}. How many {c.t} go into each one?",
        f"In {d} days {c.n} uses {a * d} {c.t}, the same number every day. How many a day?",
    )
    step = _pick(
        rng,
        f"each part is {a * d} / {d} = {a} {c.t}.",
        f"dividing gives {a * d} / {d} = {a} {c.t}.",
        f"the share is {a * d} / {d} = {a}.",
    )
    return question, _solution(rng, [step], a)


def _difference(rng: random.Random) -> tuple[str, str]:
    c = _cast(rng)
    a, b = sorted(rng.sample(range(101, 1000), 2), reverse=True)
    story = _pick(
        rng,
        f"{c.n} has {a} {c.t} and {c.m} has {b}.",
        f"{c.m} counted {b} {c.t}, while {c.n} counted {a}.",
        f"There are {a} {c.t} for {c.n} and {b} {c.t} for {c.m}.",
    )
    ask = _pick(
        rng,
        f"How many more {c.t} does {c.n} have than {c.m}?",
        f"How many {c.t} does {c.m} need to catch up with {c.n}?",
        f"By how many {c.t} is {c.n} ahead of {c.m}?",
    )
    step = _pick(
        rng,
        f"the difference is {a} - {b} = {a - b} {c.t}.",
        f"{c.n} is ahead of {c.m} by {a} - {b} = {a - b}.",
        f"comparing both gives {a} - {b} = {a - b} {c.t}.",
    )
    return f"{story} {ask}", _solution(rng, [step], a - b)


def _larger(rng: random.Random) -> tuple[str, str]:
    c = _cast(rng)
    a, b = rng.sample(range(101, 1000), 2)
    who, top, low = (c.n, a, b) if a > b else (c.m, b, a)
    verb = _pick(rng, "collected", "counted", "sold", "found")
    question = (
        f"{c.n} {verb} {a} {c.t} and {c.m} {verb} {b}. "
        f"How many {c.t} did the one with more {c.t} have?"
    )
    step = _pick(
        rng,
        f"{top} is greater than {low}, which means {who} had more, {top} {c.t}.",
        f"{who} had more {c.t}, because {top} is greater than {low}.",
    )
    return question, _solution(rng, [step], top)


def _together(rng: random.Random) -> tuple[str, str]:
    c, a, b = _cast(rng), rng.randint(101, 499), rng.randint(101, 499)
    question = _pick(
        rng,
        f"{c.n} has {a} {c.t}. {c.m} has {b} {c.t} more than {c.n}. "
        f"How many {c.t} do they have together?",
        f"{c.m} owns {b} {c.t} more than {c.n}, who owns {a}. How many {c.t} is that in total?",
    )
    first = _pick(
        rng,
        f"{c.m} has {a} + {b} = {a + b} {c.t}.",
        f"the {c.t} of {c.m} are {a} + {b} = {a + b}.",
    )
    second = _pick(
        rng,
        f"together they have {a} + {a + b} = {2 * a + b} {c.t}.",
        f"the total is {a} + {a + b} = {2 * a + b}.",
    )
    return question, _solution(rng, [first, second], 2 * a + b)


def _lose_and_find(rng: random.Random) -> tuple[str, str]:
    c = _cast(rng)
    a, b = sorted((_number(rng), _number(rng)), reverse=True)
    e = _number(rng)
    story = _pick(
        rng,
        f"{c.n} had {a} {c.t}, lost {b} and then found {e}.",
        f"{c.n} starts with {a} {c.t}, gives {b} to {c.m} and gets {e} from {c.k}.",
        f"A shop has {a} {c.t}. {c.n} buys {b} of them, and a truck brings {e} new {c.t}.",
    )
    ask = _pick(rng, f"How many {c.t} are there now?", f"How many {c.t} does that leave?")
    first = _pick(
        rng, f"there were {a} - {b} = {a - b} {c.t}.", f"the rest was {a} - {b} = {a - b}."
    )
    second = _pick(
        rng,
        f"there are {a - b} + {e} = {a - b + e} {c.t}.",
        f"adding the new ones gives {a - b} + {e} = {a - b + e} {c.t}.",
    )
    return f"{story} {ask}", _solution(rng, [first, second], a - b + e)


def _boxes_and_sale(rng: random.Random) -> tuple[str, str]:
    c, a, d = _cast(rng), _factor(rng, 60), rng.randint(2, 9)
    b = rng.randint(101, min(999, a * d - 1))
    question = _pick(
        rng,
        f"{c.n} has {d} {c.box} with {a} {c.t} each and sells {b} {c.t}. How many are left?",
        f"There are {a} {c.t} in each of {d} {c.box}. {c.n} takes {b} {c.t} out. "
        f"How many {c.t} remain?",
    )
    first = _pick(
        rng,
        f"the {c.box} hold {d} * {a} = {d * a} {c.t}.",
        f"there are {d} * {a} = {d * a} {c.t} at first.",
    )
    second = _pick(
        rng,
        f"{d * a} - {b} = {d * a - b} {c.t} are left.",
        f"what remains is {d * a} - {b} = {d * a - b}.",
    )
    return question, _solution(rng, [first, second], d * a - b)


def _pool_and_share(rng: random.Random) -> tuple[str, str]:
    c, d = _cast(rng), rng.randint(2, 9)
    share = rng.randint(-(-220 // d), min(299, 1900 // d))
    a = rng.randint(max(101, d * share - 999), min(999, d * share - 101))
    b = d * share - a
    question = _pick(
        rng,
        f"{c.n} has {a} {c.t} and {c.m} has {b}. They share all of them equally among {d} "
        f"children. How many {c.t} does each child get?",
        f"{c.n} and {c.m} put their {a} and {b} {c.t} together and fill {d} {c.box} evenly. "
        f"How many {c.t} are in each one?",
    )
    first = _pick(
        rng,
        f"they have {a} + {b} = {d * share} {c.t}.",
        f"together that is {a} + {b} = {d * share}.",
    )
    second = _pick(
        rng,
        f"each one gets {d * share} / {d} = {share} {c.t}.",
        f"the share is {d * share} / {d} = {share}.",
    )
    return question, _solution(rng, [first, second], share)


def _three_people(rng: random.Random, first: int = 0) -> tuple[str, str]:
    c, a, b = _cast(rng), first or rng.randint(101, 499), rng.randint(101, 499)
    e = rng.randint(101, a + b - 1)
    question = _pick(
        rng,
        f"{c.n} has {a} {c.t}. {c.m} has {b} more than {c.n}, and {c.k} has {e} fewer than "
        f"{c.m}. How many {c.t} do {c.n} and {c.k} have together?",
        f"{c.m} has {b} {c.t} more than {c.n}, who has {a}. {c.k} has {e} less than {c.m}. "
        f"What do {c.n} and {c.k} have in total?",
    )
    steps = [
        _pick(
            rng,
            f"{c.m} has {a} + {b} = {a + b} {c.t}.",
            f"for {c.m} it is {a} + {b} = {a + b}.",
        ),
        _pick(
            rng,
            f"{c.k} has {a + b} - {e} = {a + b - e} {c.t}.",
            f"for {c.k} it is {a + b} - {e} = {a + b - e}.",
        ),
        _pick(
            rng,
            f"the sum is {a} + {a + b - e} = {2 * a + b - e}.",
            f"both have {a} + {a + b - e} = {2 * a + b - e} {c.t}.",
        ),
    ]
    return question, _solution(rng, steps, 2 * a + b - e)


def _shopping(rng: random.Random) -> tuple[str, str]:
    c, d, p, e = _cast(rng), rng.randint(2, 9), rng.randint(11, 60), rng.randint(101, 399)
    spent = d * p + e
    money = rng.randint(spent + 1, 1399)
    question = _pick(
        rng,
        f"{c.n} has {money} dollars and buys {d} lamps at {p} dollars each and a desk for {e} "
        f"dollars. How many dollars are left?",
        f"A lamp costs {p} dollars and a desk {e} dollars. {c.n} buys {d} lamps and one desk "
        f"and pays from {money} dollars. How much money remains?",
    )
    steps = [
        _pick(
            rng,
            f"the lamps cost {d} * {p} = {d * p} dollars.",
            f"{c.n} pays {d} * {p} = {d * p} dollars for the lamps.",
        ),
        _pick(
            rng,
            f"with the desk that is {d * p} + {e} = {spent} dollars.",
            f"the whole price is {d * p} + {e} = {spent}.",
        ),
        _pick(
            rng,
            f"{money} - {spent} = {money - spent} dollars are left.",
            f"what remains is {money} - {spent} = {money - spent}.",
        ),
    ]
    return question, _solution(rng, steps, money - spent)


MATH: dict[str, Maker] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "difference": _difference,
    "larger": _larger,
    "together": _together,
    "lose_and_find": _lose_and_find,
    "boxes_and_sale": _boxes_and_sale,
    "pool_and_share": _pool_and_share,
    "three_people": _three_people,
    "shopping": _shopping,
}


def _add_small(rng: random.Random) -> tuple[str, str]:
    return _add(rng, rng.randint(11, 99))


def _three_people_large(rng: random.Random) -> tuple[str, str]:
    return _three_people(rng, rng.randint(500, 699))


STRETCH: dict[str, Maker] = {"add_small": _add_small, "three_people_large": _three_people_large}
STRETCH_EVERY = 33
EASY = ("add", "subtract", "difference", "together", "lose_and_find", "three_people")


# --- Code ---------------------------------------------------------------------------------------

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
    question = _pick(
        rng,
        f"Write a Python function that {does}.",
        f"Please write a short Python function which {does}.",
        f"In Python, write a function {name} that {does}.",
        f"I need a Python function named {name} that {does}.",
        f"Show me a small Python function that {does}.",
    )
    opening = _pick(
        rng,
        "Here is the function:",
        f"This function {does}:",
        "You can write it like this:",
        f"The function {name} does it:",
    )
    doc = _pick(rng, "", "", f'    """A function that {does}."""\n')
    closing = _pick(
        rng,
        "",
        f"\nCall it as {name}({argument}).",
        f"\nIt takes {argument} and {does}.",
    )
    code = f"```python\ndef {name}({argument}):\n{doc}    {body}\n```"
    return question, f"{opening}\n{code}{closing}"


# --- Prose --------------------------------------------------------------------------------------

ADJECTIVES = words(
    "small brave quiet clever old happy lonely gentle curious proud tired young friendly shy "
    "strong gray white hungry lazy wild"
)
HEROES = words(
    "fox dog cat horse sailor baker farmer teacher painter gardener owl bear rabbit singer "
    "pilot doctor child wolf turtle swan"
)
TIMES = words("morning|evening|night|summer|winter|spring|autumn|afternoon|day|weekend")
ACTS = words(
    "walks along the path|looks at the stars|listens to the wind|waits for a friend|"
    "sings a soft song|watches the birds|rests under a tree|searches for water|"
    "dreams of the sea|tells a long story|follows the river|counts the clouds|"
    "plays in the rain|thinks about home|opens a secret door|writes a short letter"
)
MOODS = words(
    "feels calm and free|is never alone|finds a new friend|smiles at everyone|"
    "forgets all troubles|goes home full of joy|learns something new|falls asleep with a smile|"
    "knows that all is well|hopes for a better tomorrow"
)
WEATHER = words("sun rain wind snow fog storm moon frost")


def _prose(rng: random.Random) -> tuple[str, str]:
    adjective, hero, place = rng.choice(ADJECTIVES), rng.choice(HEROES), rng.choice(PLACES)
    time, act, mood = rng.choice(TIMES), rng.choice(ACTS), rng.choice(MOODS)
    weather = rng.choice(WEATHER)
    article = "an" if adjective[0] in "aeiou" else "a"
    subject = f"{article} {adjective} {hero}"
    question = _pick(
        rng,
        f"Write two sentences about {subject} in {place}.",
        f"Tell me a very short story about {subject} in {place}.",
        f"Describe {subject} in {place} in two sentences.",
        f"Write a short text about {subject} who likes {place} in the {weather}.",
        f"Please write two lines about {subject} and the {weather} in {place}.",
    )
    first = _pick(
        rng,
        f"In {place} lives {subject} who {act} every {time}.",
        f"Every {time} the {adjective} {hero} {act} in {place}.",
        f"There is {subject} in {place}, and every {time} the {hero} {act}.",
        f"The {adjective} {hero} loves {place} and {act} when the {weather} comes.",
    )
    second = _pick(
        rng,
        f"When the {weather} is gone, the {hero} {mood}.",
        f"At the end of the {time} the {hero} {mood}.",
        f"Even in the {weather} the {adjective} {hero} {mood}.",
        f"People in {place} say that the {hero} {mood}.",
    )
    return question, f"{first} {second}"


# --- Chat ---------------------------------------------------------------------------------------

CAPITALS = dict(
    pair.split(":")
    for pair in words(
        "France:Paris Italy:Rome Spain:Madrid Germany:Berlin Japan:Tokyo Egypt:Cairo Greece:Athens "
        "Norway:Oslo Poland:Warsaw Austria:Vienna Portugal:Lisbon Ireland:Dublin Sweden:Stockholm "
        "Finland:Helsinki Hungary:Budapest Peru:Lima Cuba:Havana Kenya:Nairobi Canada:Ottawa "
        "China:Beijing"
    )
)
ADVICE: dict[str, tuple[str, ...]] = {
    "sleep better": (
        "go to bed at the same time every day",
        "keep your room dark and quiet",
        "avoid coffee in the evening",
    ),
    "learn a new language": (
        "practice a little every day",
        "read easy books aloud",
        "talk with people who speak it",
    ),
    "save money": (
        "write down what you spend",
        "cook at home more often",
        "put a fixed sum aside every month",
    ),
    "stay healthy": (
        "walk for half an hour every day",
        "eat more fruit and vegetables",
        "drink enough water",
    ),
    "study well": (
        "make a simple plan",
        "take a short break every hour",
        "explain the topic to a friend",
    ),
    "cook a good soup": (
        "use fresh vegetables",
        "let it simmer slowly",
        "add salt at the end",
    ),
    "make new friends": (
        "join a local club",
        "ask people about their day",
        "be a good listener",
    ),
    "grow tomatoes": (
        "give them plenty of sun",
        "water them at the roots",
        "tie the plants to a stick",
    ),
}
SEASONS = words("morning evening afternoon")


def _greeting(rng: random.Random) -> tuple[str, str]:
    name, time = rng.choice(NAMES), rng.choice(SEASONS)
    town, thing = rng.choice(list(CAPITALS.values())), rng.choice(THINGS)
    question = _pick(
        rng,
        f"Hello, my name is {name} and I live in {town}. How are you?",
        f"Good {time}! I am {name} from {town}.",
        f"Hi, this is {name}. I like {thing} and I want to say hello.",
        f"Good {time}, {name} here. How are you doing in {town}?",
    )
    first = _pick(rng, f"Hello {name}!", f"Good {time}, {name}!", f"Hi {name}, nice to meet you!")
    second = _pick(
        rng,
        "I am doing well, thank you.",
        "It is good to hear from you.",
        f"I hope you have a pleasant {time}.",
    )
    third = _pick(
        rng,
        "How can I help you today?",
        "What would you like to talk about?",
        "Is there anything I can do for you?",
    )
    return question, f"{first} {second} {third}"


def _fact(rng: random.Random) -> tuple[str, str]:
    name, (country, capital) = rng.choice(NAMES), rng.choice(list(CAPITALS.items()))
    relative = _pick(rng, "friend", "teacher", "sister", "brother", "neighbor", "son", "uncle")
    question = _pick(
        rng,
        f"My {relative} {name} asks what the capital of {country} is. Can you tell us?",
        f"I am {name}. What is the capital of {country}?",
        f"What is the capital of {country}? My {relative} {name} wants to go there.",
        f"{name} wants to visit the capital of {country}. Which city is that?",
    )
    first = _pick(
        rng,
        f"The capital of {country} is {capital}.",
        f"That is {capital}, the capital of {country}.",
        f"{capital} is the capital of {country}.",
    )
    second = _pick(
        rng,
        f"I hope that {name} enjoys {capital}!",
        f"Please give my best wishes to {name}.",
        f"It is a wonderful city, {name} will like it.",
        "Would you like to know more about it?",
    )
    return question, f"{first} {second}"


def _advice(rng: random.Random) -> tuple[str, str]:
    name, (goal, tips) = rng.choice(NAMES), rng.choice(list(ADVICE.items()))
    relative = _pick(rng, "friend", "teacher", "sister", "brother", "neighbor", "son", "uncle")
    question = _pick(
        rng,
        f"My {relative} {name} wants to {goal}. What do you advise?",
        f"How can my {relative} {name} {goal}?",
        f"Hi, I am {name}. How can I {goal}?",
        f"Can you give {name}, my {relative}, some advice on how to {goal}?",
    )
    one, two = rng.sample(tips, 2)
    first = _pick(
        rng, f"To {goal}, {one}.", f"A good way to {goal} is this: {one}.", f"You could {one}."
    )
    second = _pick(rng, f"Also, {two}.", f"It also helps to {two}.", f"After that, {two}.")
    third = _pick(rng, f"Good luck, {name}!", "Good luck!", f"I wish {name} all the best.")
    return question, f"{first} {second} {third}"


KINDS: dict[str, dict[str, Maker]] = {
    "math": MATH,
    "stretch": STRETCH,
    "code": {"code": _code},
    "prose": {"prose": _prose},
    "chat": {"greeting": _greeting, "fact": _fact, "advice": _advice},
}
PROMPT_KINDS = ("math", "code", "prose", "chat")


# --- Splits, files and the command line ---------------------------------------------------------


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


def final_number(answer: str) -> str:
    """Return what stands after the last `####` of an answer, or an empty string."""
    return answer.rpartition("####")[2].strip() if "####" in answer else ""


def equations(answer: str) -> list[tuple[str, str]]:
    """Return the equations that an answer contains, each as `A op B =` and its result."""
    return [(left, right) for left, right in EQUATION.findall(answer)]


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


FORMS: dict[str, Callable[[str, int, int], list[dict[str, str]]]] = {
    "gsm8k": gsm8k_rows,
    "smoke": smoke_rows,
    "acceptance": acceptance_rows,
}


def main() -> None:
    """Write one JSON Lines file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--split", choices=sorted(SPLITS), required=True)
    parser.add_argument("--form", choices=sorted(FORMS), default="gsm8k")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = FORMS[options.form](options.split, options.count, options.seed)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
