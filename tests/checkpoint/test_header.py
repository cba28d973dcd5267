from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tasks.checkpoint.header import HeaderError, read_header
from tasks.checkpoint.write import write_shard


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(start: int, end: int, shape: Any = None, dtype: Any = "U8") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [end - start] if shape is None else shape,
        "data_offsets": [start, end],
    }


def code_of(path: Path) -> str:
    with pytest.raises(HeaderError) as caught:
        read_header(path)
    return caught.value.code


def test_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_shard(path, [("x", "U8", (3,))], [("x", np.arange(3, dtype=np.uint8))])
    (tensor,) = read_header(path).tensors
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) == ("x", "U8", (3,), 3)
    assert path.read_bytes()[tensor.start :] == bytes([0, 1, 2])


def test_the_safetensors_library_agrees(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    arrays = {
        "wide": np.arange(6, dtype=np.float64).reshape(2, 3),
        "narrow": np.arange(5, dtype=np.uint8),
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.asarray(np.float32(2.5)),
    }
    save_file(arrays, theirs)
    assert {t.name: t.shape for t in read_header(theirs).tensors} == {
        name: array.shape for name, array in arrays.items()
    }
    names = {"wide": "F64", "narrow": "U8", "none": "F32", "scalar": "F32"}
    write_shard(ours, [(n, d, arrays[n].shape) for n, d in names.items()], arrays.items())
    for name, array in load_file(ours).items():
        np.testing.assert_array_equal(array, arrays[name])


@pytest.mark.parametrize(
    ("header", "data", "code"),
    [
        (b"not json", b"", "shard-unreadable"),
        (b"[1, 2]", b"", "shard-unreadable"),
        (b"[" * 100_000, b"", "shard-unreadable"),
        ({"a": 5}, b"", "shard-unreadable"),
        ({"a": entry(0, 4, dtype="F7")}, b"1234", "shard-unreadable"),
        ({"a": entry(0, 4, dtype=None)}, b"1234", "shard-unreadable"),
        ({"a": entry(0, 4, shape=[-4])}, b"1234", "shard-unreadable"),
        ({"a": entry(0, 4, shape=[True, 4])}, b"1234", "shard-unreadable"),
        ({"a": entry(0, 4, shape=[2**62, 2**62])}, b"1234", "shard-unreadable"),
        ({"a": entry(0, 4, shape=[3])}, b"1234", "shard-unreadable"),
        ({"a": entry(1, 4)}, b"1234", "shard-unreadable"),
        ({"a": entry(0, 4), "b": entry(2, 6)}, b"123456", "shard-unreadable"),
        ({"a": entry(0, 4), "b": entry(5, 6)}, b"123456", "shard-unreadable"),
        ({"a": entry(0, 4)}, b"123", "shard-truncated"),
        ({"a": entry(0, 4)}, b"12345", "shard-trailing"),
        ({"__metadata__": 3, "a": entry(0, 4)}, b"1234", "shard-unreadable"),
        (b'{"a":1,"a":1}', b"", "tensor-twice"),
    ],
)
def test_hostile_headers(tmp_path: Path, header: Any, data: bytes, code: str) -> None:
    assert code_of(raw_file(tmp_path / "a.safetensors", header, data)) == code


def test_lengths_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes((2**60).to_bytes(8, "little") + b"{}")
    assert code_of(path) == "shard-unreadable"
    path.write_bytes((50).to_bytes(8, "little") + b"{}")
    assert code_of(path) == "shard-truncated"
    path.write_bytes(b"")
    assert code_of(path) == "shard-truncated"


def test_folder_and_pipe_do_not_block(tmp_path: Path) -> None:
    import os

    assert code_of(tmp_path) == "shard-unreadable"
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert code_of(tmp_path / "pipe.safetensors") == "shard-unreadable"


def test_bf16_and_fp8_come_as_ml_dtypes(tmp_path: Path) -> None:
    from tasks.checkpoint.files import CheckpointFiles

    arrays = {
        "a": np.array([1.5, -2], ml_dtypes.bfloat16),
        "b": np.array([448, 0.5], ml_dtypes.float8_e4m3fn),
    }
    write_shard(
        tmp_path / "model.safetensors",
        [("b", "F8_E4M3", (2,)), ("a", "BF16", (2,))],
        arrays.items(),
    )
    (tmp_path / "config.json").write_text("{}")
    files = CheckpointFiles.open(tmp_path)
    for name, array in arrays.items():
        held = files.array(name)
        assert held.dtype == array.dtype
        np.testing.assert_array_equal(held, array)
        assert not held.flags.writeable
