"""Calibration text: drawn, digested, tokenized, never padded; bad rows named by line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import BadInputError
from tasks.quantize.calibration import Row, batches, check_file, read_rows, tokenize
from tasks.spec import CalibrationSpec


def _write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_used_whole_has_its_own_digest(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", [{"text": f"row {i}"} for i in range(5)])
    rows = read_rows(CalibrationSpec(file=file, rows=10))
    assert rows.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert rows.dataset == "a.jsonl" and rows.rows[0] == Row("row 0")


def test_the_seed_draws_the_rows_and_the_digest_tells(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl", [{"text": f"row {i}"} for i in range(50)])
    one, again, other = (
        read_rows(CalibrationSpec(file=file, rows=10, seed=seed)) for seed in (1, 1, 2)
    )
    assert one == again and len(one.rows) == 10
    assert one.sha256 != other.sha256 and one.rows != other.rows


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("", "calibration-empty", "a.jsonl"),
        ("\n \n", "calibration-empty", "a.jsonl"),
        ('{"text": "x"}\n{"text": "  "}\n', "calibration-row", "line 2"),
        ('{"text": "x"}\n\n{"question": "q"}\n', "calibration-row", "line 3"),
        ('{"text": 3}\n', "calibration-row", "line 1"),
        ('["text"]\n', "calibration-row", "line 1"),
        ("text\n", "calibration-row", "line 1"),
        ('{"other": "x"}\n', "calibration-row", "line 1"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, code: str, where: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(BadInputError) as error:
        check_file(file)
    assert error.value.code == code
    assert str(file) in error.value.message and where in error.value.message
    assert "\n" not in str(error.value)


def test_missing_file_and_binary_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as error:
        check_file(tmp_path / "none.jsonl")
    assert error.value.code == "calibration-missing"
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError) as error:
        check_file(tmp_path / "b.jsonl")
    assert error.value.code == "calibration-row"


class _Letters:
    """A tokenizer of single letters."""

    chat_template: str | None = "yes"

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}

    def apply_chat_template(self, turns: list[dict[str, str]], tokenize: bool) -> str:
        assert not tokenize
        return "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)


def test_rows_reach_the_model_as_served_text() -> None:
    rows = [Row("plain"), Row("q", "a")]
    plain, chat = tokenize(rows, _Letters(), 100)
    assert "".join(map(chr, plain)) == "plain"
    assert "".join(map(chr, chat)) == "<user>q<assistant>a"
    bare = _Letters()
    bare.chat_template = None
    assert "".join(map(chr, tokenize(rows, bare, 100)[1])) == "q\na"
    assert [len(row) for row in tokenize(rows, _Letters(), 4)] == [4, 4]


def test_batches_hold_rows_of_one_length_and_lose_none() -> None:
    ids = [[1] * n for n in (3, 5, 3, 3, 5, 0, 7)]
    made = batches(ids, 2)
    assert [[len(row) for row in batch] for batch in made] == [[7], [5, 5], [3, 3], [3]]
    assert sum(len(batch) for batch in made) == len(ids) - 1


def test_hub_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    table = [{"article": f"text {i}", "id": i} for i in range(20)]
    stream = datasets.Dataset.from_list(table).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: stream)
    spec = CalibrationSpec(
        dataset="someone/news", dataset_config="3.0", dataset_column="article", rows=5
    )
    one, again = read_rows(spec), read_rows(spec)
    assert one == again and len(one.rows) == 5 and one.dataset == "someone/news/3.0/train"
    with pytest.raises(BadInputError) as error:
        read_rows(spec.model_copy(update={"dataset_column": "body"}))
    assert error.value.code == "calibration-column" and "article" in str(error.value)
