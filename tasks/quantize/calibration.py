"""The calibration text: read, checked, digested; tokenized with the model's own tokenizer."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.errors import BadInputError, TransientError
from tasks.spec import CalibrationSpec

SHUFFLE_BUFFER = 10_000
"""Rows of a streamed data set among which the seed draws."""


@dataclass(frozen=True)
class Row:
    """One row: plain text, or a question with its answer."""

    text: str
    answer: str | None = None


@dataclass(frozen=True)
class Rows:
    """The rows that calibration runs, in order.

    Attributes:
        dataset: file name, or the data set's id with configuration and split.
        rows: at least one.
        sha256: over the rows' bytes: a file's own lines, or a data set's rows as canonical JSON,
            each with a newline. Of a file that is used whole it is the file's sha256.
    """

    dataset: str
    rows: tuple[Row, ...]
    sha256: str


def read_rows(spec: CalibrationSpec) -> Rows:
    """The rows that a spec asks for, fewer when there are fewer.

    Raises:
        BadInputError: `calibration-missing`, `calibration-empty`, `calibration-row` (names file and
            line), `calibration-column`.
        TransientError: the Hub did not answer.
    """
    if spec.file is not None:
        return _from_file(spec.file, spec)
    return _from_hub(spec)


def check_file(path: Path) -> None:
    """Read a calibration file through, as `read_rows` does, and say what is wrong with it.

    Raises:
        BadInputError: as `read_rows`.
    """
    for _ in _lines(path):
        pass


def tokenize(rows: Iterable[Row], tokenizer: Any, length: int) -> list[list[int]]:
    """Token ids of each row, at most `length` of them, as the model sees them when it serves.

    Plain text is taken as it stands; a question with its answer goes through the chat template.
    """
    return [_ids(row, tokenizer)[:length] for row in rows]


def batches(ids: Iterable[list[int]], size: int) -> list[list[list[int]]]:
    """Rows of equal length together, at most `size` of them, the longest first.

    Nothing is padded, so no activation of a padding token reaches a scale.
    """
    groups: dict[int, list[list[int]]] = {}
    for row in ids:
        groups.setdefault(len(row), []).append(row)
    return [
        group[start : start + size]
        for length, group in sorted(groups.items(), reverse=True)
        if length
        for start in range(0, len(group), size)
    ]


def _ids(row: Row, tokenizer: Any) -> list[int]:
    if row.answer is None:
        return list(tokenizer(row.text, add_special_tokens=False)["input_ids"])
    if not tokenizer.chat_template:
        text = f"{row.text}\n{row.answer}"
    else:
        turns = [
            {"role": "user", "content": row.text},
            {"role": "assistant", "content": row.answer},
        ]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _from_file(path: Path, spec: CalibrationSpec) -> Rows:
    lines = list(_lines(path))
    drawn = range(len(lines))
    if len(lines) > spec.rows:
        drawn = sorted(random.Random(spec.seed).sample(drawn, spec.rows))  # type: ignore[assignment]
    digest = hashlib.sha256()
    for index in drawn:
        digest.update(lines[index][0])
    rows = tuple(lines[index][1] for index in drawn)
    return Rows(dataset=path.name, rows=rows, sha256=digest.hexdigest())


def _lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    """(raw line, row) for every line that is not blank; at least one."""
    count = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    count += 1
                    yield line, _parse(line, f"{path}: line {number}")
    except OSError as error:
        raise BadInputError(
            "calibration-missing",
            f"{path}: {error.strerror}.",
            "Give quantize.calibration.file a JSONL file.",
        ) from error
    if not count:
        raise BadInputError(
            "calibration-empty",
            f"{path}: no rows.",
            "Give it one JSON object a line, with `text`, or `question` and `answer`.",
        )


def _parse(line: bytes, origin: str) -> Row:
    try:
        tree = json.loads(line)
    except ValueError as error:
        raise BadInputError("calibration-row", f"{origin}: not JSON.", "Correct it.") from error
    row = _row(tree, "text") if isinstance(tree, dict) else None
    if row is None:
        raise BadInputError(
            "calibration-row",
            f"{origin}: no text.",
            "Give each row a non-empty `text`, or `question` and `answer`.",
        )
    return row


def _row(tree: Mapping[str, Any], column: str) -> Row | None:
    text = tree.get(column)
    if isinstance(text, str) and text.strip():
        return Row(text)
    question, answer = tree.get("question"), tree.get("answer")
    both = (question, answer)
    if all(isinstance(part, str) and part.strip() for part in both):
        return Row(str(question), str(answer))
    return None


def _from_hub(spec: CalibrationSpec) -> Rows:
    digest, rows = hashlib.sha256(), []
    for number, tree in enumerate(islice(_stream(spec), spec.rows)):
        row = _row(tree, spec.dataset_column)
        if row is None:
            columns = ", ".join(tree)
            raise BadInputError(
                "calibration-column",
                f"{spec.dataset}: row {number}: no text in `{spec.dataset_column}`"
                f" (columns: {columns}).",
                "Set quantize.calibration.dataset_column.",
            )
        rows.append(row)
        canonical = json.dumps(tree, sort_keys=True, ensure_ascii=False, default=str)
        digest.update(f"{canonical}\n".encode())
    if not rows:
        raise BadInputError(
            "calibration-empty", f"{spec.dataset}: no rows.", "Name another split or data set."
        )
    parts = (spec.dataset, spec.dataset_config, spec.dataset_split)
    name = "/".join(part for part in parts if part)
    return Rows(dataset=name, rows=tuple(rows), sha256=digest.hexdigest())


def _stream(spec: CalibrationSpec) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        stream = datasets.load_dataset(
            spec.dataset, spec.dataset_config, split=spec.dataset_split, streaming=True
        )
        yield from stream.shuffle(seed=spec.seed, buffer_size=SHUFFLE_BUFFER)
    except (datasets.exceptions.DatasetNotFoundError, ValueError) as error:
        line = " ".join(str(error).split())
        raise BadInputError(
            "calibration-missing",
            f"{spec.dataset}: {line}.",
            "Correct quantize.calibration.dataset, dataset_config or dataset_split.",
        ) from error
    except (OSError, ConnectionError) as error:
        line = " ".join(str(error).split())
        raise TransientError(
            "calibration-unreachable", f"{spec.dataset}: {line}.", "Try again."
        ) from error
