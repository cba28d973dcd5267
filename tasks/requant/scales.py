"""The activation and KV scales of a draft head, and how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tasks.artifacts import CalibrationRecord


@dataclass(frozen=True)
class HeadScales:
    """Scales of a draft head.

    Attributes:
        inputs: quantized module -> input_scale, float32.
        k, v: float32, None where the export has no KV scales.
        rule: how they were made, in words.
        borrowed_from: the attention module that k and v were taken from, None when measured.
        unseen_experts: modules of experts that no token reached.
        calibration: what was run, None when nothing was.
    """

    inputs: Mapping[str, np.float32]
    k: np.float32 | None
    v: np.float32 | None
    rule: str
    borrowed_from: str | None = None
    unseen_experts: tuple[str, ...] = ()
    calibration: CalibrationRecord | None = None
