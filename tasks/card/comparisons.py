"""The optional tables: draft heads side by side, and the sweep over draft steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.card.escape import Safe, words
from tasks.card.evidence import Evidence
from tasks.card.styles import style_for

TITLES = {
    "draft_heads": "Draft heads side by side",
    "num_steps": "Draft steps side by side",
}


@dataclass(frozen=True)
class Cell:
    """A value of `comparisons.json`."""

    style: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table with its title; the cells point into the evidence."""

    title: Safe
    header: Safe
    rule: Safe
    rows: tuple[tuple[Cell, ...], ...]


def comparison_tables(evidence: Evidence) -> list[Table]:
    """A table for every list of rows in `comparisons.json`; columns are the first row's keys.

    A row with a value that could not be measured is left to the evidence.
    """
    if not evidence.has("comparisons"):
        return []
    tables = []
    for name, rows in evidence.value("comparisons").items():
        if not (isinstance(rows, list) and rows and isinstance(rows[0], Mapping)):
            continue
        keys = list(rows[0])
        whole = [
            str(place)
            for place in range(len(rows))
            if all(evidence.has("comparisons", name, str(place), key) for key in keys)
        ]
        if whole:
            tables.append(_table(evidence, name, keys, whole))
    return tables


def _table(evidence: Evidence, name: str, keys: list[str], places: list[str]) -> Table:
    rows = [
        tuple(
            Cell(style_for(evidence.value("comparisons", name, place, key)), (name, place, key))
            for key in keys
        )
        for place in places
    ]
    return Table(
        title=words(TITLES.get(name, name.replace("_", " "))),
        header=Safe(f"| {' | '.join(words(key.replace('_', ' ')) for key in keys)} |"),
        rule=Safe("|" + "---|" * len(keys)),
        rows=tuple(rows),
    )
