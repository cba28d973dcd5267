"""mtp-kv-scales: the draft head's K and V scales reach its attention layer."""

from __future__ import annotations

from .scale_names import CALL, HELPER, first_statement, loaders, mapped
from .source import DriftError, Finding, Workspace, helper_state

NAME = "mtp-kv-scales"
HOLDS = (
    "the load_weights of qwen3_5_mtp.py maps .self_attn.{k,v}_proj.{k,v}_scale to .attn.{k,v}_scale"
)
VERSIONS = {"0.5.15 - 0.5.18": "needed", "0.5.19 - 0.5.23": "upstream"}
REFERENCE = "sglang 0.5.19, qwen3_5_mtp.py: the main model's mapper is applied there too"
TARGET = "sglang/srt/models/qwen3_5_mtp.py"


def plan(work: Workspace) -> Finding:
    """Look at `qwen3_5_mtp.py`; see `HOLDS`."""
    path, source = work.find(TARGET)
    helper = helper_state(source.tree, HELPER)
    if helper == "different":
        raise DriftError("another version of this patch was applied")
    functions = loaders(source)
    if len(functions) != 1:
        raise DriftError(f"{len(functions)} load_weights instead of 1")
    state = mapped(work, source, functions[0])
    if state == "unknown":
        raise DriftError("load_weights treats names in a way that is not known")
    if state == "upstream":
        return Finding("upstream", "names are mapped by SGLang's own mapper")
    if state == "ours" and helper == "absent":
        raise DriftError("names are mapped by a function that is not there")
    if state == "ours":
        return Finding("applied", "names are mapped", 1)
    edits = [source.before(first_statement(functions[0]), CALL)]
    if helper == "absent":
        edits.append(source.after_imports(HELPER))
    return Finding("needed", "the draft head's scales are dropped", 1, {path: edits})
