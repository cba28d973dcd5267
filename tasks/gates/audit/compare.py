"""Recompute a checkpoint's weights from the source, scales and codes, as a right packer does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tasks.checkpoint.files import CheckpointFiles, TensorInfo
from tasks.gates.audit.model import Module
from tasks.gates.audit.nvfp4 import (
    bf16_bits_to_f32,
    block_amax_bits,
    decode,
    encode,
    scale_2_of,
    scales_of,
    step_of,
)
from tasks.gates.audit.source import SourceWeights
from tasks.gates.audit.values import Found, fits, pieces

Array = np.ndarray[Any, Any]
ROWS = 2**18
"""Elements that are recomputed in one go: they stay in the processor's cache."""
SAMPLE = 2**16
"""Elements from which the relative error of a right tensor is taken."""
MOST_ERROR = 0.25
"""Relative error (RMS) above which a weight is unlike its source; NVFP4 gives about 0.1."""
TIES = 1e-4
"""Share of codes or block scales that may differ by one: another device's rounding of ties."""


@dataclass
class Compared:
    """What comparing one group of weights with the source gave."""

    found: list[Found] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    proven: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    nbytes: int = 0


def compare_packed(
    files: CheckpointFiles, source: SourceWeights, members: list[Module]
) -> Compared:
    """Compare the packed weights of one group that shares an amax with the source's."""
    out = Compared()
    held: list[tuple[Module, Array]] = []
    for module in members:
        assert module.weight is not None
        values = source.weight(module.weight.name)
        if values is None:
            out.missing.append(module.weight.name)
            continue
        rows, half = module.weight.shape if len(module.weight.shape) == 2 else (0, 0)
        if values.shape != (rows, 2 * half):
            what = f"Packs {[rows, 2 * half]}, the source has {list(values.shape)}."
            out.found.append(("source-mismatch", module.weight.name, what))
            continue
        out.nbytes += values.nbytes
        held.append((module, _bits(values)))
    if not held:
        return out
    maxima = [block_amax_bits(bits) for _, bits in held]
    amax = max(float(bf16_bits_to_f32(np.atleast_1d(m.max()))[0]) for m in maxima)
    wanted = scale_2_of(amax) if len(held) == len(members) and amax > 0 else None
    for (module, bits), blocks in zip(held, maxima, strict=True):
        _compare_one(files, module, bits, blocks, wanted, out)
    return out


def compare_plain(files: CheckpointFiles, source: SourceWeights, info: TensorInfo) -> Compared:
    """Compare a tensor that is not quantized with the source's: equal, once in the same dtype."""
    out = Compared()
    wanted = source.weight(info.name)
    if wanted is None:
        out.missing.append(info.name)
        return out
    out.nbytes = wanted.nbytes
    if wanted.shape != info.shape:
        what = f"Is {list(info.shape)}, the source has {list(wanted.shape)}."
        out.found.append(("source-mismatch", info.name, what))
        return out
    differ = _differing(files.array_at(info), wanted)
    if differ:
        what = f"{differ} of {wanted.size} values differ from the source."
        out.found.append(("source-mismatch", info.name, what))
    return out


def _compare_one(
    files: CheckpointFiles,
    module: Module,
    bits: Array,
    blocks: Array,
    wanted: np.float32 | None,
    out: Compared,
) -> None:
    weight, scale = module.weight, module.tensors.get(".weight_scale")
    second = module.tensors.get(".weight_scale_2")
    assert weight is not None
    if scale is None or second is None or not fits(weight, scale) or second.dtype != "F32":
        return
    scale_2 = np.float32(files.array(second.name).reshape(-1)[0])
    if not (np.isfinite(scale_2) and scale_2 > 0):
        return
    before = len(out.found)
    if wanted is not None and not math.isclose(scale_2, wanted, rel_tol=1e-6):
        what = f"Is {scale_2:.9g}, the source's amax / 2688 is {wanted:.9g}."
        out.found.append(("source-mismatch", second.name, what))
    codes, stored = files.array(weight.name), files.array(scale.name).view(np.uint8)
    expected = scales_of(bf16_bits_to_f32(blocks), wanted or scale_2)
    off = np.abs(stored.astype(np.int16) - expected.astype(np.int16))
    if int(off.max()) > 1 or np.count_nonzero(off) > TIES * off.size:
        what = f"{int(np.count_nonzero(off))} of {off.size} block scales are not the source's."
        out.found.append(("source-mismatch", scale.name, what))
    step = step_of(stored, scale_2)
    if len(out.found) > before:
        # Codes follow the right scales: judge them by those, so that each fault is told once.
        step = step_of(expected, wanted or scale_2)
    wrong = _wrong_codes(codes, bits, step)
    error = _relative_error(codes, bits, step_of(stored, scale_2), whole=wrong > 0)
    out.errors[module.name] = error
    if wrong or not error <= MOST_ERROR:
        what = f"{wrong} of {bits.size} codes are not the source's; relative error {error:.3f}."
        out.found.append(("source-mismatch", weight.name, what))
    if len(out.found) == before:
        out.proven.add(module.name)


def _wrong_codes(codes: Array, bits: Array, step: Array) -> int:
    wrong = 0
    rows = max(1, ROWS // bits.shape[1])
    for start in range(0, bits.shape[0], rows):
        part = slice(start, start + rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            right = encode(bits[part], step[part])
        if not np.array_equal(right, codes[part]):
            wrong += _beyond_ties(bf16_bits_to_f32(bits[part]), step[part], right, codes[part])
    return wrong


def _beyond_ties(weight: Array, step: Array, right: Array, codes: Array) -> int:
    """Codes that differ, those apart whose value lies half-way between both within rounding."""
    a, b = decode(right, step), decode(codes, step)
    width = np.abs(a - b)
    half_way = np.abs(np.abs(weight - a) - np.abs(weight - b)) <= 1e-5 * np.abs(weight)
    return int(np.count_nonzero((width > 0) & ~half_way))


def _relative_error(codes: Array, bits: Array, step: Array, *, whole: bool) -> float:
    rows = bits.shape[0] if whole else max(1, min(bits.shape[0], SAMPLE // bits.shape[1]))
    lost = total = 0.0
    size = max(1, ROWS // bits.shape[1])
    for start in range(0, rows, size):
        part = slice(start, min(rows, start + size))
        weight = bf16_bits_to_f32(bits[part])
        off = decode(codes[part], step[part]) - weight
        lost += float((off * off).sum(dtype=np.float64))
        total += float((weight * weight).sum(dtype=np.float64))
    return math.sqrt(lost / total) if total > 0 else (0.0 if lost == 0 else math.inf)


def _bits(values: Array) -> Array:
    """BF16 bit patterns uint16 of a weight; other dtypes are rounded to BF16 first."""
    if values.dtype != ml_dtypes.bfloat16:
        values = values.astype(ml_dtypes.bfloat16)
    return values.view(np.uint16)


def _differing(values: Array, wanted: Array) -> int:
    """How many values differ bit by bit, the source's cast to the checkpoint's dtype."""
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[values.dtype.itemsize]
    pairs = zip(pieces(values.reshape(-1)), pieces(wanted.reshape(-1)), strict=True)
    return sum(
        int(np.count_nonzero(a.view(kind) != b.astype(a.dtype, copy=False).view(kind)))
        for a, b in pairs
    )
