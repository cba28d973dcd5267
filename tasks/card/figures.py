"""Which of a gate's measured values the card shows, under what name, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.card.escape import Safe, words
from tasks.card.evidence import Evidence
from tasks.card.styles import style_for

ORDER = ("audit", "smoke", "gsm8k", "acceptance")
TITLES = {
    "audit": "File audit",
    "smoke": "Smoke test",
    "gsm8k": "GSM8K",
    "acceptance": "Draft acceptance",
}


@dataclass(frozen=True)
class Headline:
    """The one value by which a gate is known, and the thresholds that it is held against.

    Attributes:
        label: what it is, in words.
        keys: its key in `measured`; the first that is there counts.
        style: how it is written.
        low: key in `threshold` of the least allowed value.
        high: key in `threshold` of the greatest.
    """

    label: str
    keys: tuple[str, ...]
    style: str
    low: str | None = None
    high: str | None = None


HEADLINES = {
    "audit": Headline("tensors read", ("tensors",), "integer"),
    "smoke": Headline("known answers", ("known_right",), "percent", low="min_known"),
    "gsm8k": Headline("accuracy", ("accuracy",), "percent", low="min_accuracy"),
    "acceptance": Headline(
        "mean accept length",
        ("accept_length",),
        "fixed3",
        low="min_accept",
        high="max_accept",
    ),
}
PERCENT_ENDS = (
    "accuracy",
    "accuracy_of_scored",
    "_share",
    "_rate",
    "_rates",
    "min_known",
    "max_lost",
    "max_cut_off",
    "size_ratio",
)
MAX_TEXT = 200
MAX_LIST = 8
"""Longer lists are left to the evidence."""


@dataclass(frozen=True)
class Row:
    """One value of an evidence file with its name on the card."""

    label: Safe
    style: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Gate:
    """A gate as the card shows it; all values are read from its evidence file by path."""

    name: str
    title: Safe
    file: str
    link: Safe
    value: Row | None
    low: Row | None
    high: Row | None
    details: tuple[Row, ...]
    conditions: tuple[Row, ...]


def gates_of(evidence: Evidence, titles: Mapping[str, str]) -> list[Gate]:
    """All gates that have a report, in the order in which they ran.

    `titles` overrides how a gate is called: accuracy on other problems is not called GSM8K.
    """
    names = [file.removeprefix("gates/") for file in evidence.trees if file.startswith("gates/")]
    return [_gate(evidence, name, {**TITLES, **titles}) for name in sorted(names, key=_place)]


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def _gate(evidence: Evidence, name: str, titles: Mapping[str, str]) -> Gate:
    file = f"gates/{name}"
    headline = HEADLINES.get(name)
    key = None
    if headline is not None:
        known = [key for key in headline.keys if evidence.has(file, "measured", key)]
        key = (known or list(headline.keys))[0]
    return Gate(
        name=name,
        title=words(titles.get(name, name)),
        file=file,
        link=Safe(f"evidence/{file}.json"),
        value=Row(words(headline.label), headline.style, ("measured", key))
        if headline is not None and key is not None
        else None,
        low=_bound(evidence, file, headline, headline.low if headline else None),
        high=_bound(evidence, file, headline, headline.high if headline else None),
        details=tuple(_rows(evidence, file, ("measured",), skip=key)),
        conditions=tuple(_rows(evidence, file, ("threshold",), skip=None)),
    )


def _bound(evidence: Evidence, file: str, headline: Headline | None, key: str | None) -> Row | None:
    if headline is None or key is None or not evidence.has(file, "threshold", key):
        return None
    return Row(words(key), headline.style, ("threshold", key))


def rows_of(evidence: Evidence, file: str, *path: str) -> list[Row]:
    """Every known single value of a mapping in an evidence file, in its order."""
    return list(_rows(evidence, file, path, skip=None))


def _rows(evidence: Evidence, file: str, path: tuple[str, ...], skip: str | None) -> Iterator[Row]:
    if not evidence.has(file, *path):
        return
    tree = evidence.value(file, *path)
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key in (skip, "sampling", "seconds") or not evidence.has(file, *path, key):
            continue
        if isinstance(value, Mapping):
            for inner in _rows(evidence, file, (*path, key), skip=None):
                yield Row(Safe(f"{words(_spoken(key))}, {inner.label}"), inner.style, inner.path)
        elif isinstance(value, list) and len(value) <= MAX_LIST and all(map(_is_number, value)):
            for place, item in enumerate(value):
                label = words(f"{_spoken(key)} [{place}]")
                yield Row(label, _style(key, item), (*path, key, str(place)))
        elif _is_single(value):
            yield Row(words(_spoken(key)), _style(key, value), (*path, key))


def _is_single(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return isinstance(value, bool | int | float)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _style(key: str, value: Any) -> str:
    if isinstance(value, int) and key in ("bytes", "source_bytes"):
        return "size"
    if isinstance(value, float) and key.endswith(PERCENT_ENDS) and 0 <= value <= 1:
        return "percent"
    return style_for(value)


def _spoken(key: str) -> str:
    return key.replace("_", " ").strip()
