"""The files that ship with a release as evidence, and the ledger of what the card shows of them.

Every value on a card is read from one of these files through `Evidence.show`, which notes file,
place, style and what was shown. `evidence/numbers.json` is that ledger: with it anybody can look a
number up, and `tasks.card.reconcile` checks all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.artifacts import Record
from tasks.card.escape import Safe, code, words
from tasks.card.styles import CODE_STYLES, STYLES
from tasks.errors import BadInputError

FOLDER = "evidence"
LEDGER = "numbers"
SUMS = "SHA256SUMS"
EMPTY_WORDS = frozenset({"", "?", "unknown", "none", "null", "nan", "n/a", "-"})


class Shown(Record):
    """One value as the card shows it."""

    file: str
    path: tuple[str, ...]
    style: str
    shown: str


class Evidence:
    """The evidence files as trees, by name without folder and suffix (`gates/gsm8k`).

    Args:
        trees: file -> JSON tree.
        not_measured: dotted place (`gates.gsm8k.measured.x`) or its end -> the reason printed.
    """

    def __init__(self, trees: Mapping[str, Any], not_measured: Mapping[str, str]) -> None:
        self.trees = dict(trees)
        self.not_measured = dict(not_measured)
        self.ledger: list[Shown] = []

    def has(self, file: str, *path: str) -> bool:
        """Whether a value is there and known."""
        return _is_known(self._find(file, path))

    def value(self, file: str, *path: str) -> Any:
        """A value for deciding what to write; what is written goes through `show`.

        Raises:
            BadInputError: it is not known.
        """
        found = self._find(file, path)
        if not _is_known(found):
            raise _unknown(file, path)
        return found

    def show(self, style: str, file: str, *path: str) -> Safe:
        """A value as the card shows it, escaped, and noted in the ledger.

        A value that is not known is replaced by the reason that the spec declares for it.

        Raises:
            BadInputError: it is not known, and nothing is declared.
        """
        found = self._find(file, path)
        if not _is_known(found):
            reason = self.declared(file, *path)
            if reason is None:
                raise _unknown(file, path)
            return words(f"not measured: {reason}")
        shown = STYLES[style](found)
        self.ledger.append(Shown(file=f"{FOLDER}/{file}.json", path=path, style=style, shown=shown))
        return code(shown) if style in CODE_STYLES else words(shown)

    def declared(self, file: str, *path: str) -> str | None:
        """The reason that the spec gives for not having a value, if it gives one."""
        dotted = ".".join((*file.split("/"), *path))
        for key, reason in self.not_measured.items():
            if dotted == key or dotted.endswith(f".{key}"):
                return reason
        return None

    def write(self, folder: Path) -> list[Path]:
        """Write all files and the ledger under `folder/evidence`; the paths written."""
        seen = {item.model_dump_json(): item.model_dump(mode="json") for item in self.ledger}
        trees = {**self.trees, LEDGER: list(seen.values())}
        written = []
        for name, tree in trees.items():
            path = folder / FOLDER / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False)
            path.write_text(f"{text}\n", encoding="utf-8")
            written.append(path)
        if "manifest" in trees:
            written.append(folder / FOLDER / SUMS)
            written[-1].write_text(sums(trees["manifest"]["files"]), encoding="utf-8")
        return written

    def _find(self, file: str, path: tuple[str, ...]) -> Any:
        return look_up(self.trees.get(file), path)


def sums(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The published files as `sha256sum --check` reads them.

    The sha256 of this text is the content digest (`tasks.checkpoint.manifest.content_digest`).
    """
    return "".join(f"{files[name]['sha256']}  {name}\n" for name in sorted(files))


def look_up(tree: Any, path: tuple[str, ...]) -> Any:
    """The value at a path of keys and list positions; None where there is none."""
    for key in path:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, list) and key.isdigit() and int(key) < len(tree):
            tree = tree[int(key)]
        else:
            return None
    return tree


def _is_known(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return value.strip().lower() not in EMPTY_WORDS
    return value is not None and value not in ({}, [])


def _unknown(file: str, path: tuple[str, ...]) -> BadInputError:
    dotted = ".".join((*file.split("/"), *path))
    return BadInputError(
        "card-unknown",
        f"card: {dotted} is not known.",
        f"Measure or record it, or declare card.not_measured['{dotted}'] with a reason.",
    )
