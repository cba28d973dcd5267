"""Generator of the demo release's texts: arithmetic word problems and simple chat pairs.

The math problems have GSM8K's own form, `{"question", "answer"}`, where the answer gives the
reasoning first and ends in a line `#### N`. Three other kinds (code, prose, chat) make the
prompts on which the draft head's acceptance is measured.

Files of math problems also hold a few stretch problems, whose numbers lie just outside what
training covers, so that a model which has learned the rest still does not answer everything.

The three splits are disjoint by construction: the SHA-256 of a question's text, modulo 10,
decides which split owns it (0 calibration, 1 eval, 2 to 9 train), and a generator asked for one
split rejects every question that another one owns. Seeds only choose among a split's own texts.

`writing/` holds the texts by kind, their generator and the rows of the files.

    python deployments/demo/problems.py --split eval --count 400 --seed 0 --out FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # whoever loads this file by path

from writing.generator import SPLITS
from writing.rows import acceptance_rows, gsm8k_rows, smoke_rows

FORMS: dict[str, Callable[[str, int, int], list[dict[str, str]]]] = {
    "gsm8k": gsm8k_rows,
    "smoke": smoke_rows,
    "acceptance": acceptance_rows,
}


def main() -> None:
    """Write one JSON Lines file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--split", choices=sorted(SPLITS), required=True)
    parser.add_argument("--form", choices=sorted(FORMS), default="gsm8k")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = FORMS[options.form](options.split, options.count, options.seed)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
