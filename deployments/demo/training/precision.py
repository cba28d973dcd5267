"""The precisions that a step computes in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Which parts of the model are rounded as the NVFP4 release rounds them."""

    weights: bool = False
    activations: bool = False
    cache: bool = False


BF16 = Precision()
W4A16 = Precision(weights=True, cache=True)
W4A4 = Precision(weights=True, activations=True, cache=True)
PRECISIONS = {"bf16": BF16, "nvfp4": W4A16, "nvfp4_w4a4": W4A4}
