"""The source's weights under the names that a quantized checkpoint gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasks.architectures import Architecture, draft_layout
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError

Array = np.ndarray[Any, Any]
FP8_BLOCK = 128

FUSED = {"gate_proj": ("gate_up_proj", 0, 2), "up_proj": ("gate_up_proj", 1, 2)}
"""Leaf -> (fused tensor [E, n*rows, columns], which part of its rows, of how many)."""


class SourceWeights:
    """Looks up a module's source weight, whatever layout the source keeps it in."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files

    @classmethod
    def open(cls, root: Path) -> SourceWeights:
        """Open the source folder `root`.

        Raises:
            BadInputError: it cannot be read as a model's folder.
        """
        return cls(CheckpointFiles.open(root, as_source=True))

    def weight(self, tensor: str) -> Array | None:
        """The source's values of the checkpoint's tensor `tensor`; None when it has none.

        BF16 comes as stored and without a copy, FP8 with block scales as float32.
        """
        if tensor in self.files.tensors:
            return self._plain(tensor)
        module = tensor.removesuffix(".weight")
        parent, _, leaf = module.rpartition(".")
        experts, _, index = parent.rpartition(".")
        if not index.isdigit() or not experts.endswith(".experts"):
            return None
        fused, part, of = FUSED.get(leaf, (leaf, 0, 1))
        name = f"{experts}.{fused}"
        if name not in self.files.tensors:
            return None
        info = self.files.tensors[name]
        expert = int(index)
        if len(info.shape) != 3 or expert >= info.shape[0] or info.shape[1] % of:
            return None
        rows = info.shape[1] // of
        block = slice(part * rows, (part + 1) * rows)
        values = self.files.array(name)[expert]
        inverse = self._inverse(name)
        if inverse is None:
            return np.asarray(values[block])
        return _dequantized(values, inverse[expert])[block]

    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(info.nbytes for info in self.files.tensors.values())

    def draft_layout(self, architecture: Architecture) -> str | None:
        """Name of its draft head's layout; None without a draft head that is known."""
        try:
            layout = draft_layout(architecture, self.files.config, self.files.tensors, "")
        except BadInputError:
            return None
        return layout.name

    def names(self) -> list[str]:
        """All its tensors but fused experts and FP8 scales: what a checkpoint has by that name."""
        fused = ("experts.gate_up_proj", "experts.down_proj")
        return [
            name
            for name in self.files.tensors
            if not name.endswith(fused) and not name.endswith("_scale_inv")
        ]

    def _plain(self, name: str) -> Array:
        inverse = self._inverse(name)
        values = self.files.array(name)
        return values if inverse is None else _dequantized(values, inverse)

    def _inverse(self, name: str) -> Array | None:
        for suffix in ("_scale_inv", "_scale"):
            scale = f"{name}{suffix}"
            if self.files.tensors[name].dtype == "F8_E4M3" and scale in self.files.tensors:
                return self.files.array(scale)
        return None


def _dequantized(values: Array, inverse: Array) -> Array:
    """FP8 [N, K] with a scale for each 128x128 block -> BF16, as the requantizer reads it."""
    import ml_dtypes

    rows, columns = values.shape
    wide = np.repeat(np.repeat(inverse.astype(np.float32), FP8_BLOCK, 0), FP8_BLOCK, 1)
    product = values.astype(np.float32) * wide[:rows, :columns]
    return product.astype(ml_dtypes.bfloat16)
