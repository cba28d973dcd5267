"""Which modules are quantized, against what the recipe promises and the exclude lists say."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from typing import Any

from tasks.architectures import QFORMATS, amax_group
from tasks.gates.audit.model import KV_SCALES, PACKED_SCALES, Model, Module, is_scale
from tasks.gates.audit.result import Findings, Promise
from tasks.spec import QFormat

BAND = 0.01
"""Relative: bits per weight may differ from the format's own by this much."""
BLOCK_BITS = 4 + 8 / 16
SCALAR_BITS = 2 * 32
"""weight_scale_2 and input_scale of one module."""


def check_coverage(model: Model, promise: Promise, findings: Findings) -> QFormat | None:
    """Check names, dtypes and scales module by module, then the recipe as a whole.

    Returns:
        The qformat that the checkpoint follows; None when nothing is quantized.
    """
    _check_unknown(model, findings)
    if model.complete:
        _check_absent(model, findings)
    qformat = promise.qformat or infer_qformat(model)
    recipe = {item.name for item in model.architecture.classes if qformat in item.quantized_in}
    for module in model.modules.values():
        _check_module(model, module, recipe, findings)
    if model.complete:
        _check_counts(model, promise, qformat, recipe, findings)
        _check_fused(model, findings)
        _check_bits(model, recipe, findings)
    return qformat


def infer_qformat(model: Model) -> QFormat | None:
    """The smallest qformat whose classes hold every class that is, or is declared, quantized."""
    names = {m.kind.name for m in model.packed() if not m.draft and not m.kind.must_be_bf16}
    if model.lists:
        names |= {
            item.name
            for name, item in model.expected.items()
            if not item.must_be_bf16 and not _is_draft(name) and not model.covered(name)[0]
        }
    present = {item.name for name, item in model.expected.items() if not _is_draft(name)}
    best: QFormat | None = None
    size = 0
    for qformat in QFORMATS:
        classes = {c.name for c in model.architecture.classes if qformat in c.quantized_in}
        classes &= present
        if names and names <= classes and (best is None or len(classes) < size):
            best, size = qformat, len(classes)
    return best


def classes_table(model: Model) -> list[dict[str, Any]]:
    """One row a class and part (main, draft): modules, NVFP4 and BF16 ones, weights, bytes."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for module in model.modules.values():
        if module.weight is None:
            continue
        key = (module.kind.name, "draft" if module.draft else "main")
        row = rows.setdefault(
            key,
            {"class": key[0], "part": key[1], "modules": 0, "nvfp4": 0, "weights": 0, "bytes": 0},
        )
        row["modules"] += 1
        row["nvfp4"] += int(module.packed)
        row["weights"] += module.parameters
        row["bytes"] += module.nbytes
    for row in rows.values():
        row["bf16"] = row["modules"] - row["nvfp4"]
    return [rows[key] for key in sorted(rows, key=lambda key: (key[1] == "draft", key[0]))]


def bits_per_weight(modules: list[Module]) -> float | None:
    """Bits stored for each weight of these modules, scales included (K and V scales apart)."""
    weights = sum(module.elements for module in modules)
    stored = sum(
        info.nbytes
        for module in modules
        for suffix, info in module.tensors.items()
        if suffix not in KV_SCALES and suffix != ".bias"
    )
    return 8 * stored / weights if weights else None


def _is_draft(name: str) -> bool:
    return name.startswith("mtp.")


def _check_unknown(model: Model, findings: Findings) -> None:
    for name in model.unknown:
        parent, _, leaf = name.removesuffix(".weight").rpartition(".")
        if parent.endswith(".experts") and leaf in {"gate_up_proj", "down_proj"}:
            findings.add("stale-fused-expert", name, "Holds all experts of a layer in one tensor.")
        else:
            findings.add("unknown-tensor", name, f"Is no tensor of {model.architecture.name}.")


def _check_absent(model: Model, findings: Findings) -> None:
    for name, item in model.expected.items():
        module = model.modules.get(name)
        if module is not None and module.weight is not None:
            continue
        tensor = name if item.bare else f"{name}.weight"
        if _is_draft(name):
            if model.has_draft:
                findings.add("draft-partial", tensor, "The draft head lacks it.")
            continue
        findings.add("tensor-missing", tensor, "config.json implies it, and no shard has it.")
    for name, module in model.modules.items():
        if name not in model.expected and module.kind.name != "vision":
            findings.add("unknown-tensor", name, "config.json implies no such layer or expert.")


def _check_module(model: Model, module: Module, recipe: set[str], findings: Findings) -> None:
    weight, name = module.weight, module.name
    if module.kind.must_be_bf16:
        _check_plain_only(module, findings)
    elif module.packed:
        for suffix in PACKED_SCALES:
            if suffix not in module.tensors and model.complete:
                findings.add("scale-missing", f"{name}{suffix}", f"{name} is packed without it.")
    elif module.scales:
        kept = weight.dtype if weight else "not there"
        for info in module.scales:
            findings.add("scale-orphan", info.name, f"The weight beside it is {kept}.")
    _check_dtypes(module, findings)
    if weight is None or (module.kind.must_be_bf16 and module.packed):
        return
    some, every = model.covered(name)
    if module.packed and some:
        findings.add("exclude-mismatch", weight.name, "Packed, but on an exclude list.")
    if not module.packed and _is_matrix(module) and not every and model.lists:
        findings.add("exclude-mismatch", weight.name, f"{weight.dtype}, but on no exclude list.")
        if module.kind.name in recipe:
            what = f"Declared NVFP4 and stored as {weight.dtype}."
            findings.add("dtype-mismatch", weight.name, what)


def _is_matrix(module: Module) -> bool:
    """Whether engines build a linear layer for it, so that its name must be on the lists."""
    if module.kind.name == "vision":
        return (
            module.weight is not None
            and len(module.weight.shape) == 2
            and ".pos_" not in module.name
        )
    return module.kind.linear or module.kind.name == "deltanet-conv"


def _check_plain_only(module: Module, findings: Findings) -> None:
    weight = module.weight
    if weight is not None and (module.packed or weight.dtype.startswith("F8")):
        findings.add("must-be-bf16", weight.name, f"{module.kind.name}: is {weight.dtype}.")
    for suffix, info in module.tensors.items():
        if is_scale(suffix):
            what = f"{module.kind.name}: a scale beside a module that must stay BF16."
            findings.add("must-be-bf16", info.name, what)


def _check_dtypes(module: Module, findings: Findings) -> None:
    for suffix, info in module.tensors.items():
        wanted: tuple[str, ...] = ("BF16",)
        if suffix == ".weight_scale":
            wanted = ("F8_E4M3",)
        elif is_scale(suffix):
            wanted = ("F32",)
        elif suffix == ".weight" and not module.kind.must_be_bf16:
            wanted = ("BF16", "U8")
        elif "deltanet" in module.kind.name and not module.kind.linear:
            wanted = ("BF16", "F32")
        elif module.packed:
            continue
        if info.dtype not in wanted:
            what = f"Is {info.dtype}, must be {' or '.join(wanted)}."
            findings.add("dtype-mismatch", info.name, what)


def _check_counts(
    model: Model,
    promise: Promise,
    qformat: QFormat | None,
    recipe: set[str],
    findings: Findings,
) -> None:
    if not any(True for _ in model.packed()):
        findings.add("coverage", None, "Not one module is quantized.")
        return
    expected: Counter[str] = Counter()
    packed: Counter[str] = Counter()
    excused: Counter[str] = Counter()
    for name, item in model.expected.items():
        if _is_draft(name) or item.must_be_bf16:
            continue
        expected[item.name] += 1
        module = model.modules.get(name)
        if module is not None and module.packed:
            packed[item.name] += 1
        elif _excused(model, promise, name):
            excused[item.name] += 1
    for name, count in expected.items():
        done, out = packed[name], excused[name]
        if name not in recipe and done:
            what = f"{done} of {count} {name} modules are NVFP4; {qformat} leaves them BF16."
            findings.add("coverage", name, what)
        if name in recipe and (done + out < count or (done == 0 and promise.qformat is None)):
            what = f"{done} of {count} {name} modules are NVFP4; {qformat} promises all."
            findings.add("coverage", name, what)


def _excused(model: Model, promise: Promise, name: str) -> bool:
    """Whether a module is BF16 by declaration: the spec's if there is one, else both lists'."""
    if promise.qformat is not None:
        return any(fnmatchcase(name, pattern) for pattern in promise.exclude)
    return model.covered(name)[1]


def _check_fused(model: Model, findings: Findings) -> None:
    """Engines fuse q, k, v; gate, up; all experts of a layer: such a group is packed or is not."""
    groups: dict[tuple[str, ...], list[Module]] = {}
    for module in model.modules.values():
        if module.kind.must_be_bf16 or module.weight is None:
            continue
        if module.expert is not None:
            key: tuple[str, ...] = (module.name.rpartition(f".{module.expert}.")[0],)
        else:
            key = amax_group(model.architecture, module.name)
        groups.setdefault(key, []).append(module)
    for key, members in groups.items():
        packed = sum(member.packed for member in members)
        if 0 < packed < len(members):
            plain = next(member for member in members if not member.packed)
            what = (
                f"{packed} of {len(members)} modules that engines fuse are NVFP4, {plain.name} not."
            )
            findings.add("coverage", key[0], what)


def _check_bits(model: Model, recipe: set[str], findings: Findings) -> None:
    declared = [
        module
        for name, module in model.modules.items()
        if module.kind.name in recipe and not model.covered(name)[0]
    ]
    packed = any(True for _ in model.packed())
    if not packed:
        declared = [m for m in model.modules.values() if not m.kind.must_be_bf16]
    actual = bits_per_weight(declared)
    if actual is None:
        return
    weights = sum(module.elements for module in declared)
    wanted = BLOCK_BITS + SCALAR_BITS * len(declared) / weights
    if abs(actual / wanted - 1) > BAND:
        what = f"{actual:.3f} bits a weight in {len(declared)} modules; NVFP4 gives {wanted:.3f}."
        findings.add("bits-per-weight", None, what)
