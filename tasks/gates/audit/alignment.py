"""Block scales that stand beside other blocks than their own.

Of blocks with a like spread, the one with the larger amax has the larger scale and, divided by it,
the smaller codes. So over the blocks of a weight, log(scale) falls with log(rms of the codes): by
1 for normal weights, by more for heavy tails, whatever the spread of rows and columns. Beside
another block's codes a scale knows nothing of them, and the slope is 0. Where the slope is right in
another alignment and not in the stored one, the scales were shifted, or left in the order of a GEMM
kernel. Weights whose slope says nothing (pruned, all of one magnitude) are not judged.

Where the slope is 0 in every alignment, though the codes are shaped like a bell's and most weights
of the model have the right one, the scales are another weight's, shuffled, or all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tasks.gates.audit.nvfp4 import E2M1, E4M3, SMALLEST_NORMAL

Array = np.ndarray[Any, Any]

ROWS, COLUMNS = 128, 16
"""Blocks looked at: as many rows and columns of blocks, from the first on."""
FITS = -0.4
"""Slopes below are of scales beside their own blocks."""
SURE = 6.0
"""Standard errors by which a slope must be on its side, and differ from another."""
BELL_SIZE = (-1.0, -0.65)
BELL_SPREAD = (0.12, 0.215)
"""Mean and deviation over the blocks of log(rms of the codes / 6): normal weights have -0.73 and
0.154, trained ones -0.82 to -0.72 and 0.148 to 0.200, uniform ones -0.50 and 0.11."""
BELL_ZEROS = 0.3
"""Codes that are zero, at most: 0.07 in normal weights, half of them in pruned ones."""
TILE = (32, 4, 4)
"""Scales of 128 rows, 4 columns as block-scaled GEMM kernels want them: row % 32, row / 32, column
(CUTLASS, `Sm1xxBlockScaledConfig`)."""

_BYTES = np.arange(256)
_SQUARES = np.concatenate([E2M1, E2M1]) ** 2
_ENERGY = _SQUARES[_BYTES & 15] + _SQUARES[_BYTES >> 4]
_ZEROS = ((_BYTES & 7) == 0) / 2 + ((_BYTES & 0x70) == 0) / 2
_LOG = np.log(np.maximum(E4M3, 2.0**-9))


class Fit(NamedTuple):
    """How block scales go with codes.

    Attributes:
        elsewhere: where the scales fit, if it is not where they stand; in words.
        own: whether they know the codes beside them; None where that cannot be told.
    """

    elsewhere: str | None
    own: bool | None


class Slopes(NamedTuple):
    """Of log(scale) over log(rms of the codes), and their standard errors, by alignment."""

    value: Array
    error: Array


def fit(codes: Array, scale: Array) -> Fit:
    """Whether block scales belong to the codes beside them.

    Args:
        codes: packed, uint8 [N, K/2].
        scale: E4M3 bits, uint8 [N, K/16].
    """
    part = codes[:ROWS, : COLUMNS * 8]
    energy = _ENERGY[part].reshape(part.shape[0], -1, 8).sum(axis=-1)
    names, scales = zip(*_alignments(scale, energy.shape), strict=True)
    found = _slopes(np.stack(scales), energy)
    if found is None:
        return Fit(None, None)
    value, error = found
    sure = SURE * error
    fits = value + sure < FITS
    gain = value[0] - value > np.maximum(SURE * np.hypot(error, error[0]), -FITS)
    better = np.flatnonzero(fits & gain)
    if better.size:
        return Fit(str(names[better[value[better].argmin()]]), False)
    if fits[0] or not _is_bell(part, energy):
        return Fit(None, True if fits[0] else None)
    knows_nothing = abs(value[0]) <= sure[0] and value[0] - sure[0] > FITS
    return Fit(None, False if knows_nothing else None)


def _is_bell(codes: Array, energy: Array) -> bool:
    """Whether codes are those of a weight whose blocks are shaped like a bell.

    Args:
        codes: packed, uint8 [rows, bytes].
        energy: sum of squares of each block.
    """
    if _ZEROS[codes].mean() > BELL_ZEROS:
        return False
    size = np.log(np.maximum(energy, 0.25) / (16 * 36)) / 2
    low, high = BELL_SIZE
    least, most = BELL_SPREAD
    return bool(low < size.mean() < high and least < size.std() < most)


def _alignments(scale: Array, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """The stored one first; uint8 [rows, columns of blocks] each."""
    rows, columns = shape
    yield "here", scale[:rows, :columns]
    for axis, name in ((1, "block"), (0, "row")):
        for step in (1, -1):
            moved = np.roll(scale[: rows + 1, : columns + 1], step, axis=axis)
            yield f"one {name} {'before' if step == 1 else 'after'}", moved[:rows, :columns]
    if scale.shape[0] % ROWS == 0 and scale.shape[1] % TILE[2] == 0:
        tiles = np.ascontiguousarray(scale[:rows]).reshape(-1)[: rows * columns]
        yield (
            "in the order of a GEMM kernel",
            tiles.reshape(-1, *TILE).transpose(2, 1, 0, 3).reshape(rows, columns),
        )


def _slopes(scales: Array, energy: Array) -> Slopes | None:
    """For scales uint8 [alignments, rows, columns]; None where the codes say nothing."""
    used = (energy > 0) & (scales >= SMALLEST_NORMAL).all(axis=0)
    x = _within(np.log(np.maximum(energy, 0.25)) / 2, used)
    spread = float(np.square(x).sum())
    if spread < 1e-6 * x.size:
        return None
    y = _within(_LOG[scales], used)
    value = (x * y).sum(axis=(1, 2)) / spread
    left = np.square(y - value[:, None, None] * x).sum(axis=(1, 2)) / used.sum()
    return Slopes(value, np.sqrt(left / spread))


def _within(values: Array, used: Array) -> Array:
    """What rows and columns of blocks do not explain; 0 where a block is not used."""
    for axis in (-1, -2):
        count = np.maximum(1, used.sum(axis, keepdims=True))
        mean = np.where(used, values, 0).sum(axis, keepdims=True) / count
        values = values - mean
    return np.asarray(np.where(used, values, 0))
