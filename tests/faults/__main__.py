"""`python -m tests.faults CHECKPOINT SOURCE`: print the matrix for any good checkpoint."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.faults.matrix import FAULTS, inject, table


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    good, source = Path(sys.argv[1]), Path(sys.argv[2])
    chosen = [f for f in FAULTS if len(sys.argv) < 4 or f.name in sys.argv[3:]]
    with tempfile.TemporaryDirectory(dir=good.parent) as scratch:
        rows = [inject(fault, good, source, Path(scratch), both=True) for fault in chosen]
    print(table(rows))
    missed = [row.fault.name for row in rows if not row.caught]
    print(f"{len(rows) - len(missed)} of {len(rows)} caught; missed: {missed}")
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
