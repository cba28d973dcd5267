"""How large a release will be, told from the source's headers alone."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.architectures import Architecture, classify
from tasks.checkpoint.files import CheckpointFiles, TensorInfo
from tasks.errors import BadInputError
from tasks.spec import DraftSpec, QFormat

MARGIN = 1.05
"""Scales per tensor, headers, tokenizer: what the estimate leaves out."""


def estimate_bytes(
    files: CheckpointFiles, architecture: Architecture, qformat: QFormat, draft: DraftSpec
) -> int:
    """Bytes that the quantized checkpoint and its draft head will take.

    NVFP4 takes half a byte a value and one FP8 scale for 16 of them; all else two bytes a value.
    """
    return math.ceil(MARGIN * sum(_sizes(files, architecture, qformat, draft)))


def require_space(folder: Path, needed: int) -> None:
    """Check that `needed` bytes fit where `folder` lies (it need not exist yet).

    Raises:
        BadInputError: `no-space`.
    """
    free = free_bytes(folder)
    if free < needed:
        raise BadInputError(
            "no-space",
            f"{folder}: {free / 2**30:.2f} GiB free, the output needs {needed / 2**30:.2f} GiB.",
            "Free some space (quantgate store gc) or give another --root.",
        )


def free_bytes(folder: Path) -> int:
    """Free bytes of the file system that holds `folder` or its nearest existing parent."""
    here = folder.resolve()
    while not here.exists():
        here = here.parent
    return shutil.disk_usage(here).free


def _sizes(
    files: CheckpointFiles, architecture: Architecture, qformat: QFormat, draft: DraftSpec
) -> Iterator[float]:
    for name, info in files.tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if name.startswith("mtp.") and draft.precision != "nvfp4":
            yield 2.0 * math.prod(info.shape) * (draft.precision == "bf16")
            continue
        yield math.prod(info.shape) * _bytes_a_value(architecture, info, qformat)


def _bytes_a_value(architecture: Architecture, info: TensorInfo, qformat: QFormat) -> float:
    fused = info.name.rpartition(".")[2] in architecture.fused_experts
    match = classify(architecture, info.name)
    quantized = fused or (match is not None and qformat in match.module_class.quantized_in)
    return 0.5 + 1 / 16 if quantized else 2.0
