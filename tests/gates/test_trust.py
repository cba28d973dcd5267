from __future__ import annotations

import random
from typing import Any

import pytest

from tasks.gates.counters import contradictions
from tasks.gates.trust import doubts, is_doubled, outcome

WORDS = ("river", "house", "walks", "under", "over", "quiet", "green", "lamp", "turns", "home")


def answer(place: int, **fields: Any) -> dict[str, Any]:
    """A sound answer of 20 to 30 words, other fields on top."""
    draw = random.Random(place)
    text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(20, 30))) + "."
    return {
        "record": "answer",
        "id": str(place),
        "meta": {"gold": str(place)},
        "prompt_sha256": f"p{place}",
        "session": 1,
        "at": place / 10,
        "latency": 0.05,
        "status": "ok",
        "error": None,
        "text": text,
        "reasoning": "",
        "finish_reason": "stop",
        "model": "tiny",
        "response_id": f"r{place}",
        "completion_tokens": len(text.split(" ")),
        "speculation": None,
        **fields,
    }


def found(lines: list[dict[str, Any]], **kwargs: Any) -> set[str]:
    return {reason.code for reason in doubts(lines, kwargs.pop("model", "tiny"), 2, **kwargs)}


def sound(count: int = 200) -> list[dict[str, Any]]:
    return [answer(place) for place in range(count)]


def lose(lines: list[dict[str, Any]], places: Any) -> list[dict[str, Any]]:
    for place in places:
        lines[place] |= {"status": "lost", "error": "HTTP 500"}
    return lines


def test_sound_answers_raise_no_doubt() -> None:
    assert found(sound(), max_tokens=64) == set()


def test_another_model_s_answers() -> None:
    lines = sound()
    lines[7]["model"] = "other"
    assert found(lines) == {"model-mismatch"}
    assert found(sound(), model="release") == {"model-mismatch"}


def test_repeated_answers() -> None:
    lines = sound()
    for place in range(0, 60, 2):
        lines[place + 1]["text"] = lines[place]["text"]
        lines[place + 1]["completion_tokens"] = lines[place]["completion_tokens"]
    assert found(lines) == {"duplicate-answers"}
    lines = sound()
    lines[5]["response_id"] = lines[4]["response_id"]
    assert found(lines) == {"duplicate-answers"}
    short = [{**line, "text": "#### 4", "completion_tokens": 3} for line in sound()]
    assert found(short) == set()


def test_one_text_twice_in_an_answer() -> None:
    assert is_doubled("There are 12 apples left here. There are 12 apples left here.")
    assert not is_doubled("7 7") and not is_doubled("There are 12 apples left. There are 13 now.")
    lines = sound()
    for line in lines[:5]:
        line["text"] += " " + line["text"]
    assert found(lines) == {"doubled-answers"}


@pytest.mark.parametrize("mark", ["<|im_start|>assistant", "</think>", "<|im_end|>"])
def test_markup_in_answers(mark: str) -> None:
    lines = sound()
    for line in lines[:4]:
        line["text"] += mark
    assert found(lines) == {"markup-in-answers"}


def test_reasoning_as_the_answer() -> None:
    lines = sound()
    for line in lines:
        line["reasoning"] = "Hm. " + line["text"]
    assert found(lines) == {"reasoning-as-answer"}
    lines = sound()
    for line in lines:
        line["reasoning_tokens"] = 20
    assert found(lines) == {"reasoning-as-answer"}
    lines = sound()
    for line in lines:
        line |= {
            "reasoning": "I add 3 and 4. " * 9,
            "reasoning_tokens": 60,
            "completion_tokens": 90,
        }
    assert found(lines) == set()


def test_reasoning_that_the_template_opens_must_come_apart() -> None:
    thinks = {"own_tokens": {"prompt": 9, "text": 30, "thinks": True}}
    lines = [{**line, **thinks} for line in sound()]
    assert found(lines) == {"reasoning-as-answer"}
    apart = [
        {**line, "reasoning": f"I count {i} of them and add two."} for i, line in enumerate(lines)
    ]
    assert found(apart) == set()
    assert found(apart[:120] + lines[120:]) == set()  # some answers need no thought
    assert found([{**line, "text": "", "reasoning": "Hm, I"} for line in lines]) == set()


def test_more_tokens_than_text_or_limit() -> None:
    lines = sound()
    for line in lines[:9]:
        line["completion_tokens"] = 4000
    assert found(lines) == {"token-mismatch"}
    assert found(sound(), max_tokens=10) == {"token-mismatch"}


def test_answers_cut_without_saying() -> None:
    lines = sound()
    for line in lines:
        words = line["text"].split(" ")[:16]
        line |= {"text": " ".join(words).rstrip("."), "completion_tokens": 16}
    assert "cut-without-saying" in found(lines)
    fixed = [
        {**line, "text": f"The answer is {i}00000000.", "completion_tokens": 20}
        for i, line in enumerate(sound())
    ]
    assert found(fixed) == set()


def test_outages_and_patterns() -> None:
    assert found(lose(sound(), [3, 90])) == set()
    assert found(lose(sound(), [40, 41, 42])) == {"outage"}
    assert found(lose(sound(), range(9, 200, 40))) == {"periodic-losses"}
    assert found(lose(sound(), [9, 55, 70, 140, 191])) == set()


def counters(**fields: Any) -> dict[str, Any]:
    own = {
        "verify_ct": 10,
        "correct": 14,
        "proposed": 20,
        "histogram": [2, 2, 6],
        "accept_length": 2.4,
        "completion_tokens": 24,
    }
    return answer(1, completion_tokens=24, speculation={**own, **fields})


def test_counters_that_agree() -> None:
    assert contradictions(counters(), 2) == []
    for tokens in (23, 25):
        line = counters(completion_tokens=tokens, accept_length=tokens / 10)
        assert contradictions({**line, "completion_tokens": tokens}, 2) == []
    assert contradictions(answer(1), 2) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"verify_ct": 9},
        {"correct": 12},
        {"histogram": [2, 2, 7]},
        {"histogram": [3, 1, 5, 1]},
        {"proposed": 30},
        {"accept_length": 2.9},
        {"completion_tokens": 27},
        {"verify_ct": "10"},
        {"verify_ct": 10, "histogram": [10], "correct": 14},
    ],
)
def test_counters_that_contradict(wrong: dict[str, Any]) -> None:
    assert contradictions(counters(**wrong), 2)


def test_an_outcome_is_ok_cut_off_or_lost() -> None:
    assert outcome(answer(1)) == "ok"
    assert outcome(answer(1, finish_reason="length")) == "cut_off"
    for odd in ("abort", None, "content_filter", "tool_calls"):
        assert outcome(answer(1, finish_reason=odd)) == "lost"
    assert outcome(answer(1, status="lost")) == "lost"
    assert outcome(answer(1, max_tokens=64, completion_tokens=64)) == "cut_off"
    assert outcome(answer(1, max_tokens=64, completion_tokens=63)) == "ok"
