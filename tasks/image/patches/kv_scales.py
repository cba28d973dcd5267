"""kv-scales: the main model's calibrated K and V scales reach its attention layers."""

from __future__ import annotations

from .scale_names import CALL, HELPER, first_statement, loaders, mapped
from .source import (
    DriftError,
    Edit,
    Finding,
    Source,
    Workspace,
    calls,
    helper_state,
    is_name,
    keyword,
    methods,
    parameters,
)

NAME = "kv-scales"
HOLDS = (
    "every RadixAttention in qwen3_5.py is built with the quant_config, and every load_weights"
    " there maps .self_attn.{k,v}_proj.{k,v}_scale to .attn.{k,v}_scale"
)
VERSIONS = {"0.5.15 - 0.5.16": "needed", "0.5.17 - 0.5.23": "upstream"}
REFERENCE = "sglang PR 31220"
TARGET = "sglang/srt/models/qwen3_5.py"
LOADERS = 4
"""`load_weights` methods in every version that was read: dense, MoE, and both with vision."""


def plan(work: Workspace) -> Finding:
    """Look at `qwen3_5.py`; see `HOLDS`."""
    path, source = work.find(TARGET)
    helper = helper_state(source.tree, HELPER)
    if helper == "different":
        raise DriftError("another version of this patch was applied")
    edits = _layers(source)
    functions = loaders(source)
    if len(functions) < LOADERS:
        raise DriftError(f"{len(functions)} load_weights instead of {LOADERS}")
    states = [mapped(work, source, function) for function in functions]
    if "ours" in states and helper == "absent":
        raise DriftError("names are mapped by a function that is not there")
    if "unknown" in states:
        line = functions[states.index("unknown")].lineno
        raise DriftError(f"line {line}: this load_weights treats names in a way that is not known")
    for function, state in zip(functions, states, strict=True):
        if state == "missing":
            edits.append(source.before(first_statement(function), CALL))
    if edits:
        sites = len(edits)
        if helper == "absent" and "missing" in states:
            edits.append(source.after_imports(HELPER))
        return Finding("needed", "scales of the checkpoint are dropped", sites, {path: edits})
    if "ours" in states:
        return Finding("applied", "names are mapped", states.count("ours") + _count(source))
    return Finding("upstream", "names are mapped by SGLang's own mapper")


def _layers(source: Source) -> list[Edit]:
    """Edits that give each RadixAttention its quant_config."""
    edits: list[Edit] = []
    if not _count(source):
        raise DriftError("no RadixAttention is built there")
    for _, init in methods(source.tree, "__init__"):
        for call in calls(init, "RadixAttention"):
            value = keyword(call, "quant_config")
            if is_name(value, "quant_config"):
                continue
            if value is not None or "quant_config" not in parameters(init) or not call.keywords:
                raise DriftError(f"line {call.lineno}: RadixAttention is built in an unknown way")
            last = call.keywords[-1]
            end = source.end(last.value)
            indent = " " * last.col_offset
            edits.append(Edit(end, end, f",\n{indent}quant_config=quant_config"))
    return edits


def _count(source: Source) -> int:
    return sum(len(calls(init, "RadixAttention")) for _, init in methods(source.tree, "__init__"))
