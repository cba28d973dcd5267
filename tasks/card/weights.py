"""What is quantized and what is not, counted from the files' headers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from tasks.architectures import Architecture, architecture_of, classify
from tasks.artifacts import Record
from tasks.checkpoint.files import CheckpointFiles, TensorInfo

CODES_PER_BYTE = 2
"""NVFP4 packs two 4-bit codes a byte."""


class ModuleCount(Record):
    """Modules of one class and one precision."""

    part: str = Field(description="main model or draft head")
    module_class: str
    precision: str = Field(description="NVFP4, or the dtype as safetensors spells it")
    modules: int
    parameters: int
    nbytes: int = Field(description="bytes on disk, scales included")


class Weights(Record):
    """A checkpoint's weights in numbers."""

    nbytes: int = Field(description="bytes of all tensors")
    parameters: int = Field(description="weights; scales are not counted")
    bits_per_weight: float = Field(description="8 * nbytes / parameters")
    quantized_parameters: int
    quantized_share: float = Field(description="of the parameters")
    source_nbytes: int
    source_bits_per_weight: float
    share_of_source: float = Field(description="nbytes / source_nbytes")
    modules: tuple[ModuleCount, ...]


def measure_weights(checkpoint: Path, source: Path) -> Weights:
    """Count a checkpoint's tensors by class and precision, next to its source's size.

    Headers only. A weight counts once: its scales add bytes and no parameters.

    Raises:
        BadInputError: either folder is no checkpoint.
    """
    files = CheckpointFiles.open(checkpoint)
    origin = CheckpointFiles.open(source, as_source=True)
    architecture = architecture_of(files.config, str(checkpoint / "config.json"))
    counts: dict[tuple[str, str, str], list[int]] = {}
    for key, parameters, nbytes, is_module in _rows(architecture, files):
        row = counts.setdefault(key, [0, 0, 0])
        row[0] += is_module
        row[1] += parameters
        row[2] += nbytes
    modules = tuple(
        ModuleCount(
            part=part, module_class=name, precision=precision, modules=n, parameters=p, nbytes=b
        )
        for (part, name, precision), (n, p, b) in sorted(counts.items(), key=_order)
    )
    return _totals(modules, origin)


def _totals(modules: tuple[ModuleCount, ...], origin: CheckpointFiles) -> Weights:
    nbytes = sum(row.nbytes for row in modules)
    parameters = sum(row.parameters for row in modules)
    quantized = sum(row.parameters for row in modules if row.precision == "NVFP4")
    source_nbytes = sum(tensor.nbytes for tensor in origin.tensors.values())
    source_parameters = sum(
        math.prod(tensor.shape)
        for tensor in origin.tensors.values()
        if not tensor.name.endswith(("_scale", "_scale_inv", "_scale_2"))
    )
    return Weights(
        nbytes=nbytes,
        parameters=parameters,
        bits_per_weight=8 * nbytes / parameters,
        quantized_parameters=quantized,
        quantized_share=quantized / parameters,
        source_nbytes=source_nbytes,
        source_bits_per_weight=8 * source_nbytes / source_parameters,
        share_of_source=nbytes / source_nbytes,
        modules=modules,
    )


def _rows(
    architecture: Architecture, files: CheckpointFiles
) -> Iterator[tuple[tuple[str, str, str], int, int, bool]]:
    """((part, class, precision), parameters, bytes, counts as a module) for every tensor."""
    for name, tensor in files.tensors.items():
        match = classify(architecture, name)
        if match is None:
            part = "draft head" if name.startswith("mtp.") else "main model"
            yield (part, "other", tensor.dtype), math.prod(tensor.shape), tensor.nbytes, True
            continue
        owner = files.tensors.get(f"{match.module}.weight", tensor)
        packed = _is_packed(files, owner)
        key = (
            "draft head" if match.draft else "main model",
            match.module_class.name,
            "NVFP4" if packed else owner.dtype,
        )
        is_weight = match.suffix in ("", ".weight", ".bias")
        parameters = math.prod(tensor.shape) if is_weight else 0
        if packed and match.suffix == ".weight":
            parameters *= CODES_PER_BYTE
        yield key, parameters, tensor.nbytes, match.suffix in ("", ".weight")


def _is_packed(files: CheckpointFiles, weight: TensorInfo) -> bool:
    return weight.dtype == "U8" and f"{weight.name}_scale" in files.tensors


def _order(item: tuple[tuple[str, str, str], Any]) -> tuple[bool, bool, int]:
    (part, _, precision), (_, parameters, _) = item
    return part != "main model", precision != "NVFP4", -parameters
