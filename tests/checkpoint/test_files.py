from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.survey import INDEX, survey
from tasks.checkpoint.write import link_or_copy, write_index, write_json, write_shard
from tasks.errors import BadInputError


def shard(path: Path, *names: str, fill: int = 1) -> int:
    plan = [(name, "U8", (4,)) for name in names]
    return write_shard(path, plan, [(name, np.full(4, fill, np.uint8)) for name in names])


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    root.mkdir()
    shard(root / "one.safetensors", "a", "b")
    shard(root / "two.safetensors", "c", fill=3)
    write_index(root, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}, 12)
    write_json(root / "config.json", {"model_type": "x"})
    return root


def code_of(root: Path, *, as_source: bool = False) -> str:
    with pytest.raises(BadInputError) as caught:
        CheckpointFiles.open(root, as_source=as_source)
    assert "\n" not in caught.value.message
    return caught.value.code


def edit_index(root: Path, **weight_map: str) -> None:
    tree = json.loads((root / INDEX).read_text())
    tree["weight_map"] |= weight_map
    write_json(root / INDEX, tree)


def test_opens_a_sharded_folder(sharded: Path) -> None:
    (sharded / "sub").mkdir()
    (sharded / "sub" / "tokenizer.json").write_text("{}")
    files = CheckpointFiles.open(sharded)
    assert set(files.tensors) == {"a", "b", "c"}
    assert files.array("c").tolist() == [3, 3, 3, 3]
    assert files.sidecars() == ("config.json", "sub/tokenizer.json")
    files.relax()
    assert files.array("c").tolist() == [3, 3, 3, 3]


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    shard(tmp_path / "model.safetensors", "a")
    write_json(tmp_path / "config.json", {})
    assert list(CheckpointFiles.open(tmp_path).tensors) == ["a"]


def test_another_name_without_an_index_is_refused(tmp_path: Path) -> None:
    shard(tmp_path / "weights.safetensors", "a")
    write_json(tmp_path / "config.json", {})
    assert code_of(tmp_path) == "index-missing"
    assert list(CheckpointFiles.open(tmp_path, as_source=True).tensors) == ["a"]


@pytest.mark.parametrize(
    "name", ["../one.safetensors", "/x.safetensors", "s/x.safetensors", "..", "", "one.bin", "a\0b"]
)
def test_shard_names_that_lead_elsewhere(sharded: Path, name: str) -> None:
    edit_index(sharded, c=name)
    assert code_of(sharded) == "shard-name"
    assert code_of(sharded, as_source=True) == "shard-name"


def test_links_out_are_for_sources_only(sharded: Path, tmp_path: Path) -> None:
    (sharded / "two.safetensors").rename(tmp_path / "blob")
    (sharded / "two.safetensors").symlink_to(tmp_path / "blob")
    assert code_of(sharded) == "shard-name"
    assert CheckpointFiles.open(sharded, as_source=True).array("c").tolist() == [3, 3, 3, 3]


def test_shards_beside_the_index_are_for_sources_only(sharded: Path) -> None:
    shard(sharded / "mtp.safetensors", "mtp.a")
    assert code_of(sharded) == "index-mismatch"
    assert "mtp.a" in CheckpointFiles.open(sharded, as_source=True).tensors


def test_what_the_index_gets_wrong(sharded: Path) -> None:
    edit_index(sharded, ghost="one.safetensors")
    assert code_of(sharded) == "index-mismatch"


def test_missing_things(sharded: Path, tmp_path: Path) -> None:
    (sharded / "two.safetensors").unlink()
    assert code_of(sharded) == "shard-missing"
    (sharded / "config.json").unlink()
    assert code_of(sharded) == "config-missing"
    assert code_of(tmp_path / "nowhere") == "not-a-folder"
    assert code_of(sharded / INDEX) == "not-a-folder"


def test_unreadable_json(sharded: Path) -> None:
    (sharded / "hf_quant_config.json").write_bytes(b"\xff\xfe{}")
    assert code_of(sharded) == "quant-config-unreadable"
    (sharded / "config.json").write_text("[" * 100_000)
    assert code_of(sharded) == "config-unreadable"


def test_a_survey_lists_everything_at_once(sharded: Path) -> None:
    edit_index(sharded, ghost="one.safetensors", other="gone.safetensors")
    (sharded / "config.json").write_text("no")
    codes = [problem.code for problem in survey(sharded).problems]
    assert codes == ["config-unreadable", "shard-missing", "index-mismatch"]


def test_total_size(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    write_index(sharded, weight_map, 9)
    assert code_of(sharded) == "total-size"


class TestWriting:
    def test_wrong_arrays_leave_nothing_behind(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        good = np.zeros(4, np.uint8)
        for arrays in (
            [("x", good), ("x", good)],
            [("y", good)],
            [("x", good.astype(np.int8))],
            [("x", np.zeros(5, np.uint8))],
            [],
        ):
            with pytest.raises(ValueError):
                write_shard(path, [("x", "U8", (4,))], arrays)
            assert list(tmp_path.iterdir()) == []
        with pytest.raises(ValueError):
            write_shard(path, [("x", "U8", (4,)), ("x", "U8", (4,))], [("x", good)])

    def test_a_failed_write_keeps_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.safetensors"
        shard(path, "x")
        before = path.read_bytes()

        def broken() -> object:
            yield "x", np.zeros(4, np.uint8)
            raise RuntimeError("killed")

        with pytest.raises(RuntimeError):
            write_shard(path, [("x", "U8", (4,))], broken())  # type: ignore[arg-type]
        assert path.read_bytes() == before
        assert [left.name for left in tmp_path.iterdir()] == ["a.safetensors"]

    def test_every_tensor_is_aligned(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        plan = [("odd", "U8", (3,)), ("scale", "F32", ()), ("half", "BF16", (3,))]
        from tasks.checkpoint.header import DTYPES, read_header

        arrays = [(n, np.zeros(s, DTYPES[d])) for n, d, s in plan]
        write_shard(path, plan, reversed(arrays))
        for tensor in read_header(path).tensors:
            assert tensor.start % DTYPES[tensor.dtype].itemsize == 0

    def test_link_or_copy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        one = tmp_path / "one"
        one.write_text("content")
        os.utime(one, ns=(10**18, 10**18))
        link_or_copy(one, tmp_path / "two")
        assert (tmp_path / "two").samefile(one)
        with pytest.raises(FileExistsError):
            link_or_copy(one, tmp_path / "two")

        def refuse(*_: object, **__: object) -> None:
            raise OSError(18, "another device")

        monkeypatch.setattr(os, "link", refuse)
        link_or_copy(one, tmp_path / "three")
        assert not (tmp_path / "three").samefile(one)
        assert (tmp_path / "three").read_text() == "content"
        assert (tmp_path / "three").stat().st_mtime_ns == 10**18
