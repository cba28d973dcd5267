"""BF16 weights -> NVFP4, bit for bit as ModelOpt's NVFP4QTensor packs them, in few passes.

The formulas are ModelOpt's (0.47, `NVFP4QTensor`), in float32 throughout:

- weight_scale_2 = amax / (6 * 448)
- block scale = E4M3(clamp(block_amax / (6 * weight_scale_2), 2^-9, 448)), a zero becoming 1 first
- code = E2M1(value / (block scale * weight_scale_2)), ties to even; two codes a byte, the even
  element in the low nibble; a quotient of zero has no sign

Two things make it fast. Under one weight_scale_2 there are 126 block scales at most, and under one
block scale a code is a step function of the BF16 bits: the seven bits patterns at which it steps
are found once (by the very division above), and then each value costs seven 16-bit comparisons
and no arithmetic. And numpy works best on long rows, so blocks are laid out as [16, blocks], where
what belongs to a block is a contiguous row.
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
CHUNK = 16384
"""Blocks at a time: 256 Ki values, whose buffers stay in the cache."""

_STEPS = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
_STEPS[[2, 4, 6]] = np.nextafter(_STEPS[[2, 4, 6]], np.float32(0))
"""A quotient over the i-th has a code of i at least; over the first, a sign. Ties go to even codes,
so 0.75, 1.75 and 3.5 are passed by being reached."""

BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_MAGNITUDE = np.uint16(0x7FFF)
_SIGN = np.uint16(0x8000)
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
        ValueError: another dtype, K is no multiple of 16, or a value over amax.
    """
    return Grid(amax).pack(weight)


class Grid:
    """All that one amax decides: the block scales, and where codes step under each of them."""

    def __init__(self, amax: np.float32) -> None:
        self.scale_2 = scale_2_of(amax)
        self.largest = int(np.float32(amax).view(np.uint32)) >> 16
        with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
            magnitudes = _widen(np.arange(self.largest + 1, dtype=np.uint16))
            self._scales = block_scales(magnitudes, self.scale_2).view(np.uint8)
            self._steps = _steps(self.scale_2)

    def pack(self, weight: Array) -> Packed:
        """As the function `pack`."""
        rows, columns = weight.shape
        if weight.dtype != BF16 or columns % BLOCK:
            raise ValueError(f"want bfloat16 [N, 16*M], got {weight.dtype} {weight.shape}")
        blocks = np.ascontiguousarray(weight).view(np.uint16).reshape(-1, BLOCK)
        codes = np.empty((len(blocks), BLOCK // 2), np.uint8)
        scales = np.empty(len(blocks), np.uint8)
        room = _Room.of(min(CHUNK, len(blocks)))
        for start in range(0, len(blocks), CHUNK):
            part = slice(start, start + CHUNK)
            self._pack(blocks[part], codes[part], scales[part], room)
        return Packed(
            codes.reshape(rows, columns // 2),
            scales.view(E4M3).reshape(rows, columns // BLOCK),
            np.array(self.scale_2, np.float32),
        )

    def _pack(self, blocks: Array, codes: Array, scales: Array, room: _Room) -> None:
        """uint16 [blocks, 16] -> codes uint8 [blocks, 8], scales uint8 [blocks]."""
        count = len(blocks)
        bits, sign, over, code = (buffer[:, :count] for buffer in room)
        bits[...] = blocks.T
        np.greater(bits, _SIGN, out=sign)
        np.bitwise_and(bits, _MAGNITUDE, out=bits)
        block_amax = bits.max(axis=0).astype(np.intp)
        if block_amax.max() > self.largest:
            raise ValueError("a value is larger than amax")
        np.take(self._scales, block_amax, out=scales)
        rows = self._steps.take(scales.astype(np.intp)).view(np.uint16).reshape(-1, len(_STEPS))
        signed, *steps = np.ascontiguousarray(rows.T)
        np.greater_equal(bits, steps[0], out=code.view(np.bool_))
        for step in steps[1:]:
            np.greater_equal(bits, step, out=over)
            np.add(code, over.view(np.uint8), out=code)
        if signed.max() > 1:  # some quotients underflow to zero
            np.logical_and(sign, np.greater_equal(bits, signed, out=over), out=sign)
        room.join()
        for pair in range(BLOCK // 2):
            np.bitwise_or(code[2 * pair], code[2 * pair + 1], out=codes[:, pair])


def block_scales(block_amax: Array, scale_2: np.float32) -> Array:
    """float32 block maxima -> float8_e4m3fn block scales."""
    scales = block_amax / (np.float32(E2M1_MAX) * scale_2)
    scales[scales == 0] = 1.0
    return np.clip(scales, SMALLEST_SCALE, E4M3_MAX).astype(E4M3)


class _Room(NamedTuple):
    """The buffers of one chunk, [16, blocks] each, reused from chunk to chunk."""

    bits: Array
    sign: Array
    over: Array
    code: Array

    @classmethod
    def of(cls, blocks: int) -> _Room:
        """Room for so many blocks, rows being whole 8-byte words."""
        kinds = (np.uint16, np.bool_, np.bool_, np.uint8)
        return cls(*(np.zeros((BLOCK, -(-blocks // 8) * 8), kind) for kind in kinds))

    def join(self) -> None:
        """Put the signs on the codes and the odd elements into the high nibbles.

        Eight bytes at a time: no bit crosses from one byte into the next.
        """
        sign, code = self.sign.view(np.uint64), self.code.view(np.uint64)
        np.left_shift(sign, 3, out=sign)
        np.bitwise_or(code, sign, out=code)
        np.left_shift(code[1::2], 4, out=code[1::2])


def _steps(scale_2: np.float32) -> Array:
    """[127] rows for the E4M3 codes 0 to 126, each 8 uint16 (as one complex128, to be taken whole).

    Entry i of a row is the smallest magnitude, in bits of BF16, whose quotient exceeds step i;
    bits of infinity where none does. The quotient never falls as the magnitude grows, so it lies
    at step times divisor or up to two bit patterns above; for the first step, the smallest
    magnitude of all unless its quotient underflows.
    """
    divisors = np.arange(127, dtype=np.uint8).view(E4M3).astype(np.float32)[:, None] * scale_2
    divisors[0] = 1  # never a block scale: the smallest is 2^-9
    found = ((_STEPS * divisors).view(np.uint32) >> 16).astype(np.uint16)
    for _ in range(2):
        found += _widen(found) / divisors <= _STEPS
    np.minimum(found, _INFINITY, out=found)
    if (_widen(np.ones((), np.uint16)) / divisors.max()) == 0:
        found[:, 0] = _first_above_zero(divisors[:, 0])
    return found.view(np.complex128).ravel()


def _first_above_zero(divisors: Array) -> Array:
    """Bits of the smallest magnitude whose quotient by each divisor is not rounded to zero."""
    low = np.zeros(len(divisors), np.uint16)
    high = np.full_like(low, _INFINITY)
    for _ in range(15):  # the bits of a magnitude
        middle = low + (high - low) // 2
        over = _widen(middle) / divisors > 0
        high = np.where(over, middle, high)
        low = np.where(over, low, middle + 1)
    return high


def _widen(bits: Array) -> Array:
    """Bits of BF16 in uint16 -> the values in float32."""
    return np.left_shift(bits.astype(np.uint32), 16).view(np.float32)


def _largest(weight: Array) -> int:
    """Bits of the largest magnitude: among the negative by the bits, else by them as integers."""
    bits = np.ascontiguousarray(weight).view(np.uint16)
    negative, positive = int(bits.max()), int(bits.view(np.int16).max())
    return max(negative & int(_MAGNITUDE) if negative >= _SIGN else 0, positive)
