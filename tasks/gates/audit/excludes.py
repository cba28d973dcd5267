"""The exclude lists of a checkpoint, and which modules they cover."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any


class ExcludeList:
    """One list of module names and wildcards, matched as engines match it.

    An entry without `*` covers the module of that name and everything below it; one with `*`
    covers the names that it matches whole, or of which it matches one dotted part.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = tuple(entries)
        self._exact = {entry for entry in self.entries if "*" not in entry}
        wild = [entry for entry in self.entries if "*" in entry]
        self._whole = _any_of(wild)
        self._part = _any_of([entry for entry in wild if "." not in entry])
        self._known: dict[str, bool] = {}

    def covers(self, module: str) -> bool:
        """Whether the list takes `module` out of quantization."""
        known = self._known.get(module)
        if known is None:
            known = self._known[module] = self._covers(module)
        return known

    def _covers(self, module: str) -> bool:
        if any(name in self._exact for name in _upwards(module)):
            return True
        if self._whole is not None and self._whole.fullmatch(module):
            return True
        part = self._part
        return part is not None and any(part.fullmatch(name) for name in module.split("."))

    def unmatched(self, modules: Iterable[str]) -> list[str]:
        """Entries that cover none of `modules`."""
        names = list(modules)
        ancestors = {name for module in names for name in _upwards(module)}
        left = [entry for entry in self.entries if "*" not in entry and entry not in ancestors]
        for entry in self.entries:
            if "*" in entry and not _covers_any(entry, names):
                left.append(entry)
        return left


def entries_of(value: Any) -> tuple[str, ...] | None:
    """The list as it stands in a config; None when it is no list of names."""
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        return None
    return tuple(value)


def _any_of(entries: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(_regex, entries))) if entries else None


def _covers_any(entry: str, modules: list[str]) -> bool:
    pattern = re.compile(_regex(entry))
    if any(pattern.fullmatch(module) for module in modules):
        return True
    parts = {part for module in modules for part in module.split(".")}
    return any(pattern.fullmatch(part) for part in parts)


def _regex(entry: str) -> str:
    """A glob as a regular expression that never looks back, however many `*` it has."""
    first, *middle, last = entry.split("*")
    steps = "".join(f"(?>.*?{re.escape(part)})" for part in middle if part)
    return f"{re.escape(first)}{steps}.*{re.escape(last)}"


def _upwards(module: str) -> Iterator[str]:
    yield module
    while "." in module:
        module = module.rpartition(".")[0]
        yield module
