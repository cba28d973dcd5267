"""The settings of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Everything that decides a run; the model card's record repeats it."""

    out: Path
    seed: int = 2
    main_steps: int = 6000
    draft_steps: int = 500
    quantized_from: float = 0.55
    batch_tokens: int = 16384
    main_rate: float = 2e-3
    draft_rate: float = 2e-3
    reliance: float = 0.1
    draft_noise: float = 0.55
    pairs: int = 450_000
    evaluate: int = 400
