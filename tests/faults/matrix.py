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
    """One fault and the codes that were found: without and with the source."""

    fault: Injected
    alone: Counter[str]
    beside: Counter[str]

    @property
    def caught(self) -> bool:
        return self.fault.code in (self.beside if self.fault.needs_source else self.alone)


def inject(fault: Injected, good: Path, source: Path, scratch: Path) -> Row:
    """Damage a copy of `good` and audit it twice."""
    folder = scratch / fault.name
    try:
        copy = Copy(good, folder)
        fault.make(copy)
        alone = Counter(found.code for found in audit(folder).faults)
        beside = Counter(found.code for found in audit(folder, source).faults)
        return Row(fault, alone, beside)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(rows: Iterable[Row]) -> str:
    """The matrix as text: fault, expected code, what caught it alone and beside the source."""
    lines = [f"{'fault':44} {'expected':20} {'alone':>5}  {'source':>6}  also"]
    for row in rows:
        fault = row.fault
        also = sorted((set(row.alone) | set(row.beside)) - {fault.code})
        marks = ["x" if fault.code in codes else "-" for codes in (row.alone, row.beside)]
        lines.append(
            f"{fault.name:44} {fault.code:20} {marks[0]:>5}  {marks[1]:>6}  {' '.join(also)}"
        )
    return "\n".join(lines)


__all__ = ["FAULTS", "Row", "inject", "table"]
