"""attention-quant: attention and Gated-DeltaNet keep the checkpoint's quantization."""

from __future__ import annotations

import ast

from .source import (
    DriftError,
    Edit,
    Finding,
    Workspace,
    calls,
    class_named,
    function_named,
    is_name,
    keyword,
    mentions,
    methods,
    parameters,
)

NAME = "attention-quant"
HOLDS = (
    "the linear-attention and full-attention layers of qwen3_5.py are built with the model's own"
    " quant_config, also for modelopt_fp4"
)
VERSIONS = {"0.5.15 - 0.5.16": "needed", "0.5.17 - 0.5.23": "upstream"}
REFERENCE = "qwen3_5.py, the decoder layers' __init__; upstream with sglang PR 31220's release"
TARGET = "sglang/srt/models/qwen3_5.py"
_FORMAT = "modelopt_fp4"
_GDN = "Qwen3_5GatedDeltaNet"


def plan(work: Workspace) -> Finding:
    """Look at `qwen3_5.py`; see `HOLDS`."""
    path, source = work.find(TARGET)
    forced: list[ast.Assign] = []
    passed: list[ast.Assign] = []
    for init, value in _uses(source.tree):
        how = _resolve(init, value)
        if how is None:
            raise DriftError(f"line {value.lineno}: quant_config cannot be followed")
        if isinstance(how, ast.Assign):
            seen = passed if is_name(how.value, "quant_config") else forced
            if how not in seen:
                seen.append(how)
    others = _other_mentions(source.tree, forced)
    if others:
        raise DriftError(f"line {others[0]}: {_FORMAT} is treated apart in a way that is not known")
    if forced:
        edits = [
            Edit(
                source.start(assign),
                source.end(assign),
                f"{source.text(assign.targets[0])} = quant_config",
            )
            for assign in forced
        ]
        return Finding("needed", "attention is forced to unquantized", len(edits), {path: edits})
    if passed:
        return Finding("applied", "quant_config is passed through", len(passed))
    return Finding("upstream", "quant_config is passed straight to every attention layer")


def _uses(tree: ast.Module) -> list[tuple[ast.FunctionDef, ast.expr]]:
    """Each value given as quant_config to the layers in question, with the `__init__` it is in."""
    gdn = class_named(tree, _GDN)
    gdn_init = function_named(gdn.body, "__init__") if gdn else None
    if gdn_init is None or "quant_config" not in parameters(gdn_init):
        raise DriftError(f"class {_GDN} with a quant_config is not there")
    place = parameters(gdn_init).index("quant_config") - 1
    found: list[tuple[ast.FunctionDef, ast.expr]] = []
    linear = full = 0
    for _, init in methods(tree, "__init__"):
        for call in calls(init, _GDN):
            value = keyword(call, "quant_config")
            if value is None and place < len(call.args):
                value = call.args[place]
            if value is None:
                raise DriftError(f"line {call.lineno}: {_GDN} gets no quant_config")
            found.append((init, value))
            linear += 1
        if calls(init, "RadixAttention"):
            for name in ("QKVParallelLinear", "RowParallelLinear"):
                for call in calls(init, name):
                    value = keyword(call, "quant_config")
                    if value is None:
                        raise DriftError(f"line {call.lineno}: {name} gets no quant_config")
                    found.append((init, value))
                    full += 1
    if not linear or full < 2:
        raise DriftError("the decoder layers that build the attention are not there")
    return found


def _resolve(init: ast.FunctionDef, value: ast.expr) -> ast.Assign | str | None:
    """`direct`, the assignment that passes it on or forces None, or None: cannot be told."""
    if not isinstance(value, ast.Name) or "quant_config" not in parameters(init):
        return None
    assigns = [
        node
        for node in ast.walk(init)
        if isinstance(node, ast.Assign) and any(is_name(one, value.id) for one in node.targets)
    ]
    if value.id == "quant_config":
        return None if assigns else "direct"
    if len(assigns) != 1:
        return None
    value = assigns[0].value
    return assigns[0] if is_name(value, "quant_config") or _forces_none(value) else None


def _forces_none(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.IfExp)
        and isinstance(value.body, ast.Constant)
        and value.body.value is None
        and is_name(value.orelse, "quant_config")
        and mentions(value.test, _FORMAT)
        and any(
            isinstance(node, ast.Attribute) and node.attr == "get_name"
            for node in ast.walk(value.test)
        )
    )


def _other_mentions(tree: ast.Module, known: list[ast.Assign]) -> list[int]:
    inside = {id(node) for assign in known for node in ast.walk(assign)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == _FORMAT and id(node) not in inside
    ]
