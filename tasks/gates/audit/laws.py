"""What norms and weights allow: bounds on activation and KV scales that good checkpoints keep.

The input of q, k, v, in_proj, gate and up is the output of an RMS norm of n elements with gains g.
Before the gain its squares add up to n, so its amax over any text lies between
sqrt(n / sum(1 / g^2)) and sqrt(n) * max|g|. K is such an output too, then turned pairwise by the
rotary embedding, which changes amax by at most sqrt(2). V, gate, up and z are a weight times such
an input: none exceeds its longest row times sqrt(n) * max|g|, and what they feed follows:

- o_proj gets means of V times a gate below 1;
- down_proj gets silu(gate) * up, at most |gate| * |up|;
- out_proj gets a norm of the value's width times silu(z).

The upper bounds are laws. The lower bounds of the last three are not: over a whole calibration text
a maximum does not stay far under what the typical row gives for one typical token (random and
trained models measured 4 to 200 times that; the bound, with its slack, is a hundredth of it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.architectures import expert_count, main_analogue
from tasks.checkpoint.files import CheckpointFiles
from tasks.gates.audit.model import Model, Module
from tasks.gates.audit.nvfp4 import BLOCK, E2M1_MAX, E4M3, E4M3_MAX
from tasks.gates.audit.result import Findings
from tasks.gates.audit.values import fits

INPUT = E2M1_MAX * E4M3_MAX
"""input_scale * this = amax of the input."""
ROUNDING = 1.1
"""BF16 arithmetic on the way."""
EPSILON = 8.0
"""A tiny input, against the norm's epsilon, comes out smaller than the law says."""
BORROWED = 16.0
"""Scales of a draft head that were borrowed come from another layer's norms."""
ALIKE = 4.0
"""Where a head's scales are borrowed, each is its analogue's, or near it."""

SELDOM = 0.1
"""A maximum over a text is larger than this share of what a typical token gives."""
ATTENDED = 1 / 50
"""amax of o_proj's input over amax of V, at least: the first token attends to itself alone."""

Values = Mapping[str, float]
Bounds = tuple[float, float]
Gains = np.ndarray[tuple[int], np.dtype[np.float32]]


class Laws:
    """The bounds of one model's scales.

    Args:
        model: the checkpoint.
        values: its scalar scales by tensor name.
        rows: module -> lengths of its longest and its typical row.
    """

    def __init__(self, model: Model, values: Values, rows: Mapping[str, Bounds]) -> None:
        values = {name: value for name, value in values.items() if 0 < value < math.inf}
        self.model, self.values, self.rows = model, values, rows
        self._gains: dict[str, Gains | None] = {}
        self._experts: dict[tuple[str, str], Bounds | None] = {}
        self._analogues = {
            scale: analogue + scale.removeprefix(name)
            for name, module in model.modules.items()
            if module.draft
            and (analogue := main_analogue(model.architecture, model.config, name)) is not None
            for scale in (f"{name}{suffix}" for suffix in (".input_scale", ".k_scale", ".v_scale"))
            if scale in values and analogue + scale.removeprefix(name) in values
        }
        equal = sum(values[a] == values[b] for a, b in self._analogues.items())
        self.borrowed = 2 * equal > len(self._analogues)

    def check(self, findings: Findings) -> None:
        """Compare input, K and V scales with the norms and weights that feed them."""
        if self.borrowed:
            self._check_borrowed(findings)
        for module in self.model.modules.values():
            amax = self.values.get(f"{module.name}.input_scale", 0.0) * INPUT
            bounds = self.of_input(module) if amax > 0 else None
            slack = BORROWED if module.draft and self.borrowed else 1.0
            _judge(f"{module.name}.input_scale", amax, bounds, slack, findings)
            for leaf, rule in (("k", self.of_k), ("v", self.of_v)):
                name = f"{module.name}.{leaf}_scale"
                amax = self.values.get(name, 0.0) * E4M3_MAX
                bounds = rule(module) if amax > 0 and module.leaf == f"{leaf}_proj" else None
                _judge(name, amax, bounds, slack, findings)

    def _check_borrowed(self, findings: Findings) -> None:
        for scale, analogue in self._analogues.items():
            ratio = self.values[scale] / self.values[analogue]
            if not 1 / ALIKE < ratio < ALIKE:
                what = f"Is {ratio:.3g} times {analogue}, from where the head's scales come."
                findings.add("scale-outlier", scale, what)

    def of_input(self, module: Module) -> Bounds | None:
        """Bounds on the amax of a module's input."""
        parent = module.name.rpartition(".")[0]
        if module.leaf == "o_proj":
            v_amax = self.values.get(f"{parent}.v_proj.v_scale", 0.0) * E4M3_MAX
            return (v_amax * ATTENDED, v_amax) if v_amax > 0 else None
        if module.leaf == "out_proj":
            return self._gated_norm(parent)
        if module.leaf == "down_proj":
            return self._of_down(module, parent)
        gains = self._gains_before(module.name)
        return None if gains is None else _norm_bounds(gains)

    def of_k(self, module: Module) -> Bounds | None:
        """Bounds on K's amax: those of k_norm, turned by the rotary embedding."""
        gains = _gains(self.model, module.name.replace("k_proj", "k_norm.weight"))
        if gains is None:
            return None
        low, high = _norm_bounds(gains)
        return low / math.sqrt(2), high * math.sqrt(2)

    def of_v(self, module: Module) -> Bounds | None:
        """Bounds on V's amax."""
        out = self._output(module.name)
        return None if out is None else (out[0] * SELDOM, out[1])

    def _output(self, name: str) -> Bounds | None:
        """(typical, largest possible) magnitude of the output of a weight behind a norm."""
        gains, rows = self._gains_before(name), self.rows.get(name)
        if gains is None or rows is None:
            return None
        longest, typical = rows
        size = math.sqrt(gains.size)
        return typical * float(np.sqrt((gains * gains).mean())), longest * size * float(gains.max())

    def _gated_norm(self, parent: str) -> Bounds | None:
        weight = self.model.files.tensors.get(f"{parent}.norm.weight")
        z = self._output(f"{parent}.in_proj_z")
        if weight is None or z is None:
            return None
        gain = np.abs(self.model.files.array(weight.name).astype(np.float32))
        if not gain.size or not np.isfinite(gain).all():
            return None
        return z[0] / 2 * float(np.median(gain)) * SELDOM, z[1] * math.sqrt(gain.size) * gain.max()

    def _of_down(self, module: Module, parent: str) -> Bounds | None:
        if module.expert is None or module.draft:
            bounds = self._product(parent)
            # A draft's expert may have seen a handful of tokens.
            return (0.0, bounds[1]) if bounds and module.expert is not None else bounds
        experts = parent.rpartition(".")[0]
        key = (experts, module.leaf)
        if key not in self._experts:
            names = (f"{experts}.{e}" for e in range(expert_count(self.model.config)))
            held = [bounds for bounds in map(self._product, names) if bounds is not None]
            self._experts[key] = (
                (min(low for low, _ in held), max(high for _, high in held)) if held else None
            )
        return self._experts[key]

    def _product(self, parent: str) -> Bounds | None:
        gate, up = self._output(f"{parent}.gate_proj"), self._output(f"{parent}.up_proj")
        if gate is None or up is None:
            return None
        # silu of a typical gate is about half of it.
        return gate[0] * up[0] / 2 * SELDOM, gate[1] * up[1]

    def _gains_before(self, name: str) -> Gains | None:
        for branch, norm in NORMS.items():
            layer, found, _ = name.partition(f".{branch}.")
            if found:
                weight = f"{layer}.{norm}.weight"
                if weight not in self._gains:
                    self._gains[weight] = _gains(self.model, weight)
                return self._gains[weight]
        return None


NORMS = {
    "self_attn": "input_layernorm",
    "linear_attn": "input_layernorm",
    "mlp": "post_attention_layernorm",
}
"""Branch of a layer -> the norm before it."""
FEEDING = {"v_proj", "in_proj_z", "gate_proj", "up_proj"}
"""Leaves whose rows are measured."""


def row_lengths(files: CheckpointFiles, module: Module) -> Bounds | None:
    """Lengths of a weight's longest row (never too short) and its typical one.

    Of packed weights by the block scales alone: elements of a block are its amax at most, and
    about half of it in the root mean square.
    """
    weight = module.weight
    if weight is None or len(weight.shape) != 2 or not weight.nbytes:
        return None
    if not module.packed:
        if weight.dtype not in ("BF16", "F32"):
            return None
        values = files.array_at(weight).astype(np.float32)
        return _lengths((values * values).sum(axis=1), 1.0, 1.0)
    scale, scale_2 = module.tensors.get(".weight_scale"), module.tensors.get(".weight_scale_2")
    if scale is None or scale_2 is None or not fits(weight, scale) or scale_2.dtype != "F32":
        return None
    second = float(files.array_at(scale_2).reshape(-1)[0])
    squares = SQUARES.take(files.array_at(scale).view(np.uint8), mode="clip").sum(axis=1)
    return _lengths(squares, E2M1_MAX * abs(second) * math.sqrt(BLOCK), 0.5)


SQUARES = np.where(np.isnan(E4M3), np.float32(0), E4M3) ** 2


def _lengths(squares: np.ndarray[Any, Any], unit: float, share: float) -> Bounds | None:
    longest, typical = (math.sqrt(float(x)) * unit for x in (squares.max(), np.median(squares)))
    return (longest, typical * share) if math.isfinite(longest) else None


def _judge(name: str, amax: float, bounds: Bounds | None, slack: float, findings: Findings) -> None:
    if bounds is None:
        return
    low, high = bounds[0] / EPSILON / slack, bounds[1] * ROUNDING * slack
    if not low <= amax <= high:
        what = f"Means an amax of {amax:.4g}; norms and weights allow {low:.3g} to {high:.3g}."
        findings.add("scale-outlier", name, what)


def _gains(model: Model, name: str) -> Gains | None:
    """|1 + weight| of a norm; None when it is not stored or not finite."""
    info = model.files.tensors.get(name)
    if info is None or info.dtype not in ("BF16", "F32") or len(info.shape) != 1:
        return None
    gains = np.abs(model.architecture.norm_offset + model.files.array(name).astype(np.float32))
    return gains if gains.size and np.isfinite(gains).all() else None


def _norm_bounds(gains: Gains) -> Bounds:
    with np.errstate(divide="ignore"):
        inverse = float((1 / gains.astype(np.float64) ** 2).sum())
    low = math.sqrt(gains.size / inverse) if math.isfinite(inverse) else 0.0
    return low, math.sqrt(gains.size) * float(gains.max())
