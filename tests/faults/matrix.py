"""Every fault on a fresh copy, and what the audit says of it, alone and beside the source."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.gates.audit import audit
from tests.faults import files, tensors, values  # noqa: F401  (they register their faults)
from tests.faults.inject import FAULTS, Copy, Injected


@dataclass(frozen=True)
class Row:
    """One fault and the codes that were found: without and with the source (None: not asked)."""

    fault: Injected
    alone: Counter[str] | None
    beside: Counter[str] | None

    @property
    def caught(self) -> bool:
        found = self.beside if self.fault.needs_source else self.alone
        return found is not None and self.fault.code in found


def inject(fault: Injected, good: Path, source: Path, scratch: Path, *, both: bool = False) -> Row:
    """Damage a copy of `good` and audit it, beside the source when only that can tell.

    `both` audits it either way.
    """
    folder = scratch / fault.name
    try:
        copy = Copy(good, folder)
        fault.make(copy)
        alone = beside = None
        if both or not fault.needs_source:
            alone = Counter(found.code for found in audit(folder).faults)
        if both or fault.needs_source:
            beside = Counter(found.code for found in audit(folder, source).faults)
        return Row(fault, alone, beside)
    finally:
        for left in scratch.glob(f"{fault.name}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def table(rows: Iterable[Row]) -> str:
    """The matrix as text: each fault, what must catch it, whether it did, and what else did."""
    lines = [f"{'fault':42} {'caught by':25} {'alone':>5} {'source':>6}  and by"]
    for row in rows:
        fault = row.fault
        also = sorted((set(row.alone or ()) | set(row.beside or ())) - {fault.code})
        marks = [_mark(fault.code, codes) for codes in (row.alone, row.beside)]
        cells = f"{fault.name:42} {fault.code:25} {marks[0]:>5} {marks[1]:>6}"
        lines.append(f"{cells}  {' '.join(also)}".rstrip())
    return "\n".join(lines)


def _mark(code: str, found: Counter[str] | None) -> str:
    return "" if found is None else "yes" if code in found else "no"


__all__ = ["FAULTS", "Row", "inject", "table"]
