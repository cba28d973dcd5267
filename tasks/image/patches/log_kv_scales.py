"""log-kv-scales: the loaded K and V scale of each attention layer stands in the log."""

from __future__ import annotations

import ast
from pathlib import Path

from .source import (
    DriftError,
    Edit,
    Finding,
    Source,
    Workspace,
    class_named,
    function_named,
    helper_state,
    is_name,
    parameters,
)

NAME = "log-kv-scales"
HOLDS = (
    "after a load, each attention layer with a quantized KV cache has printed one line:"
    " quantgate kv-scales: role=main|draft layer=N k_scale=X v_scale=Y"
)
VERSIONS = {"0.5.15 - 0.5.23": "needed: no endpoint and no stock line tells them"}
REFERENCE = "layers/quantization/kv_cache.py, where v_scale_float is set; layers/radix_attention.py"
METHOD = "sglang/srt/layers/quantization/kv_cache.py"
LAYER = "sglang/srt/layers/radix_attention.py"

HELPER = '''
def _quantgate_log_kv_scales(layer):
    """Added when the image was built: what this attention layer really uses (1 = none loaded)."""
    role = "draft" if "mtp" in getattr(layer, "quantgate_prefix", "").split(".") else "main"
    print(
        f"quantgate kv-scales: role={role} layer={layer.layer_id}"
        f" k_scale={layer.k_scale_float:.9g} v_scale={layer.v_scale_float:.9g}",
        flush=True,
    )
'''
_CALL = "_quantgate_log_kv_scales(layer)"
_NOTE = "self.quantgate_prefix = prefix"


def plan(work: Workspace) -> Finding:
    """Look at `kv_cache.py` and `radix_attention.py`; see `HOLDS`."""
    edits: dict[Path, list[Edit]] = {}
    for target, look in ((METHOD, _method), (LAYER, _layer)):
        path, source = work.find(target)
        found = look(source)
        if found:
            edits[path] = found
    if edits:
        return Finding("needed", "nothing tells the loaded scales", len(edits), edits)
    return Finding("applied", "each layer prints its scales", 2)


def _method(source: Source) -> list[Edit]:
    """Edits of `kv_cache.py`: print where both scales have been set."""
    helper = helper_state(source.tree, HELPER)
    if helper == "different":
        raise DriftError("another version of this patch was applied")
    owner = class_named(source.tree, "BaseKVCacheMethod")
    name = "process_weights_after_loading"
    function = function_named(owner.body, name) if owner else None
    if function is None or parameters(function)[:2] != ["self", "layer"]:
        raise DriftError(f"BaseKVCacheMethod.{name}(self, layer) is not there")
    places = {
        part: [item for item in function.body if _sets(item, f"{part}_scale_float")]
        for part in ("k", "v")
    }
    if any(len(found) != 1 for found in places.values()):
        raise DriftError(f"{name} does not set k_scale_float and v_scale_float once each")
    last = max((found[0] for found in places.values()), key=lambda item: item.lineno)
    rest = function.body[function.body.index(last) + 1 :]
    if any(_is_call(item) for item in rest):
        if helper != "same":
            raise DriftError("scales are printed, but the printer is not there")
        return []
    edits = [source.after(last, _CALL)]
    if helper == "absent":
        edits.append(source.after_imports(HELPER))
    return edits


def _layer(source: Source) -> list[Edit]:
    """Edits of `radix_attention.py`: keep the prefix, which tells the draft's layer apart."""
    owner = class_named(source.tree, "RadixAttention")
    init = function_named(owner.body, "__init__") if owner else None
    if init is None or not {"prefix", "layer_id"} <= set(parameters(init)):
        raise DriftError("RadixAttention.__init__ with prefix and layer_id is not there")
    begun = [item for item in init.body if ast.unparse(item) == "super().__init__()"]
    if len(begun) != 1:
        raise DriftError("RadixAttention.__init__ does not call super().__init__() once")
    if any(ast.unparse(item) == _NOTE for item in init.body):
        return []
    return [source.after(begun[0], _NOTE)]


def _sets(statement: ast.stmt, attribute: str) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Attribute)
        and statement.targets[0].attr == attribute
        and is_name(statement.targets[0].value, "layer")
    )


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement.value) == _CALL
