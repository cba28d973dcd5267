from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tasks.checkpoint.manifest import Manifest, full_faults, quick_faults, take_manifest
from tasks.checkpoint.write import write_shard
from tasks.errors import BadInputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    values = np.arange(64, dtype=np.uint8)
    write_shard(root / "model.safetensors", [("x", "U8", (64,))], [("x", values)])
    (root / "sub" / "note.txt").write_text("hello")
    return root


def flip_last_byte(path: Path, *, keep_time: bool) -> None:
    stamp = path.stat()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))
    if keep_time:
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def test_nothing_changed(folder: Path) -> None:
    told: list[float] = []
    manifest = take_manifest(folder, lambda done, words: told.append(done))
    assert set(manifest.files) == {"model.safetensors", "sub/note.txt"}
    assert told[-1] == 1.0
    assert quick_faults(folder, manifest) == full_faults(folder, manifest) == []
    again = Manifest.model_validate_json(manifest.model_dump_json())
    assert again == manifest


def test_the_digest_is_of_contents_alone(folder: Path, tmp_path: Path) -> None:
    digest = take_manifest(folder).digest
    os.utime(folder / "model.safetensors")
    folder.rename(tmp_path / "elsewhere")
    assert take_manifest(tmp_path / "elsewhere").digest == digest
    (tmp_path / "elsewhere" / "sub" / "note.txt").rename(tmp_path / "elsewhere" / "note.txt")
    assert take_manifest(tmp_path / "elsewhere").digest != digest


def test_a_touched_file_is_read_before_it_is_judged(folder: Path) -> None:
    manifest = take_manifest(folder)
    os.utime(folder / "model.safetensors")
    assert quick_faults(folder, manifest) == []
    flip_last_byte(folder / "model.safetensors", keep_time=False)
    assert quick_faults(folder, manifest) == ["model.safetensors: its content changed"]


def test_damage_that_hides_from_the_quick_look(folder: Path) -> None:
    manifest = take_manifest(folder)
    flip_last_byte(folder / "model.safetensors", keep_time=True)
    assert quick_faults(folder, manifest) == []
    assert full_faults(folder, manifest) == ["model.safetensors: its content changed"]


def test_the_header_is_always_looked_at(folder: Path) -> None:
    manifest = take_manifest(folder)
    path = folder / "model.safetensors"
    stamp = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"x"', b'"y"'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert quick_faults(folder, manifest) == ["model.safetensors: its header changed"]


def test_files_that_come_and_go(folder: Path) -> None:
    manifest = take_manifest(folder)
    (folder / "sub" / "note.txt").unlink()
    (folder / "new.txt").write_text("x")
    assert sorted(quick_faults(folder, manifest)) == [
        "new.txt: not in the manifest",
        "sub/note.txt: gone",
    ]
    (folder / "model.safetensors").write_bytes(b"short")
    assert any("5 bytes" in fault for fault in quick_faults(folder, manifest))


def test_folders_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    manifest = take_manifest(folder)
    assert quick_faults(tmp_path / "gone", manifest) == [f"{tmp_path}/gone: the folder is gone"]
    with pytest.raises(BadInputError):
        take_manifest(tmp_path / "gone")


def test_a_link_to_a_folder_is_not_passed_over(folder: Path, tmp_path: Path) -> None:
    (folder / "more").symlink_to(tmp_path)
    with pytest.raises(BadInputError):
        take_manifest(folder)
