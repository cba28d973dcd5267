"""BF16 weights -> NVFP4, bit for bit as ModelOpt's NVFP4QTensor packs them, in few passes.

The formulas are ModelOpt's (0.47, `NVFP4QTensor`), in float32 throughout:

- weight_scale_2 = amax / (6 * 448)
- block scale = E4M3(clamp(block_amax / (6 * weight_scale_2), 2^-9, 448)), a zero becoming 1 first
- code = E2M1(value / (block scale * weight_scale_2)), ties to even; two codes a byte, the even
  element in the low nibble; a quotient of zero has no sign

Numpy works best on long rows, so a chunk of blocks is laid out as [16, blocks]: what is per block
is then a contiguous row, and the working set stays in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tasks.errors import BadInputError

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
SMALLEST_SCALE = 2.0**-9
CHUNK = 4096
"""Blocks at a time: 64 Ki values, 256 KiB in float32."""

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_MAGNITUDE = np.uint16(0x7FFF)
_INFINITY = 0x7F80

Array = np.ndarray[Any, Any]


class Packed(NamedTuple):
    """A quantized weight: uint8 [N, K/2], float8_e4m3fn [N, K/16], float32 []."""

    weight: Array
    weight_scale: Array
    weight_scale_2: Array


def amax_of(weights: Sequence[Array], name: str) -> np.float32:
    """Largest magnitude over BF16 arrays that share one weight_scale_2; `name` is for errors.

    Raises:
        BadInputError: `weight-nonfinite`; `weight-zero`, from which no scale can be made.
    """
    largest = max(_largest(weight) for weight in weights)
    if largest >= _INFINITY:
        raise BadInputError(
            "weight-nonfinite", f"{name}: NaN or infinity in the weight.", "Fetch the source again."
        )
    if largest == 0:
        raise BadInputError(
            "weight-zero",
            f"{name}: every value is zero, so it has no NVFP4 scale.",
            "Check the source: a trained model has no such tensor.",
        )
    value: np.float32 = np.array(largest, np.uint16).view(BF16).astype(np.float32)[()]
    return value


def scale_2_of(amax: np.float32) -> np.float32:
    """amax -> weight_scale_2, and likewise input_scale."""
    return np.float32(amax) / np.float32(E2M1_MAX * E4M3_MAX)


def pack(weight: Array, amax: np.float32) -> Packed:
    """Quantize a BF16 [N, K] weight, K a multiple of 16, under the amax of its group.

    Raises:
        ValueError: another dtype, or K is no multiple of 16.
    """
    rows, columns = weight.shape
    if weight.dtype != BF16 or columns % BLOCK:
        raise ValueError(f"want bfloat16 [N, 16*M], got {weight.dtype} {weight.shape}")
    scale_2 = scale_2_of(amax)
    blocks = np.ascontiguousarray(weight).view(np.uint16).reshape(-1, BLOCK)
    codes = np.empty((len(blocks), BLOCK // 2), np.uint8)
    scales = np.empty(len(blocks), E4M3)
    room = _Room(min(CHUNK, len(blocks)))
    with np.errstate(over="ignore", under="ignore"):
        for start in range(0, len(blocks), CHUNK):
            part = slice(start, start + CHUNK)
            room.pack(blocks[part], scale_2, codes[part], scales[part])
    return Packed(
        codes.reshape(rows, columns // 2),
        scales.reshape(rows, columns // BLOCK),
        np.array(scale_2, np.float32),
    )


def block_scales(block_amax: Array, scale_2: np.float32) -> Array:
    """float32 block maxima -> float8_e4m3fn block scales."""
    scales = block_amax / (np.float32(E2M1_MAX) * scale_2)
    scales[scales == 0] = 1.0
    return np.clip(scales, SMALLEST_SCALE, E4M3_MAX).astype(E4M3)


class _Room:
    """The buffers of one chunk, reused from chunk to chunk."""

    def __init__(self, blocks: int) -> None:
        shape = (BLOCK, blocks)
        self.bits = np.empty(shape, np.uint16)
        self.magnitude = np.empty(shape, np.uint16)
        self.values = np.empty(shape, np.float32)
        self.fine = np.empty(shape, np.float32)
        self.middle = np.empty(shape, np.float32)
        self.codes = np.empty(shape, np.uint8)
        self.negative = np.empty(shape, np.bool_)
        self.positive = np.empty(shape, np.bool_)

    def pack(self, blocks: Array, scale_2: np.float32, codes: Array, scales: Array) -> None:
        """uint16 [blocks, 16] -> codes uint8 [blocks, 8], scales float8_e4m3fn [blocks]."""
        count = len(blocks)
        bits, magnitude = self.bits[:, :count], self.magnitude[:, :count]
        bits[...] = blocks.T
        np.bitwise_and(bits, _MAGNITUDE, out=magnitude)
        block_amax = _widen(magnitude.max(axis=0))
        scales[...] = block_scales(block_amax, scale_2)
        values = self.values[:, :count]
        wide = values.view(np.uint32)
        wide[...] = magnitude
        np.left_shift(wide, 16, out=wide)
        np.divide(values, scales.astype(np.float32) * scale_2, out=values)
        negative, positive = self.negative[:, :count], self.positive[:, :count]
        np.greater(bits, np.uint16(0x8000), out=negative)
        np.greater(values, 0, out=positive)
        np.logical_and(negative, positive, out=negative)
        out = self.codes[:, :count]
        self._round(count, out)
        sign = negative.view(np.uint8)
        np.left_shift(sign, 3, out=sign)
        np.bitwise_or(out, sign, out=out)
        high = out[1::2]
        np.left_shift(high, 4, out=high)
        np.bitwise_or(out[0::2], high, out=high)
        codes[...] = high.T

    def _round(self, count: int, out: Array) -> None:
        """Magnitudes -> E2M1 codes 0 to 7.

        The grid has steps of 1/2 up to 2, of 1 up to 4, of 2 up to 6. Rounding on each of the
        three grids gives a code that is right inside its range and too large outside.
        """
        values, fine, middle = (b[:, :count] for b in (self.values, self.fine, self.middle))
        np.add(values, values, out=fine)
        np.rint(fine, out=fine)
        np.rint(values, out=middle)
        np.add(middle, 2, out=middle)
        np.minimum(fine, middle, out=fine)
        np.multiply(values, 0.5, out=values)
        np.rint(values, out=values)
        np.add(values, 4, out=values)
        np.minimum(fine, values, out=fine)
        np.minimum(fine, 7, out=fine)
        np.copyto(out, fine, casting="unsafe")


def _widen(bits: Array) -> Array:
    """Bits of BF16 in uint16 -> the values in float32."""
    return np.left_shift(bits.astype(np.uint32), 16).view(np.float32)


def _largest(weight: Array) -> int:
    """Bits of the largest magnitude, taken in pieces that stay in the cache."""
    flat = np.ascontiguousarray(weight).reshape(-1).view(np.uint16)
    step = CHUNK * BLOCK
    return max(
        int((flat[start : start + step] & _MAGNITUDE).max()) for start in range(0, len(flat), step)
    )
