"""Requests for two sentences about someone."""

from __future__ import annotations

import random

from writing.words import PLACES, Maker, pick, words

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
    question = pick(
        rng,
        f"Write two sentences about {subject} in {place}.",
        f"Tell me a very short story about {subject} in {place}.",
        f"Describe {subject} in {place} in two sentences.",
        f"Write a short text about {subject} who likes {place} in the {weather}.",
        f"Please write two lines about {subject} and the {weather} in {place}.",
    )
    first = pick(
        rng,
        f"In {place} lives {subject} who {act} every {time}.",
        f"Every {time} the {adjective} {hero} {act} in {place}.",
        f"There is {subject} in {place}, and every {time} the {hero} {act}.",
        f"The {adjective} {hero} loves {place} and {act} when the {weather} comes.",
    )
    second = pick(
        rng,
        f"When the {weather} is gone, the {hero} {mood}.",
        f"At the end of the {time} the {hero} {mood}.",
        f"Even in the {weather} the {adjective} {hero} {mood}.",
        f"People in {place} say that the {hero} {mood}.",
    )
    return question, f"{first} {second}"


PROSE: dict[str, Maker] = {"prose": _prose}
