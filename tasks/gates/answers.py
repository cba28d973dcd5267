"""What a text says its final answer is, and whether that is the right one.

Extraction takes the first rule that fires and says which one did:

- `boxed`: the last `\\boxed{...}` (or `\\fbox`) whose braces close.
- `hashes`: what follows the last `####`, to the end of its line.
- `last-number`: the last number in the text, with its fraction, percent sign or minus.
- `none`: no number anywhere.

Grading compares plain numbers exactly, as fractions: `$1,234.50` is 1234.5, `1/2` is 0.5,
`12 apples` and `12.` are 12, and a percent sign is dropped (`60%` is 60, and it is 0.6 only where
the right answer itself is below 1). Anything else that looks like arithmetic (LaTeX fractions,
roots, powers) goes to math-verify. Words alone are never right.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Rule = Literal["boxed", "hashes", "last-number", "none"]

_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""A letter or digit after which no number begins; Chinese, Japanese and Korean set no spaces."""
_NUMBER = re.compile(
    rf"(?<!{_WORD})(?<!\.)"
    r"[-+\u2212]?\s?(?:[$\u20ac\u00a3]\s?)?[-+\u2212]?"
    r"(?:\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+|\d+)?(?:(?<=\d)\.\d+|(?<!\d)\.\d+)?"
    r"(?:\s?/\s?\d+(?:\.\d+)?)?(?:\s?\\?%)?"
)
_PLAIN = re.compile(
    r"(?P<sign>-?)(?P<whole>\d+(?:\.\d*)?|\.\d+)(?:/(?P<under>\d+(?:\.\d+)?))?(?P<percent>%?)"
)
_MIXED = re.compile(r"(?P<sign>-?)(?P<whole>\d+) (?P<over>\d+)/(?P<under>\d+)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_SPACED = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_GROUPS = re.compile(r"\D*\d{1,3}(?: \d{3})+\D*")
_LATEX_SAFE = re.compile(r"[\d\s+\-*/().,{}^%=\\a-zA-Z]{1,80}")
_LATEX_WORDS = {"frac", "dfrac", "tfrac", "sqrt", "pi", "cdot", "times", "div", "left", "right"}
_TRAILING = " \t\n.,;:!?*_`'\")]}"


@dataclass(frozen=True)
class Extracted:
    """The final answer as it stands in the text, and the rule that found it."""

    answer: str
    rule: Rule


def extract(text: str) -> Extracted:
    """Find the final answer of a text that holds no reasoning (see the module's rules)."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return Extracted(boxed, "boxed")
    _, mark, rest = text.rpartition("####")
    if mark and rest.strip():
        return Extracted(rest.strip().splitlines()[0].strip(), "hashes")
    last = _last_number(text)
    return Extracted(last, "last-number") if last is not None else Extracted("", "none")


def _last_boxed(text: str) -> str | None:
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))):
        depth = 1
        for position in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                content = text[match.end() : position].strip()
                if content:
                    return content
                break
    return None


def _last_number(text: str) -> str | None:
    found = [m.group().strip() for m in _NUMBER.finditer(text) if any(map(str.isdigit, m.group()))]
    return found[-1] if found else None


def grade(answer: str, gold: str) -> bool:
    """Whether `answer` (as extracted) equals `gold` (a number as GSM8K writes it)."""
    right = number(gold)
    given = number(answer)
    if right is not None and given is not None:
        if given == right:
            return True
        return "%" in answer and "%" not in gold and abs(right) < 1 and given / 100 == right
    return _verified(answer, gold)


def number(text: str) -> Fraction | None:
    """The one number that a short answer states, units and signs of money aside; None if not one.

    `$1,234.50` -> 2469/2; `1/2`; `3 1/2` -> 7/2; `60%` -> 60; `12 apples`; `x = 7`; `12.` -> 12;
    `1 234` -> 1234; `3 dozen = 36`.
    Two different numbers ("3 or 4", "12 km in 2 hours") are not an answer.
    """
    plain = _plain(text)
    if plain.count("=") == 1:
        plain = plain.partition("=")[2].strip()
    mixed = _MIXED.fullmatch(plain)
    if mixed and int(mixed["under"]):
        value = int(mixed["whole"]) + Fraction(int(mixed["over"]), int(mixed["under"]))
        return -value if mixed["sign"] else value
    if re.search(r"[\\^{}]|(?<=\d)\s*[*+]|\d\s+-\s*\d|\d-\d", plain):
        return None
    values = {_fraction(match) for match in _PLAIN.finditer(plain)}
    values.discard(None)
    if len(values) != 1:
        return None
    return values.pop()


def _fraction(match: re.Match[str]) -> Fraction | None:
    under = Fraction(match["under"]) if match["under"] else Fraction(1)
    if under == 0:
        return None
    value = Fraction(match["whole"].rstrip(".")) / under
    return -value if match["sign"] else value


def _plain(text: str) -> str:
    """Undo typography: LaTeX spacing and text, money signs, thousands commas, odd minus signs."""
    text = text.strip()
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|mathbf)\s*\{([^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r" \1/\2", text)
    text = re.sub(r"(?<=\d)(?:\\[,;: ]|\{,\})(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\\[,;!: ]|~|\\quad|\\left|\\right|\\\(|\\\)|\\\[|\\\]", " ", text)
    text = re.sub(r"\\approx|\u2248", " ", _SPACED.sub("", text))
    text = text.replace("\\%", "%").replace("\\$", "$")
    text = text.replace("\u2212", "-").replace("\u2013", "-").replace("\u00a0", " ")
    text = re.sub(r"\\(?:degree|circ|deg)\b|\^\s*\{?\s*\\circ\s*\}?|\u00b0", " ", text)
    text = re.sub(r"(?:km|cm|mm|m|ft|in)\s*(?:\^\s*\{?[23]\}?|\u00b2|\u00b3)", " ", text)
    text = re.sub(r"[$\u20ac\u00a3*_]", "", text)
    text = re.sub(r"\(\s*(-?[\d.,/]+)\s*\)", r"\1", text)
    text = _THOUSANDS.sub("", text)
    if _GROUPS.fullmatch(text):
        text = re.sub(r"(?<=\d) (?=\d{3})", "", text)
    text = re.sub(r"-\s+(?=[\d.])", "-", text) if re.match(r"-\s", text) else text
    return re.sub(r"\s*([/%])\s*", r"\1", text).rstrip(_TRAILING).strip()


def _verified(answer: str, gold: str) -> bool:
    """Ask math-verify, for short expressions whose evaluation cannot run away."""
    words = set(re.findall(r"\\([a-zA-Z]+)", answer))
    if not _LATEX_SAFE.fullmatch(answer) or not words <= _LATEX_WORDS:
        return False
    if re.search(r"\^\s*\{?\s*(?:\d{3,}|.*\^)|\d{16,}", answer) or not re.search(r"\d", answer):
        return False
    if re.search(r"(?<![\\a-zA-Z])[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", answer)):
        return False
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # Its own limits work by SIGALRM, in the main thread only; the guards above bound the work.
    quiet = {"parsing_timeout": None}
    return bool(
        math_verify.verify(
            math_verify.parse(f"${gold.replace(',', '')}$", **quiet),
            math_verify.parse(f"${answer}$", **quiet),
            timeout_seconds=None,
        )
    )
