"""The raw records of a gate: one JSONL file that outlives kill -9 and from which all is recomputed.

The first line is the run's header {record: "run", gate, inputs, prompts}. Then, as they happen:
`session` (one for each start or resume, with what the server said about itself), `answer` (one a
request), and whatever else a gate measures. A line that a kill left half-written is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from tasks.artifacts import GateReport
from tasks.errors import BadInputError

RECORDS = "records.jsonl"
REPORT = "report.json"

Line = dict[str, Any]


class Records:
    """An open records file: what is in it, and appending to it.

    Args:
        out: folder of the gate, made if missing.
        header: `gate`, `inputs` (what must be equal for a resume) and `prompts`.

    Raises:
        BadInputError: `out` holds records of other inputs (`resume-mismatch`, naming them), or a
            file that is no records (`records-unreadable`).
    """

    def __init__(self, out: Path, header: Line) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / RECORDS
        self.lines: list[Line] = []
        header = json.loads(json.dumps({"record": "run", **header}))
        if self.path.exists():
            _cut_torn_line(self.path)
            self.lines = read_records(self.path)
        if self.lines:
            _same_inputs(self.path, self.lines[0], header)
        self._file: IO[str] = self.path.open("a", encoding="utf-8")
        if not self.lines:
            self.append(header)

    def append(self, line: Line) -> None:
        """Write one record; it is in the kernel's hands when this returns."""
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()
        self.lines.append(line)

    def close(self) -> None:
        """Push the records to the disk."""
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def answers(self) -> dict[str, Line]:
        """The answers so far by prompt id."""
        return answers(self.lines)


def read_records(path: Path) -> list[Line]:
    """All whole lines of a records file; a torn last line is left out.

    Raises:
        BadInputError: unreadable, or a damaged line before the last.
    """
    try:
        raw = path.read_bytes().split(b"\n")
        return [json.loads(line) for line in raw[:-1] if line.strip()]
    except (OSError, ValueError) as error:
        raise BadInputError(
            "records-unreadable", f"{path}: {error}.", "Give another --out folder."
        ) from error


def answers(lines: Iterable[Line]) -> dict[str, Line]:
    """The answer records by prompt id; the first of an id counts, as it was final.

    A `discard` record takes back the ids that it names: answers of a wave that a kill cut short.
    """
    found: dict[str, Line] = {}
    for line in lines:
        if line["record"] == "answer":
            found.setdefault(line["id"], line)
        elif line["record"] == "discard":
            for name in line["ids"]:
                found.pop(name, None)
    return found


def uncounted(lines: Iterable[Line]) -> list[str]:
    """Ids answered since the last look at the server's totals, which no wave counts."""
    found: list[str] = []
    for line in lines:
        if line["record"] == "answer":
            found.append(line["id"])
        elif line["record"] in ("totals", "discard"):
            found.clear()
    return found


def last(lines: Iterable[Line], kind: str) -> Line | None:
    """The last record of a kind, None when there is none."""
    found = [line for line in lines if line["record"] == kind]
    return found[-1] if found else None


def write_report(out: Path, report: GateReport) -> GateReport:
    """Put `report.json` beside the records, whole or not at all."""
    draft = out / f".{REPORT}.part"
    draft.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    draft.replace(out / REPORT)
    return report


def _cut_torn_line(path: Path) -> None:
    raw = path.read_bytes()
    whole = raw.rfind(b"\n") + 1
    if whole < len(raw):
        with path.open("rb+") as file:
            file.truncate(whole)


def _same_inputs(path: Path, found: Line, asked: Line) -> None:
    if found.get("record") != "run":
        raise BadInputError(
            "records-unreadable", f"{path}: no header.", "Give another --out folder."
        )
    before, now = {"gate": found["gate"], **found["inputs"]}, {"gate": asked["gate"]}
    now.update(asked["inputs"])
    other = sorted(k for k in before | now if before.get(k) != now.get(k))
    if other or found.get("prompts") != asked.get("prompts"):
        what = ", ".join(other) or "prompts"
        raise BadInputError(
            "resume-mismatch",
            f"{path}: holds records of another run (other {what}).",
            "Give a new --out folder, or the options of that run.",
        )
