"""The K/V cache of full-attention layers: one row a request, each of its own length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "quantgate_rows"
FP8_MAX = 448.0
_SPAN = 32


def through_fp8(values: Tensor, scale: float) -> Tensor:
    """What an FP8 E4M3 cache gives back: cast(x / scale) * scale, saturating at 448."""
    limited = (values / scale).clamp(-FP8_MAX, FP8_MAX)
    return limited.to(torch.float32).to(torch.float8_e4m3fn).to(values.dtype) * scale


@dataclass(frozen=True)
class KvScales:
    """One layer's K and V scales; None: the cache is not FP8."""

    k: float = 1.0
    v: float = 1.0


@dataclass(frozen=True)
class Window:
    """The part of the cache that one forward pass writes and sees.

    Attributes:
        rows: consecutive rows of the batch.
        positions: [N, M], where each row's M tokens stand.
        span: positions visible at all, a multiple of 32 so that shapes repeat.
        mask: [N, 1, M, span], 0 where a token may look, -inf elsewhere.
    """

    rows: slice
    positions: Tensor
    span: int
    mask: Tensor


def window(rows: slice, positions: Tensor, dtype: torch.dtype) -> Window:
    """A token at position p sees positions 0 to p."""
    span = -(-(int(positions.max()) + 1) // _SPAN) * _SPAN
    seen = torch.arange(span, device=positions.device) <= positions[:, None, :, None]
    mask = torch.zeros(seen.shape, dtype=dtype, device=positions.device)
    return Window(rows, positions, span, mask.masked_fill_(~seen, float("-inf")))


class KvCache:
    """K and V of some layers, [rows, heads, capacity, D] each; rows and capacity grow as needed.

    It is the `past_key_values` that transformers' attention calls `update` on. Taking tokens back
    needs nothing here: what stands beyond a row's length is overwritten before it is seen.
    """

    def __init__(
        self, scales: dict[int, KvScales | None], heads: int, size: int, like: Tensor
    ) -> None:
        self.scales = scales
        self._k = {layer: like.new_zeros(0, heads, 0, size) for layer in scales}
        self._v = {layer: like.new_zeros(0, heads, 0, size) for layer in scales}
        self.window: Window | None = None

    def open(self, new: Window) -> None:
        """Make room for `new` and direct the next `update`s there."""
        self.window = new
        for store in (self._k, self._v):
            for layer, old in store.items():
                if old.shape[0] < new.rows.stop or old.shape[2] < new.span:
                    store[layer] = _grown(old, new.rows.stop, new.span)

    def shrink(self) -> None:
        """Give the memory back; nothing that was stored is kept."""
        for store in (self._k, self._v):
            for layer, old in store.items():
                store[layer] = old.new_zeros(0, old.shape[1], 0, old.shape[3])

    def update(self, k: Tensor, v: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Store [N, heads, M, D] at the window's positions; give [N, heads, span, D] of it all."""
        assert self.window is not None
        at, scales = self.window, self.scales[layer_idx]
        if scales is not None:
            k, v = through_fp8(k, scales.k), through_fp8(v, scales.v)
        both = []
        for store, new in ((self._k, k), (self._v, v)):
            rows = store[layer_idx][at.rows]
            number = torch.arange(len(rows), device=rows.device)[:, None]
            rows[number, :, at.positions] = new.transpose(1, 2)
            both.append(rows[:, :, : at.span])
        return both[0], both[1]

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for store in (self._k, self._v):
            for tensor in store.values():
                tensor[target] = tensor[source]

    @property
    def nbytes(self) -> int:
        """Bytes of K alone (V takes as many)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._k.values())


def _grown(old: Tensor, rows: int, span: int) -> Tensor:
    rows = max(old.shape[0], 1 << (rows - 1).bit_length())
    capacity = max(old.shape[2], 128 * -(-span // 128))
    new = old.new_zeros(rows, old.shape[1], capacity, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new


def attend(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Grouped-query attention without repeating K and V.

    Args:
        q: [N, Hq, M, D]; k, v: [N, Hkv, L, D], Hq a multiple of Hkv.
        mask: [N, 1, M, L], added to the scores.

    Returns:
        [N, M, Hq, D], and no weights.
    """
    count, heads, tokens, size = q.shape
    shared, length = k.shape[1:3]
    group = heads // shared
    grouped = q.reshape(count * shared, group * tokens, size)
    scores = torch.bmm(grouped, k.flatten(0, 1).transpose(1, 2)).mul_(scaling)
    scores = scores.view(count, heads, tokens, length).add_(mask)
    weights = scores.softmax(-1).view(count * shared, group * tokens, length)
    out = torch.bmm(weights, v.flatten(0, 1))
    return out.view(count, heads, tokens, size).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)
