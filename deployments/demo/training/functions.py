"""Small functions of the model, each fused into one kernel on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from training.fusion import fused


@fused
def normalized(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply Qwen3.5's zero-centred RMS norm."""
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (scaled * (1.0 + weight.float())).type_as(x)


@fused
def normalized_gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply the gated RMS norm of the linear-attention layers."""
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (weight * scaled.to(x.dtype) * F.silu(gate.float())).to(x.dtype)


@fused
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Apply the gated activation of Qwen's feed-forward parts."""
    return F.silu(gate) * up


@fused
def weighted(hidden: Tensor, weights: Tensor) -> Tensor:
    """Scale every expert's hidden values by its share."""
    return hidden * weights.unsqueeze(-1)


@fused
def causal_convolution(
    x: Tensor, weight: Tensor, bias: None = None, activation: str = "silu", seq_idx: None = None
) -> Tensor:
    """Convolve each channel with its own short causal kernel, as a sum of shifted copies."""
    width, length = weight.shape[1], x.shape[-1]
    padded = F.pad(x, (width - 1, 0))
    return F.silu(sum(padded[..., i : i + length] * weight[:, i, None] for i in range(width)))
