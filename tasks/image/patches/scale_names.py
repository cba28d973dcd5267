"""What kv-scales and mtp-kv-scales share: checkpoint names of KV scales, mapped at load.

A checkpoint keeps them at `...self_attn.k_proj.k_scale`; SGLang's parameter is `...attn.k_scale`.
A name that is not mapped is dropped without a line in the log, and the scale stays 1.0.
"""

from __future__ import annotations

import ast

from .source import Source, Workspace, is_name, methods, parameters

HELPER = '''
def _quantgate_kv_scales(weights):
    """Added when the image was built: KV scales belong to the attention, not to k_proj, v_proj."""
    for name, weight in weights:
        for part in ("k", "v"):
            old = f".self_attn.{part}_proj.{part}_scale"
            if name.endswith(old):
                name = name[: -len(old)] + f".attn.{part}_scale"
        yield name, weight
'''
CALL = "weights = _quantgate_kv_scales(weights)"
_WANTED = {
    ".self_attn.k_proj.k_scale": ".attn.k_scale",
    ".self_attn.v_proj.v_scale": ".attn.v_scale",
}


def loaders(source: Source) -> list[ast.FunctionDef]:
    """Every `load_weights` method in the file."""
    return [function for _, function in methods(source.tree, "load_weights")]


def mapped(work: Workspace, source: Source, function: ast.FunctionDef) -> str:
    """How one `load_weights` treats the names: `ours`, `upstream`, `missing` or `unknown`."""
    if parameters(function)[1:2] != ["weights"]:
        return "unknown"
    loop = _loop(function)
    if loop is None:
        return "unknown"
    found = "missing"
    for statement in function.body[: function.body.index(loop)]:
        if not _sets_weights(statement):
            continue
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not (
            isinstance(call, ast.Call) and len(call.args) == 1 and is_name(call.args[0], "weights")
        ):
            return "unknown"
        if is_name(call.func, "_quantgate_kv_scales"):
            found = "ours"
        elif _is_mapper(work, source, call.func):
            found = "upstream"
        else:
            return "unknown"
    return found


def first_statement(function: ast.FunctionDef) -> ast.stmt:
    """The first statement after the docstring."""
    first = function.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
        and len(function.body) > 1
    ):
        return function.body[1]
    return first


def _loop(function: ast.FunctionDef) -> ast.For | None:
    """The function's own loop over `weights`."""
    for statement in function.body:
        if isinstance(statement, ast.For) and is_name(statement.iter, "weights"):
            return statement
    return None


def _sets_weights(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == "weights" and isinstance(node.ctx, ast.Store)
        for node in ast.walk(statement)
    )


def _is_mapper(work: Workspace, source: Source, func: ast.expr) -> bool:
    """Whether `func` is `M.apply` with M a module-level WeightsMapper that maps both scales."""
    if not (isinstance(func, ast.Attribute) and func.attr == "apply"):
        return False
    if not isinstance(func.value, ast.Name):
        return False
    name = func.value.id
    table = _table(source.tree, name)
    for statement in source.tree.body:
        if table is None and isinstance(statement, ast.ImportFrom) and statement.module:
            if not any(alias.name == name and not alias.asname for alias in statement.names):
                continue
            path = work.locate(statement.module.replace(".", "/") + ".py")
            table = _table(work.open(path).tree, name) if path else None
    return table is not None and all(table.get(old) == new for old, new in _WANTED.items())


def _table(tree: ast.Module, name: str) -> dict[str, str] | None:
    for statement in tree.body:
        if not (isinstance(statement, ast.Assign) and is_name(statement.targets[0], name)):
            continue
        call = statement.value
        if not (isinstance(call, ast.Call) and is_name(call.func, "WeightsMapper")):
            return None
        for item in call.keywords:
            if item.arg == "orig_to_new_substr":
                try:
                    return dict(ast.literal_eval(item.value))
                except (ValueError, TypeError):
                    return None
    return None
