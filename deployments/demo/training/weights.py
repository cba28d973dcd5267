"""FP32 master weights, and what a step computes with."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.precision import Precision
from training.rounding import is_quantized, nvfp4

SHARED_RANGE = re.compile(
    r"(?<=self_attn\.)[qkv](?=_proj)|(?<=in_proj_)(qkv|z)|(gate|up)(?=_proj\.)"
)


class Weights:
    """FP32 masters of some parameters, and the BF16 values that a step computes from them."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]

    @torch.no_grad()
    def load(self, precision: Precision) -> None:
        """Set the network's parameters: plain BF16, or rounded to NVFP4 where a release is."""
        values = [master.bfloat16() for master in self.masters]
        if precision.weights:
            ranges = self._ranges(values)
            values = [
                nvfp4(value, ranges[self._range_of(name)]) if is_quantized(name) else value
                for name, value in zip(self.names, values, strict=True)
            ]
        torch._foreach_copy_(self.parameters, values)

    def _ranges(self, values: list[Tensor]) -> dict[str, Tensor]:
        """Return the largest magnitudes, shared by the projections that serving fuses."""
        ranges: dict[str, Tensor] = {}
        for name, value in zip(self.names, values, strict=True):
            if is_quantized(name):
                own = value.abs().float().amax(dim=(-2, -1), keepdim=True)
                key = self._range_of(name)
                ranges[key] = torch.maximum(ranges[key], own) if key in ranges else own
        return ranges

    @staticmethod
    def _range_of(name: str) -> str:
        return SHARED_RANGE.sub("*", name)
