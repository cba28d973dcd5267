"""The last look at a card: no question mark where a value should be, no empty cell, no None."""

from __future__ import annotations

import re

from tasks.card.evidence import EMPTY_WORDS

_QUOTED = re.compile(
    r"^```.*?^```|<pre>.*?</pre>|<table.*?</table>|<!-- notes -->.*?<!-- /notes -->",
    re.DOTALL | re.MULTILINE,
)
_STRAY = re.compile(r"(?<![\w?])\?(?![\w?])|\b(?:None|NaN|nan|[Uu]nknown|undefined)\b")
ESCAPED = re.compile(r"`[^`]*`|<code>.*?</code>")


def empty_values(card: str) -> list[str]:
    """Every place of the card where a value is missing, with its line; quoted text is exempt.

    Found are: a table cell or list value that is empty, `?`, `unknown` or `None`; and these words
    or a lone question mark in the card's own text.
    """
    bare = _QUOTED.sub(lambda found: "\n" * found[0].count("\n"), card)
    faults: list[str] = []
    for number, line in enumerate(bare.split("\n"), start=1):
        faults += [f"line {number}: {what}" for what in _line_faults(line)]
    return faults


def _line_faults(line: str) -> list[str]:
    text = line.strip()
    if text.startswith("|") and not re.fullmatch(r"[|\s:]*-[|\s:-]*", text):
        cells = re.split(r"(?<!\\)\|", text)[1:-1]
        return [f"cell `{cell.strip()}`" for cell in cells if _is_empty(cell)]
    found = re.match(r"(?:[-*]\s+|\d+\.\s+)(.*)$", text)
    if found and _is_empty(found[1].rpartition(": ")[2]):
        return [f"list value `{text}`"]
    stray = _STRAY.search(ESCAPED.sub("", text))
    return [f"`{stray[0]}`"] if stray else []


def _is_empty(cell: str) -> bool:
    return cell.strip().strip("*`").strip().lower() in EMPTY_WORDS
