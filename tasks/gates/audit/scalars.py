"""The scalar scales: finite and positive, shared where engines fuse, and like their neighbours."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from tasks.gates.audit.model import KV_SCALES, Model, Module, is_scale
from tasks.gates.audit.result import Findings

SCALARS = (".weight_scale_2", ".input_scale", *KV_SCALES)
NORMED_INPUTS = {"q_proj", "k_proj", "v_proj", "in_proj_qkv", "in_proj_z", "gate_proj", "up_proj"}
"""Leaves whose input is the output of a layer's norm, hence of even size over the layers."""

Bounds = tuple[float, float]
MANY = 8
"""From so many neighbours on, their own spread is known."""
FEW = 3
"""With fewer neighbours than this the wider circle decides."""

NEAR: Mapping[str, Bounds] = {
    ".weight_scale_2": (1 / 32, 32),
    ".k_scale": (1 / 32, 32),
    ".v_scale": (1 / 100, 100),
}
NORMED: Bounds = (1 / 32, 32)
FREE: Bounds = (1 / 300, 1e4)
"""Inputs of down_proj, o_proj, out_proj: a few layers of good models reach 1000 times the rest."""
WIDE: Mapping[str, Bounds] = {
    ".weight_scale_2": (1 / 50, 50),
    ".input_scale": (1e-4, 1e4),
    ".k_scale": (1 / 32, 32),
    ".v_scale": (1 / 100, 100),
}
FAR = 10.0
"""A scale that should equal its neighbours and is this many times off is an outlier too."""
SPREAD = 8.0
"""A scale may always be this many times the group's own (robust) spread away."""
WITHIN_DRAFT = 64.0
"""Input scales of one projection over the experts of a draft layer: largest / median, at most."""


def read_scalars(model: Model) -> dict[str, float]:
    """Every scalar scale's value, by tensor name; those of a wrong dtype or shape left out."""
    values: dict[str, float] = {}
    for module in model.modules.values():
        for suffix, info in module.tensors.items():
            if suffix in SCALARS and info.dtype == "F32" and info.shape in ((), (1,)):
                values[info.name] = float(model.files.array(info.name).reshape(-1)[0])
    return values


def check_scalars(
    model: Model, values: Mapping[str, float], proven: set[str], findings: Findings
) -> None:
    """All rules on scalar scales; `proven` modules' weights were found to be the source's."""
    good = {name for name, value in values.items() if _check_sign(name, value, findings)}
    sound = {name: values[name] for name in good}
    _check_kv_default(sound, findings)
    _check_shared(model, sound, findings)
    _check_outliers(model, sound, proven, findings)


def _check_sign(name: str, value: float, findings: Findings) -> bool:
    if not math.isfinite(value):
        findings.add("scale-nonfinite", name, f"Is {value}.")
    elif value == 0:
        findings.add("scale-zero", name, "Is zero.")
    elif value < 0:
        findings.add("scale-negative", name, f"Is {value:.6g}.")
    else:
        return True
    return False


def _check_kv_default(values: Mapping[str, float], findings: Findings) -> None:
    for name, value in values.items():
        if name.endswith(KV_SCALES) and value == 1.0:
            findings.add("kv-scale-default", name, "Is 1.0, the value of a scale never measured.")


def _check_shared(model: Model, values: Mapping[str, float], findings: Findings) -> None:
    for members in model.groups():
        for suffix in (".weight_scale_2", ".input_scale"):
            _expect_equal([m.name + suffix for m in members], values, findings)
    layers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in model.packed():
        if module.expert is not None and not module.draft:
            parent = module.name.rpartition(f".{module.expert}.")[0]
            layers[parent, module.leaf].append(f"{module.name}.input_scale")
    for names in layers.values():
        _expect_equal(names, values, findings)


def _expect_equal(names: list[str], values: Mapping[str, float], findings: Findings) -> None:
    held = [values[name] for name in names if name in values]
    if len(set(held)) < 2:
        return
    usual = max(sorted(set(held)), key=held.count)
    undecided = 2 * held.count(usual) <= len(held)
    for name in names:
        if name in values and (undecided or values[name] != usual):
            what = (
                f"Is {values[name]:.9g}; {held.count(usual)} of {len(held)} fused have {usual:.9g}."
            )
            findings.add("scale-not-shared", name, what)
            if not 1 / FAR < values[name] / usual < FAR:
                findings.add("scale-outlier", name, what)


def _check_outliers(
    model: Model, values: Mapping[str, float], proven: set[str], findings: Findings
) -> None:
    right = {f"{name}.weight_scale_2" for name in proven}
    circles: dict[tuple[str, ...], list[tuple[str, float]]] = defaultdict(list)
    wide: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for module in model.modules.values():
        for suffix in module.tensors:
            name = module.name + suffix
            if suffix not in SCALARS or name not in values:
                continue
            entry = (name, math.log(values[name]))
            wide[suffix].append(entry)
            circles[_circle(module, suffix)].append(entry)
    for key, entries in circles.items():
        suffix, leaf = key[0], key[1]
        if len(entries) >= FEW:
            near = NORMED if leaf in NORMED_INPUTS else FREE
            _judge(entries, NEAR.get(suffix, near), right, findings)
    for suffix, entries in wide.items():
        _judge(entries, WIDE[suffix], right, findings)


def _circle(module: Module, suffix: str) -> tuple[str, ...]:
    """Neighbours: the same projection over all layers; of a layer's experts for weights."""
    key = (suffix, module.leaf, module.kind.name)
    if module.expert is not None and suffix == ".weight_scale_2":
        return (*key, str(module.layer), str(module.draft))
    return key


def _judge(
    entries: list[tuple[str, float]], bounds: Bounds, right: set[str], findings: Findings
) -> None:
    logs = np.array([value for _, value in entries])
    middle = float(np.median(logs))
    spread = SPREAD * 1.4826 * float(np.median(np.abs(logs - middle))) if len(logs) >= MANY else 0.0
    if len(entries) == 2 and logs.max() - logs.min() > math.log(bounds[1]):
        # Of two that differ this much, either may be the wrong one.
        spread, bounds = 0.0, (1.0, 1.0)
    low, high = math.log(bounds[0]), math.log(bounds[1])
    for name, value in entries:
        off = value - middle
        if name not in right and not min(low, -spread) <= off <= max(high, spread):
            what = f"Is {math.exp(value):.6g}, {math.exp(off):.3g} times the median of its like."
            findings.add("scale-outlier", name, what)


__all__ = ["check_scalars", "is_scale", "read_scalars"]
