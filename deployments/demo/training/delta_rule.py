"""The gated delta rule of the linear-attention layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.fusion import fused


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Invert `1 + lower`, strictly lower triangular, by joining blocks of doubling size.

    The inverse of [[A, 0], [B, C]] is D - D [[0, 0], [B, 0]] D, where D = diag(1/A, 1/C).
    """
    size = lower.shape[-1]
    index = torch.arange(size, device=lower.device)
    row, column = index[:, None], index[None, :]
    inverse = (row == column).to(lower.dtype)
    for half in (2**n for n in range(size.bit_length() - 1)):
        joined = (row // (2 * half) == column // (2 * half)) & (row // half != column // half)
        inverse = inverse - inverse @ (lower * joined) @ inverse
    return inverse


@fused
def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the gated delta rule like transformers' fallback, without its loop over rows."""
    length, dtype = query.shape[1], query.dtype
    pad = -length % chunk_size
    query, key = (F.normalize(x.float(), dim=-1, eps=1e-3) for x in (query, key))

    def chunks(x: Tensor) -> Tensor:
        x = F.pad(x.float().transpose(1, 2).flatten(3), (0, 0, 0, pad))
        return x.unflatten(2, (-1, chunk_size))

    query, key, value = (chunks(x) for x in (query * query.shape[-1] ** -0.5, key, value))
    beta, decay = chunks(beta.unsqueeze(-1)), chunks(g.unsqueeze(-1)).cumsum(-2)
    between = (decay - decay.transpose(-1, -2)).tril().exp().tril()
    lower = ((key * beta) @ key.transpose(-1, -2) * between).tril(-1)
    inverse = unit_lower_inverse(lower)
    fresh, carried = inverse @ (value * beta), inverse @ (key * beta * decay.exp())
    within = query @ key.transpose(-1, -2) * between
    reading, last = query * decay.exp(), decay[..., -1:, :]
    writing = (key * (last - decay).exp()).transpose(-1, -2)

    state = torch.zeros_like(writing[:, :, 0]) @ torch.zeros_like(value[:, :, 0])
    outputs = []
    for i in range(key.shape[2]):
        new = fresh[:, :, i] - carried[:, :, i] @ state
        outputs.append(reading[:, :, i] @ state + within[:, :, i] @ new)
        state = state * last[:, :, i].exp() + writing[:, :, i] @ new
    result = torch.cat(outputs, dim=2)[:, :, :length]
    return result.transpose(1, 2).to(dtype), None
