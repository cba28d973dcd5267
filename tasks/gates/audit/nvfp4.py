"""NVFP4 in numpy: block scales, codes, and what a right packer gives for them.

A weight [N, K] is stored as uint8 [N, K/2] (two E2M1 codes a byte, the even element in the low
nibble), an E4M3 scale for each 16 elements of a row, and one f32 scale: w = code * scale * scale_2,
with scale_2 = amax / (6 * 448) and scale = block_amax / (6 * scale_2), 1 for a block of zeros.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 16
E2M1_MAX, E4M3_MAX = 6.0, 448.0
TOP = 0x7E
"""E4M3 bits of 448, the largest finite value; 0x7F is NaN."""
ONE = 0x38
"""E4M3 bits of 1."""
SMALLEST_NORMAL = 0x08
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""Bits -> value, of all 256 patterns."""
MAGNITUDE, SIGN = np.uint16(0x7FFF), np.uint16(0x8000)
"""Of BF16."""

_SIGNED = np.concatenate([E2M1, -E2M1])
_BYTES = np.arange(256)
PAIRS = np.stack([_SIGNED[_BYTES & 15], _SIGNED[_BYTES >> 4]], axis=-1).view(np.uint64)[:, 0]
"""Byte of two codes -> both values, as the bits of two float32."""

_LOW = np.uint64(0x7777777777777777)
_ONES = np.uint64(0x1111111111111111)
_1, _2 = np.uint64(1), np.uint64(2)


def blocks_of(packed: Array) -> Array:
    """Packed codes uint8 [N, K/2] -> uint64 [N, K/16], one block's 16 codes each."""
    return np.ascontiguousarray(packed).view(np.uint64)


def wrong_blocks(packed: Array, scale: Array) -> Array:
    """Which blocks no right packer gives; bool [N, K/16].

    A block's scale is its amax / 6 rounded to E4M3, so its largest element is coded as 6 (a normal
    scale is off by 1/16 at most: 6 / 1.0625 > 5 still rounds to 6), as 4 or 6 under a subnormal
    scale above the clamp, and a block of zeros has scale 1. Scales at the clamp (2^-9) prove
    nothing.

    Args:
        packed: uint8 [N, K/2].
        scale: E4M3 bits, uint8 [N, K/16].
    """
    low = blocks_of(packed) & _LOW
    four = (low >> _2) & (low >> _1)
    has_six = (four & low & _ONES) != 0
    has_four = (four & _ONES) != 0
    zero = low == 0
    fine = has_six | (zero & (scale == ONE)) | (scale <= 1)
    fine |= has_four & (scale < SMALLEST_NORMAL) & ~zero
    return np.asarray(~fine)


def bf16_bits_to_f32(bits: Array) -> Array:
    """BF16 bit patterns (uint16) -> the same values in float32."""
    return np.asarray((bits.astype(np.uint32) << np.uint32(16)).view(np.float32))


def block_amax_bits(bits: Array) -> Array:
    """Largest magnitude of each block: BF16 bits uint16 [N, K] -> uint16 [N, K/16]."""
    rows, columns = bits.shape
    # A long axis is reduced many times faster than one of 16.
    lanes = np.ascontiguousarray((bits & MAGNITUDE).reshape(-1, BLOCK).T)
    return np.asarray(lanes.max(axis=0).reshape(rows, columns // BLOCK))


def scale_2_of(amax: float) -> np.float32:
    """weight_scale_2 of a weight whose largest magnitude is `amax`."""
    return np.float32(np.float32(amax) / np.float32(E2M1_MAX * E4M3_MAX))


def scales_of(amax: Array, scale_2: np.float32) -> Array:
    """E4M3 bits of the block scales for block maxima float32 [...], as ModelOpt rounds them."""
    exact = amax / (np.float32(E2M1_MAX) * scale_2)
    exact[exact == 0] = 1
    np.clip(exact, np.float32(2**-9), np.float32(E4M3_MAX), out=exact)
    return np.asarray(exact.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def step_of(scale: Array, scale_2: np.float32) -> Array:
    """Value of code 1.0 in each block: E4M3 bits [N, K/16] -> float32 [N, K/16]."""
    return np.asarray(E4M3[scale] * scale_2)


def encode(bits: Array, step: Array) -> Array:
    """Packed codes of BF16 bits uint16 [N, K] under the steps float32 [N, K/16], ties to even.

    E2M1's grid has steps of 0.5 up to 2, 1 up to 4 and 2 up to 6, so the code of |x| is the least
    of round(2x), round(x) + 2, round(x/2) + 4 and 7. Zero of either sign is code 0.
    """
    rows, columns = bits.shape
    x = bf16_bits_to_f32(bits & MAGNITUDE).reshape(-1, BLOCK)
    x /= step.reshape(-1, 1)
    least = np.rint(x)
    least += 2
    other = x + x
    np.rint(other, out=other)
    np.minimum(least, other, out=least)
    x *= np.float32(0.5)
    np.rint(x, out=x)
    x += 4
    np.minimum(least, x, out=least)
    np.minimum(least, 7, out=least)
    codes = least.astype(np.uint8).reshape(rows, columns)
    codes |= (bits > SIGN).view(np.uint8) << np.uint8(3)
    pairs = codes.view(np.uint16)
    return np.asarray(((pairs >> np.uint16(4)) | pairs).astype(np.uint8))


def decode(packed: Array, step: Array) -> Array:
    """Packed uint8 [N, K/2] and steps [N, K/16] -> float32 [N, K]."""
    rows, half = packed.shape
    values = PAIRS.take(packed, mode="clip").view(np.float32).reshape(rows, -1, BLOCK)
    values *= step[:, :, None]
    return np.asarray(values.reshape(rows, 2 * half))
