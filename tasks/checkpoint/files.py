"""A checkpoint folder, opened: its configs, its tensors, and their bytes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from tasks.checkpoint.header import DTYPES, TensorInfo, open_regular
from tasks.checkpoint.survey import INDEX, Survey, survey, walk_files
from tasks.errors import BadInputError

__all__ = ["CheckpointFiles", "TensorInfo"]


class CheckpointFiles:
    """The tensors and files of one checkpoint folder.

    `tensors` maps each tensor's name to its `TensorInfo`; `array` gives its values without a copy.
    Shards are mapped into memory on first use, so only what is read costs memory.

    Example:
        files = CheckpointFiles.open(Path("model"))
        scale = files.array("model.layers.0.self_attn.q_proj.weight_scale_2")
    """

    def __init__(self, found: Survey) -> None:
        self.root = found.root
        self.config: dict[str, Any] = found.config
        self.quant_config: dict[str, Any] | None = found.quant_config
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(found.tensors)
        self.shards: tuple[str, ...] = found.shards
        self._maps: dict[str, mmap.mmap] = {}

    @classmethod
    def open(cls, root: Path, *, as_source: bool = False) -> CheckpointFiles:
        """Open the folder `root`, single-file or sharded.

        Args:
            root: the folder.
            as_source: also take in weight files that the index does not list, and allow links
                that lead out of the folder. Off, both are errors.

        Raises:
            BadInputError: the first structural fault: `not-a-folder`, `config-missing`,
                `config-unreadable`, `quant-config-unreadable`, `index-unreadable`,
                `index-missing`, `index-mismatch`, `total-size`, `shard-name`, `shard-missing`,
                `shard-truncated`, `shard-trailing`, `shard-unreadable`, `tensor-twice`.
        """
        root = Path(root)
        if not root.is_dir():
            raise BadInputError("not-a-folder", f"{root}: no folder.", "Give a model's folder.")
        found = survey(root, as_source=as_source)
        if found.problems:
            first = found.problems[0]
            more = f" ({len(found.problems) - 1} more faults.)" if len(found.problems) > 1 else ""
            raise BadInputError(
                first.code,
                f"{root}: {first.where}: {first.detail}{more}",
                "Fetch or write the folder again.",
            )
        return cls(found)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """The values of one tensor: a read-only view of the mapped file.

        BF16 and FP8 come as ml_dtypes' bfloat16 and float8_e4m3fn.

        Raises:
            KeyError: no such tensor.
        """
        return self.array_at(self.tensors[name])

    def array_at(self, info: TensorInfo) -> np.ndarray[Any, Any]:
        """The values that lie where `info` says; it may be a part of a stored tensor."""
        dtype = DTYPES[info.dtype]
        if info.nbytes == 0:
            return np.empty(info.shape, dtype)
        count = info.nbytes // dtype.itemsize
        flat = np.frombuffer(self._map(info.file), dtype, count, info.start)
        return flat.reshape(info.shape)

    def sidecars(self) -> tuple[str, ...]:
        """Relative paths of every file that is neither a weight shard nor the index."""
        return tuple(
            name
            for name in walk_files(self.root)
            if name != INDEX and not name.endswith(".safetensors")
        )

    def relax(self) -> None:
        """Give back the memory of all pages read so far; they are read again when needed."""
        for mapped in list(self._maps.values()):
            mapped.madvise(mmap.MADV_DONTNEED)

    def release(self) -> None:
        """Drop the mappings; arrays already handed out stay valid."""
        self._maps.clear()

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            descriptor = open_regular(self.root / file)
            try:
                self._maps[file] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        return self._maps[file]
