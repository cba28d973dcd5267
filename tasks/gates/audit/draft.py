"""The draft head: there, whole, quantized like the layer it mirrors, and its KV scales."""

from __future__ import annotations

from typing import Any

from tasks.architectures import last_full_attention, main_analogue
from tasks.gates.audit.model import KV_SCALES, Model, Module
from tasks.gates.audit.result import Findings, Promise


def check_draft(model: Model, promise: Promise, findings: Findings) -> str:
    """Check the draft head; returns what it is: nvfp4, bf16 or none."""
    precision = draft_precision(model)
    if precision == "none":
        named = [e for li in model.lists.values() for e in li.entries if e.startswith("mtp")]
        if promise.draft not in (None, "none"):
            findings.add("draft-missing", "mtp", f"A {promise.draft} draft head was promised.")
        elif named:
            what = f"The exclude lists speak of {named[0]}, and no tensor is there."
            findings.add("draft-missing", "mtp", what)
        return precision
    if promise.draft is not None and promise.draft != precision:
        what = f"The draft head is {precision}, promised was {promise.draft}."
        findings.add("draft-mixed", "mtp", what)
    if precision == "nvfp4":
        _check_mirror(model, findings)
    return precision


def draft_precision(model: Model) -> str:
    """nvfp4 when any module of it is packed or has scales, else bf16; none without a head."""
    if not model.has_draft:
        return "none"
    drafts = (module for module in model.modules.values() if module.draft)
    return "nvfp4" if any(module.packed or module.scales for module in drafts) else "bf16"


def check_kv(model: Model, promise: Promise, findings: Findings) -> None:
    """K and V scales are there when the cache is FP8, at their place, and only then."""
    fp8 = model.kv_cache() is not None
    if promise.kv_cache is not None and fp8 != (promise.kv_cache == "fp8"):
        what = f"kv_cache_quant_algo is {model.kv_cache()}, promised was {promise.kv_cache}."
        findings.add("quant-algo", "hf_quant_config.json", what)
    drafts = draft_precision(model) == "nvfp4"
    for module in model.modules.values():
        for suffix in KV_SCALES:
            if suffix in module.tensors and (not fp8 or not _is_place(module, suffix)):
                what = (
                    "No FP8 cache is declared." if not fp8 else "It belongs beside k_proj, v_proj."
                )
                findings.add("kv-scale-unexpected", module.name + suffix, what)
    if not fp8 or not model.complete:
        return
    for name in model.expected:
        leaf = name.rpartition(".")[2]
        wanted = {"k_proj": ".k_scale", "v_proj": ".v_scale"}.get(leaf)
        if wanted is None or (name.startswith("mtp.") and not drafts):
            continue
        holder = model.modules.get(name)
        if holder is None or wanted not in holder.tensors:
            findings.add("kv-scale-missing", name + wanted, "An FP8 cache needs it.")


def kv_summary(model: Model, values: dict[str, float]) -> dict[str, Any]:
    """k_scale and v_scale of the draft head and of the layer that it mirrors."""
    rows: dict[str, Any] = {}
    layer = model.architecture.layers.replace("{layer}", str(last_full_attention(model.config)))
    for part, prefix in (("main", layer), ("draft", "mtp.layers.0")):
        for leaf in ("k", "v"):
            name = f"{prefix}.self_attn.{leaf}_proj.{leaf}_scale"
            if name in values:
                rows[f"{part}_{leaf}_scale"] = values[name]
    return rows


def _is_place(module: Module, suffix: str) -> bool:
    return module.leaf == {".k_scale": "k_proj", ".v_scale": "v_proj"}[suffix]


def _check_mirror(model: Model, findings: Findings) -> None:
    for module in model.modules.values():
        if not module.draft or module.kind.must_be_bf16 or module.weight is None:
            continue
        name = main_analogue(model.architecture, model.config, module.name)
        twin = model.modules.get(name) if name else None
        if twin is not None and twin.weight is not None and twin.packed != module.packed:
            kinds = ("BF16", "NVFP4")
            what = f"Is {kinds[module.packed]}, {twin.name} is {kinds[twin.packed]}."
            findings.add("draft-mixed", module.weight.name, what)
