"""Rounding as the release rounds."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from training.fusion import fused

QUANTIZED = re.compile(
    r"linear_attn\.(in_proj_(qkv|z)|out_proj)\.weight$|self_attn\.[qkvo]_proj\.weight$"
    r"|experts\.(gate_up|down)_proj$|shared_expert\.(gate|up|down)_proj\.weight$"
)
FP4_MAX, FP8_MAX = 6.0, 448.0


def is_quantized(name: str) -> bool:
    """Say whether ModelOpt's `nvfp4` quantizes the parameter of this name."""
    return QUANTIZED.search(name) is not None


@fused
def straight_through(x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    """Round in the forward pass and pass the gradient on unchanged."""
    return x + (rounding(x.detach()) - x.detach())


def fp8(x: Tensor) -> Tensor:
    """Round to E4M3 with one scale for the whole tensor."""
    scale = x.abs().amax().float().clamp_min(1e-12) / FP8_MAX
    return ((x / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def nvfp4(x: Tensor, largest: Tensor | None = None) -> Tensor:
    """Round to E2M1 with an E4M3 scale for every 16 values and one FP32 scale for all."""
    largest = x.abs().amax().float() if largest is None else largest
    outer = (largest / (FP4_MAX * FP8_MAX)).clamp_min(1e-12).unsqueeze(-1)
    blocks = x.float().unflatten(-1, (-1, 16))
    inner = blocks.abs().amax(-1, keepdim=True) / (FP4_MAX * outer)
    scale = inner.clamp(2.0**-9, FP8_MAX).to(torch.float8_e4m3fn).float() * outer
    scaled = (blocks / scale).clamp(-FP4_MAX, FP4_MAX)
    size = scaled.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return ((scaled / step).round() * step * scale).flatten(-2).to(x.dtype)
