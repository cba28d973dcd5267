"""mtp-quant: a quantized draft head is built quantized."""

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
    helper_state,
    is_name,
    keyword,
    mentions,
)

NAME = "mtp-quant"
HOLDS = (
    "qwen3_5_mtp.py drops the quant_config of a modelopt_fp4 checkpoint only where the"
    " checkpoint's exclude list names the MTP experts"
)
VERSIONS = {
    "0.5.15 - 0.5.17": "needed, in Qwen3_5ForCausalLMMTP.__init__",
    "0.5.18 - 0.5.23": "needed, in _mtp_quant_config",
}
REFERENCE = "qwen3_5_mtp.py; none upstream up to 0.5.23"
TARGET = "sglang/srt/models/qwen3_5_mtp.py"
MODEL = "Qwen3_5ForCausalLMMTP"
_FORMAT = "modelopt_fp4"

HELPER = '''
def _quantgate_mtp_quantized(quant_config):
    """Added when the image was built: whether the checkpoint keeps its MTP experts quantized."""
    if quant_config.get_name() != "modelopt_fp4":
        return False
    if not quant_config.is_checkpoint_nvfp4_serialized:
        return False
    modules = (
        "mtp.layers.0.mlp.experts",
        "mtp.layers.0.mlp.experts.gate_up_proj",
        "mtp.layers.0.mlp.experts.0.gate_proj",
        "mtp.layers.0.mlp.down_proj",
    )
    return not any(quant_config.is_layer_excluded(module) for module in modules)
'''
_NAME_OF_HELPER = "_quantgate_mtp_quantized"


def plan(work: Workspace) -> Finding:
    """Look at `qwen3_5_mtp.py`; see `HOLDS`."""
    path, source = work.find(TARGET)
    helper = helper_state(source.tree, HELPER)
    if helper == "different":
        raise DriftError("another version of this patch was applied")
    place = _deciding_function(source.tree)
    drops = [node for node in ast.walk(place) if isinstance(node, ast.If) and _drops(node)]
    if len(drops) != 1:
        if not drops and _asks_exclusions(place):
            return Finding("upstream", "the exclude list decides")
        raise DriftError(f"{len(drops)} places drop the quantization of {_FORMAT} instead of 1")
    drop = drops[0]
    if _guarded(drop.test):
        if helper != "same":
            raise DriftError("the drop is guarded, but the guard is not there")
        return Finding("applied", "the exclude list decides", 1)
    if _asks_exclusions(drop.test):
        return Finding("upstream", "the exclude list decides")
    edits = [
        Edit(source.start(drop.test), source.start(drop.test), "("),
        Edit(
            source.end(drop.test),
            source.end(drop.test),
            f") and not {_NAME_OF_HELPER}(quant_config)",
        ),
    ]
    if helper == "absent":
        edits.append(source.after_imports(HELPER))
    return Finding("needed", f"{_FORMAT} always drops the draft's quantization", 1, {path: edits})


def _deciding_function(tree: ast.Module) -> ast.FunctionDef:
    """The function that decides on the draft's quantization, provided its answer is used."""
    model = class_named(tree, MODEL)
    init = function_named(model.body, "__init__") if model else None
    if init is None:
        raise DriftError(f"class {MODEL} is not there")
    bodies = calls(init, "Qwen3_5ForCausalLM")
    if len(bodies) != 1 or not any(
        is_name(value, "quant_config")
        for value in (*bodies[0].args, keyword(bodies[0], "quant_config"))
    ):
        raise DriftError(f"{MODEL} does not build its layer with the name quant_config")
    chooser = function_named(tree.body, "_mtp_quant_config")
    if chooser is None:
        return init
    if not any(
        isinstance(node, ast.Assign)
        and is_name(node.targets[0], "quant_config")
        and isinstance(node.value, ast.Call)
        and is_name(node.value.func, chooser.name)
        for node in init.body
    ):
        raise DriftError(f"{MODEL} does not use the answer of {chooser.name}")
    return chooser


def _drops(node: ast.If) -> bool:
    """Whether this `if` on the format does nothing but drop the quantization."""
    if not mentions(node.test, _FORMAT) or len(node.body) != 1 or node.orelse:
        return False
    only = node.body[0]
    if isinstance(only, ast.Return) or (
        isinstance(only, ast.Assign) and is_name(only.targets[0], "quant_config")
    ):
        return isinstance(only.value, ast.Constant) and only.value.value is None
    return False


def _guarded(test: ast.expr) -> bool:
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)):
        return False
    last = test.values[-1]
    return (
        isinstance(last, ast.UnaryOp)
        and isinstance(last.op, ast.Not)
        and isinstance(last.operand, ast.Call)
        and is_name(last.operand.func, _NAME_OF_HELPER)
    )


def _asks_exclusions(node: ast.AST) -> bool:
    """Whether the code reads the exclude list for a modelopt_fp4 checkpoint."""
    return mentions(node, _FORMAT) and any(
        isinstance(item, ast.Attribute) and item.attr in {"is_layer_excluded", "exclude_modules"}
        for item in ast.walk(node)
    )
