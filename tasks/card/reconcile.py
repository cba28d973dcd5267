"""Does a card say what its evidence says? Every number is looked up again."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from tasks.card.evidence import FOLDER, LEDGER, Shown, look_up
from tasks.card.regions import NAMES, find_regions
from tasks.card.styles import STYLES
from tasks.hub.fetch import front_matter

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
QUOTED = re.compile(
    r"```.*?```|<pre>.*?</pre>|<!-- notes -->.*?<!-- /notes -->|<!--.*?-->"
    r"|<table.*?</table>|!?\[[^\]]*\]\([^)]*\)|<[^>]+>|`[^`]*`",
    re.DOTALL,
)
"""What holds no number of the card's own: code, quoted samples, the author's notes, links."""


def reconcile(folder: Path) -> list[str]:
    """Everything on the card in `folder` that its evidence does not bear out; empty when all is.

    Looks in both directions: each line of `evidence/numbers.json` is computed anew from the file
    that it names and searched on the card; each number on the card must be in that ledger or in
    the fixed wording of the templates.
    """
    try:
        text = (folder / FOLDER / f"{LEDGER}.json").read_text(encoding="utf-8")
        ledger = TypeAdapter(list[Shown]).validate_json(text)
        card = (folder / "README.md").read_bytes()
    except (OSError, ValidationError) as error:
        return [f"cannot be read: {' '.join(str(error).split())[:120]}"]
    regions = find_regions(card)
    written = "\n".join(card[regions[name].start : regions[name].end].decode() for name in NAMES)
    faults = [fault for line in ledger if (fault := _line_fault(folder, line, written))]
    borne_out = fixed_numbers() | {n for line in ledger for n in NUMBER.findall(line.shown)}
    loose = [n for n in NUMBER.findall(QUOTED.sub(" ", written)) if n not in borne_out]
    faults += [f"the card says {number}, no evidence does" for number in loose]
    return faults + _metadata_faults(folder)


def _metadata_faults(folder: Path) -> list[str]:
    """The accuracy in model-index and `.eval_results/` against the report that it came from."""
    path = folder / FOLDER / "gates" / "gsm8k.json"
    index = front_matter(folder / "README.md").get("model-index") or []
    said = [m["value"] for item in index for r in item["results"] for m in r["metrics"]]
    for file in sorted((folder / ".eval_results").glob("*.yaml")):
        said += [entry["value"] for entry in yaml.safe_load(file.read_text(encoding="utf-8"))]
    if not said:
        return []
    try:
        measured = 100 * json.loads(path.read_text(encoding="utf-8"))["measured"]["accuracy"]
    except (OSError, ValueError, KeyError, TypeError):
        return [f"metadata: an accuracy without {path.name}"]
    wrong = [value for value in said if value != measured]
    return [f"metadata: accuracy {value}, the report gives {measured}" for value in wrong]


def _line_fault(folder: Path, line: Shown, written: str) -> str | None:
    where = f"{line.file} {'/'.join(line.path)}"
    try:
        tree = json.loads((folder / line.file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{where}: the file cannot be read"
    found = look_up(tree, line.path)
    if found is None:
        return f"{where}: not in the file"
    shown = STYLES[line.style](found)
    if shown != line.shown:
        return f"{where}: the file gives {shown}, the ledger says {line.shown}"
    missing = [number for number in NUMBER.findall(shown) if number not in written]
    return f"{where}: {shown} is not on the card" if missing else None


@cache
def fixed_numbers() -> frozenset[str]:
    """Numbers in the templates' own wording, outside what they fill in."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.j2")))
    bare = (
        re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", " ", text, flags=re.DOTALL) for text in texts
    )
    return frozenset(number for text in bare for number in NUMBER.findall(text))
