from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.gates.answers import extract, grade

RIGHT = [
    ("\u0661\u0662", "12"),
    ("\uff11\uff12\u3002", "12"),
    ("1 234", "1,234"),
    ("1\u202f234 \u20ac", "1234"),
    (r"\approx 12", "12"),
    ("3 dozen = 36 eggs", "36"),
    ("$1,234.50", "1234.5"),
    ("$1,234.50", "1,234.50"),
    ("1/2", "0.5"),
    ("0.5", "1/2"),
    (r"\frac{1}{2}", "0.5"),
    (r"3\frac{1}{2}", "3.5"),
    ("3 1/2", "3.5"),
    ("-3", "-3"),
    ("- 3", "-3"),
    ("\u22123", "-3"),
    ("60%", "60"),
    (r"60\%", "60"),
    ("60%", "0.6"),
    ("12 apples", "12"),
    (r"12\text{ apples}", "12"),
    ("12 km/h", "12"),
    (r"5\text{ m}^2", "5"),
    ("12.", "12"),
    ("12.00", "12"),
    ("**42**", "42"),
    (r"\$18", "18"),
    ("70{,}000", "70000"),
    (r"70\,000", "70000"),
    ("x = 7", "7"),
    (r"\sqrt{16}", "4"),
    ("2^3", "8"),
    ("2 + 2", "4"),
    (r"2\times 3", "6"),
]
WRONG = [
    ("12 34", "1234"),
    ("x = 3 or 4", "4"),
    ("-3", "3"),
    ("3", "-3"),
    ("0.6", "60"),
    ("1,234.5", "1234"),
    ("3 or 4", "3"),
    ("3 or 4", "4"),
    ("12-13", "12"),
    ("12:30", "12"),
    ("5/0", "5"),
    ("apples", "12"),
    ("", "12"),
    ("120 apples", "12"),
    ("10^{10^{10}}", "5"),
    ("12 inches (1 foot)", "12"),
    ("2,5", "25"),
]


@pytest.mark.parametrize(("answer", "gold"), RIGHT)
def test_right_answers_in_any_dress(answer: str, gold: str) -> None:
    assert grade(answer, gold)


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_wrong_answers_stay_wrong(answer: str, gold: str) -> None:
    assert not grade(answer, gold)


@pytest.mark.parametrize(
    ("text", "answer", "rule"),
    [
        (r"so \boxed{12} and then 5", "12", "boxed"),
        (r"first \boxed{3}, no: \boxed{\frac{1}{2}}", r"\frac{1}{2}", "boxed"),
        (r"\boxed{3} and then \boxed{4", "3", "boxed"),
        ("5 + 6\n#### 1,234\nthat is 7", "1,234", "hashes"),
        ("The answer is $1,234.50.", "$1,234.50", "last-number"),
        ("It is 1/2.", "1/2", "last-number"),
        ("It costs -3 dollars.", "-3", "last-number"),
        ("He has 5-3=2 left", "2", "last-number"),
        ("I would say 60 %!", "60 %", "last-number"),
        ("There are 12 apples", "12", "last-number"),
        ("\u7b54\u6848\u662f12\u4e2a\u82f9\u679c\u3002", "12", "last-number"),
        ("\uc0ac\uacfc\ub294 12\uac1c", "12", "last-number"),
        ("Il reste 1\u202f234 pommes", "1\u202f234", "last-number"),
        ("It is room A12", "", "none"),
        ("It is .5", ".5", "last-number"),
        ("nothing here", "", "none"),
        ("####", "", "none"),
        (r"\boxed{}", "", "none"),
    ],
)
def test_the_rule_that_fired_is_named(text: str, answer: str, rule: str) -> None:
    found = extract(text)
    assert (found.answer, found.rule) == (answer, rule)


def test_every_gold_answer_of_the_set_grades_itself_and_nothing_else() -> None:
    lines = Path("tests/fixtures/gsm8k/test-200.jsonl").read_text(encoding="utf-8").split("\n")
    answers = [json.loads(line)["answer"] for line in lines if line]
    golds = [answer.partition("####")[2].strip() for answer in answers]
    assert len(golds) == 200
    for answer, gold in zip(answers, golds, strict=True):
        found = extract(answer)
        assert found.rule == "hashes"
        assert grade(found.answer, gold)
        assert grade(extract(rf"Thus \boxed{{${gold}}} dollars.").answer, gold)
        assert not grade(f"{gold}1", gold)
