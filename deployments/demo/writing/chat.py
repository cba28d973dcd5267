"""Small talk: greetings, facts and advice."""

from __future__ import annotations

import random

from writing.words import NAMES, THINGS, Maker, pick, words

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
    question = pick(
        rng,
        f"Hello, my name is {name} and I live in {town}. How are you?",
        f"Good {time}! I am {name} from {town}.",
        f"Hi, this is {name}. I like {thing} and I want to say hello.",
        f"Good {time}, {name} here. How are you doing in {town}?",
    )
    first = pick(rng, f"Hello {name}!", f"Good {time}, {name}!", f"Hi {name}, nice to meet you!")
    second = pick(
        rng,
        "I am doing well, thank you.",
        "It is good to hear from you.",
        f"I hope you have a pleasant {time}.",
    )
    third = pick(
        rng,
        "How can I help you today?",
        "What would you like to talk about?",
        "Is there anything I can do for you?",
    )
    return question, f"{first} {second} {third}"


def _fact(rng: random.Random) -> tuple[str, str]:
    name, (country, capital) = rng.choice(NAMES), rng.choice(list(CAPITALS.items()))
    relative = pick(rng, "friend", "teacher", "sister", "brother", "neighbor", "son", "uncle")
    question = pick(
        rng,
        f"My {relative} {name} asks what the capital of {country} is. Can you tell us?",
        f"I am {name}. What is the capital of {country}?",
        f"What is the capital of {country}? My {relative} {name} wants to go there.",
        f"{name} wants to visit the capital of {country}. Which city is that?",
    )
    first = pick(
        rng,
        f"The capital of {country} is {capital}.",
        f"That is {capital}, the capital of {country}.",
        f"{capital} is the capital of {country}.",
    )
    second = pick(
        rng,
        f"I hope that {name} enjoys {capital}!",
        f"Please give my best wishes to {name}.",
        f"It is a wonderful city, {name} will like it.",
        "Would you like to know more about it?",
    )
    return question, f"{first} {second}"


def _advice(rng: random.Random) -> tuple[str, str]:
    name, (goal, tips) = rng.choice(NAMES), rng.choice(list(ADVICE.items()))
    relative = pick(rng, "friend", "teacher", "sister", "brother", "neighbor", "son", "uncle")
    question = pick(
        rng,
        f"My {relative} {name} wants to {goal}. What do you advise?",
        f"How can my {relative} {name} {goal}?",
        f"Hi, I am {name}. How can I {goal}?",
        f"Can you give {name}, my {relative}, some advice on how to {goal}?",
    )
    one, two = rng.sample(tips, 2)
    first = pick(
        rng, f"To {goal}, {one}.", f"A good way to {goal} is this: {one}.", f"You could {one}."
    )
    second = pick(rng, f"Also, {two}.", f"It also helps to {two}.", f"After that, {two}.")
    third = pick(rng, f"Good luck, {name}!", "Good luck!", f"I wish {name} all the best.")
    return question, f"{first} {second} {third}"


CHAT: dict[str, Maker] = {"greeting": _greeting, "fact": _fact, "advice": _advice}
