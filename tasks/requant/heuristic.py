"""Scales for a draft head without any data: those of the layer that it mirrors."""

from __future__ import annotations

import numpy as np

from tasks.checkpoint.files import CheckpointFiles
from tasks.requant.plan import HeadPlan
from tasks.requant.scales import HeadScales

RULE = (
    "{scales} of the same module in {layer}, the last full-attention layer of the export, byte for"
    " byte: both see normalised hidden states of one width, and NVFP4 takes each activation block's"
    " own maximum beside this scale"
)


def borrowed_scales(plan: HeadPlan, export: CheckpointFiles) -> HeadScales:
    """Every scale of the head from its analogue in the export."""
    return HeadScales(
        inputs={
            name: _scalar(export, f"{analogue}.input_scale")
            for name, analogue in plan.analogues.items()
        },
        k=_scalar(export, f"{plan.attention}.k_proj.k_scale") if plan.kv else None,
        v=_scalar(export, f"{plan.attention}.v_proj.v_scale") if plan.kv else None,
        rule=RULE.format(
            scales="input_scale, k_scale and v_scale" if plan.kv else "input_scale",
            layer=plan.attention.rpartition(".")[0],
        ),
        borrowed_from=plan.attention if plan.kv else None,
    )


def _scalar(files: CheckpointFiles, name: str) -> np.float32:
    return np.float32(files.array(name).item())
