"""What the norms allow: bounds on activation and KV scales that hold for every good checkpoint.

The input of q, k, v, in_proj, gate and up is the output of an RMS norm of n elements with gains g.
Before the gain its squares add up to n, so its amax over any text lies between
sqrt(n / sum(1 / g^2)) and sqrt(n) * max|g|. K is such an output too, then turned pairwise by the
rotary embedding, which changes amax by at most sqrt(2). V is W_v times such an input. The input of
o_proj is a mean of V, times a gate below 1. No statistics: outside these bounds nothing can be
measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tasks.gates.audit.model import Model, Module
from tasks.gates.audit.nvfp4 import BLOCK, E2M1_MAX, E4M3, E4M3_MAX
from tasks.gates.audit.result import Findings

INPUT = E2M1_MAX * E4M3_MAX
"""input_scale * this = amax of the input."""
ROUNDING = 1.1
"""BF16 arithmetic on the way."""
EPSILON = 8.0
"""A tiny input, against the norm's epsilon, comes out smaller than the law says."""
BORROWED = 16.0
"""Scales of a draft head may come from another layer's norms."""

Values = Mapping[str, float]


def check_laws(model: Model, values: Values, findings: Findings) -> None:
    """Compare input, K and V scales with the norms and weights that feed them."""
    for module in model.modules.values():
        slack = BORROWED if module.draft else 1.0
        amax = values.get(f"{module.name}.input_scale", 0.0) * INPUT
        if amax > 0:
            bounds = _input_bounds(model, module, values)
            _judge(f"{module.name}.input_scale", amax, bounds, slack, findings)
        for leaf, bound in (("k", _k_bounds), ("v", _v_bounds)):
            name = f"{module.name}.{leaf}_scale"
            amax = values.get(name, 0.0) * E4M3_MAX
            if amax > 0 and module.leaf == f"{leaf}_proj":
                _judge(name, amax, bound(model, module, values), slack, findings)


def _judge(
    name: str,
    amax: float,
    bounds: tuple[float, float] | None,
    slack: float,
    findings: Findings,
) -> None:
    if bounds is None:
        return
    low, high = bounds[0] / EPSILON / slack, bounds[1] * ROUNDING * slack
    if not low <= amax <= high:
        what = f"Means an amax of {amax:.4g}; norms and weights allow {low:.3g} to {high:.3g}."
        findings.add("scale-outlier", name, what)


def _input_bounds(model: Model, module: Module, values: Values) -> tuple[float, float] | None:
    layer, _, rest = module.name.partition(f".{_branch(module)}.")
    norm = {
        "self_attn": "input_layernorm",
        "linear_attn": "input_layernorm",
        "mlp": "post_attention_layernorm",
    }.get(_branch(module))
    if norm is None or not rest:
        return None
    if module.leaf in {"down_proj", "out_proj"}:
        return None
    if module.leaf == "o_proj":
        v_scale = values.get(f"{layer}.self_attn.v_proj.v_scale", 0.0)
        return (0.0, v_scale * E4M3_MAX) if v_scale > 0 and not module.draft else None
    gains = _gains(model, f"{layer}.{norm}.weight")
    return None if gains is None else _norm_bounds(gains)


def _branch(module: Module) -> str:
    parts = module.name.split(".")
    return next((part for part in parts if part in {"self_attn", "linear_attn", "mlp"}), "")


def _k_bounds(model: Model, module: Module, values: Values) -> tuple[float, float] | None:
    gains = _gains(model, module.name.replace("k_proj", "k_norm.weight"))
    if gains is None:
        return None
    low, high = _norm_bounds(gains)
    return low / math.sqrt(2), high * math.sqrt(2)


def _v_bounds(model: Model, module: Module, values: Values) -> tuple[float, float] | None:
    layer = module.name.removesuffix(".self_attn.v_proj")
    gains = _gains(model, f"{layer}.input_layernorm.weight")
    rows = _row_norm(model, module, values)
    if gains is None or rows is None:
        return None
    length = math.sqrt(gains.size) * float(gains.max())
    return 0.0, rows * length


def _gains(model: Model, name: str) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
    """|1 + weight| of a norm; None when it is not stored or not finite."""
    info = model.files.tensors.get(name)
    if info is None or info.dtype not in ("BF16", "F32") or len(info.shape) != 1:
        return None
    gains = np.abs(1 + model.files.array(name).astype(np.float32))
    return gains if gains.size and np.isfinite(gains).all() else None


def _norm_bounds(gains: np.ndarray[tuple[int], np.dtype[np.float32]]) -> tuple[float, float]:
    with np.errstate(divide="ignore"):
        inverse = float((1 / gains.astype(np.float64) ** 2).sum())
    low = math.sqrt(gains.size / inverse) if math.isfinite(inverse) else 0.0
    return low, math.sqrt(gains.size) * float(gains.max())


def _row_norm(model: Model, module: Module, values: Values) -> float | None:
    """No row of the weight is longer than this; for packed ones from the block scales alone."""
    weight = module.weight
    if weight is None or len(weight.shape) != 2:
        return None
    if not module.packed:
        rows = model.files.array_at(weight).astype(np.float32)
        longest = float(np.sqrt((rows * rows).sum(axis=1)).max())
        return longest if math.isfinite(longest) else None
    scale, scale_2 = (
        module.tensors.get(".weight_scale"),
        values.get(f"{module.name}.weight_scale_2"),
    )
    if scale is None or scale.dtype != "F8_E4M3" or not scale_2 or not math.isfinite(scale_2):
        return None
    steps = E4M3[model.files.array(scale.name).view(np.uint8)] * np.float32(E2M1_MAX * abs(scale_2))
    longest = float(np.sqrt(BLOCK * (steps * steps).sum(axis=-1)).max())
    return longest if math.isfinite(longest) else None
