"""Routed experts on stacked weights, each expert once for all tokens that chose it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupedExperts(nn.Module):
    """The same as transformers' `experts` module, from which it takes the weights.

    Tokens are sorted by expert, so each expert is two matrix products whatever the batch.
    """

    def __init__(self, fused: Any) -> None:
        super().__init__()
        self.gate_up_proj = fused.gate_up_proj
        self.down_proj = fused.down_proj
        self.act_fn = fused.act_fn

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """[T, H] tokens, [T, K] expert numbers and their weights -> [T, H]."""
        tokens, ranks = chosen.shape
        order = chosen.flatten().argsort(stable=True)
        ends = chosen.flatten().bincount(minlength=len(self.down_proj)).cumsum(0).tolist()
        rows = hidden[order // ranks]
        out = torch.empty_like(rows)
        start = 0
        for number, end in enumerate(ends):
            if end > start:
                gate, up = F.linear(rows[start:end], self.gate_up_proj[number]).chunk(2, dim=-1)
                out[start:end] = F.linear(self.act_fn(gate) * up, self.down_proj[number])
            start = end
        back = torch.empty_like(out)
        back[order] = out
        return (back.view(tokens, ranks, -1) * weights.unsqueeze(-1)).sum(1)
