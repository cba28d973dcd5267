"""A checkpoint's tensors as plain values, decoded one by one as they are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import QuantgateError

BLOCK = 16
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_FLOATS = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}


class LoadError(QuantgateError):
    """The checkpoint cannot be served: a tensor is missing, or has a wrong shape or type."""


class PlainTensors(Mapping[str, Tensor]):
    """Name -> values in float32; packed NVFP4 weights come decoded, scales are not listed.

    Values are taken as they are: this is an engine, not an audit.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files
        scales = (".weight_scale", ".weight_scale_2", ".input_scale", ".k_scale", ".v_scale")
        self._names = [name for name in files.tensors if not name.endswith(scales)]

    def __getitem__(self, name: str) -> Tensor:
        info = self.files.tensors[name]
        if info.dtype == "U8":
            return self._nvfp4(name)
        if info.dtype not in ("BF16", "F16", "F32", "F64"):
            raise LoadError(
                "dtype-mismatch",
                f"`{name}` is {info.dtype}, which this engine does not serve.",
                "Serve a BF16 source or an NVFP4 checkpoint.",
            )
        return self.raw(name).to(torch.float32)

    def __contains__(self, name: object) -> bool:
        return name in self.files.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def raw(self, name: str) -> Tensor:
        """The tensor as it is stored, without a copy.

        Raises:
            LoadError: it is missing.
        """
        info = self.files.tensors.get(name)
        if info is None:
            raise LoadError("tensor-missing", f"`{name}` is missing.", "Make the checkpoint again.")
        array = self.files.array(name)
        special = _FLOATS.get(info.dtype)
        if special is not None:
            array = array.view(np.uint16 if special is torch.bfloat16 else np.uint8)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")
            tensor = torch.from_numpy(array)
        return tensor if special is None else tensor.view(special)

    def scalar(self, name: str, default: float) -> float:
        """A one-element tensor's value, or `default` where there is none."""
        if name not in self.files.tensors:
            return default
        return float(self.raw(name).to(torch.float32).flatten()[0])

    def quantized(self, prefix: str) -> bool:
        """Whether any packed weight's name starts with `prefix`."""
        return any(
            name.startswith(prefix) and info.dtype == "U8"
            for name, info in self.files.tensors.items()
        )

    def _nvfp4(self, name: str) -> Tensor:
        packed = self.raw(name)
        scale = self.raw(f"{name}_scale").to(torch.float32)
        overall = self.raw(f"{name}_scale_2").to(torch.float32).flatten()
        blocks = (*packed.shape[:-1], packed.shape[-1] * 2 // BLOCK)
        if scale.shape != blocks or len(overall) != 1:
            raise LoadError(
                "shape-mismatch",
                f"`{name}_scale` has shape {list(scale.shape)}, the weight needs {list(blocks)}.",
                "Make the checkpoint again.",
            )
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
        values = _E2M1[codes.int()].unflatten(-1, (-1, BLOCK))
        return (values * (scale * overall).unsqueeze(-1)).flatten(-2)


def kv_is_fp8(files: CheckpointFiles) -> bool:
    """Whether the checkpoint asks for an FP8 cache, in either config that can say so."""
    theirs = (files.quant_config or {}).get("quantization") or {}
    scheme = (files.config.get("quantization_config") or {}).get("kv_cache_scheme") or {}
    return theirs.get("kv_cache_quant_algo") == "FP8" or (
        scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    )
