"""Is what the engine loaded what the checkpoint holds? Files on one side, log and server facts on
the other."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artifacts import Reason
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError
from tasks.gates.loadlog import LoadLog

_SCALE = re.compile(r"(?:^|\.)layers\.(?P<layer>\d+)\.self_attn\.(?P<kv>[kv])_proj\.(?P=kv)_scale$")
_FP8 = ("float8_e4m3fn", "fp8_e4m3", "fp8")


@dataclass(frozen=True)
class Expected:
    """What a checkpoint says that an engine must show. `scales`: 'role.layer' -> [k, v] as hex."""

    architecture: str | None
    draft: str | None
    scales: dict[str, list[str | None]]
    chat_template: bool
    faults: tuple[str, ...] = ()


def expected(checkpoint: Path) -> Expected:
    """Read a checkpoint folder; what cannot be read is a fault, not an error."""
    template = _has_chat_template(checkpoint)
    try:
        files = CheckpointFiles.open(checkpoint)
    except BadInputError as error:
        return Expected(None, None, {}, template, (str(error),))
    scales: dict[str, list[str | None]] = {}
    draft: str | None = None
    for name, info in files.tensors.items():
        is_draft = name.startswith("mtp.")
        if is_draft and name.endswith(".weight") and draft != "nvfp4":
            draft = "nvfp4" if info.dtype == "U8" else "bf16"
        match = _SCALE.search(name)
        if match:
            key = f"{'draft' if is_draft else 'main'}.{match['layer']}"
            value = np.float32(files.array(name).reshape(-1)[0])
            scales.setdefault(key, [None, None])["kv".index(match["kv"])] = float(value).hex()
    names = files.config.get("architectures") or [None]
    files.release()
    return Expected(names[0], draft, dict(sorted(scales.items())), template)


def compare(expects: Expected, log: LoadLog | None, facts: Mapping[str, Any]) -> list[Reason]:
    """Every difference between checkpoint and engine that condemns the load."""
    found = [("checkpoint-unreadable", fault) for fault in expects.faults]
    served = facts.get("architectures") or ()
    if served and expects.architecture and expects.architecture not in served:
        found.append(("other-model", f"serves {served[0]}, not {expects.architecture}"))
    if not expects.chat_template and not expects.faults:
        found.append(("chat-template-missing", "the checkpoint holds no chat template"))
    if log is not None:
        found += _types(expects, log) + _cache(expects, log) + _scales(expects, log)
    return [Reason(code=code, detail=detail) for code, detail in found]


def not_measured(expects: Expected | None, log: LoadLog | None) -> list[Reason]:
    """The log checks that nothing was there to make."""
    found = []
    if log is None:
        found.append("no load log was given")
    elif not log.loaded:
        found.append("the log holds no `Load weight end` line")
    if log is not None and expects is not None and expects.scales and not log.kv_scales:
        found.append("the log holds no kv-scales lines (patch log-kv-scales)")
    if expects is None:
        found.append("no checkpoint was given to compare the loaded scales with")
    return [Reason(code="not-measured", detail=words) for words in found]


def _types(expects: Expected, log: LoadLog) -> list[tuple[str, str]]:
    found = []
    main = log.loaded[0] if log.loaded else None
    if main and expects.architecture and main.type != expects.architecture:
        found.append(("other-model", f"the log loads {main.type}, not {expects.architecture}"))
    drafts = [item for item in log.loaded if is_draft(item.type)]
    if expects.draft == "nvfp4" and drafts and drafts[-1].quant is None:
        found.append(("draft-precision", "the quantized draft head was loaded unquantized"))
    return found


def is_draft(type_name: str) -> bool:
    """Whether a class name of the log is a draft head's."""
    return type_name.lower().endswith(("mtp", "nextn"))


def _cache(expects: Expected, log: LoadLog) -> list[tuple[str, str]]:
    """The two `KV Cache is allocated` lines: target first, draft second."""
    found = []
    roles = [("main", "target"), ("draft", "draft head")]
    for (role, words), dtype in zip(roles, log.kv_dtypes, strict=False):
        wanted = any(key.startswith(role) for key in expects.scales)
        if wanted != (dtype in _FP8) and (role == "main" or expects.draft):
            code = "draft-precision" if role == "draft" else "kv-cache-dtype"
            kind = "FP8" if wanted else "BF16"
            found.append((code, f"the {words}'s KV cache is {dtype}; its checkpoint says {kind}"))
    return found


def _scales(expects: Expected, log: LoadLog) -> list[tuple[str, str]]:
    if not log.kv_scales:
        return []
    found = []
    logged = {f"{s.role}.{s.layer}" for s in log.kv_scales}
    for key in sorted(set(expects.scales) - logged):
        if key.startswith("main") or any(is_draft(item.type) for item in log.loaded):
            found.append(("kv-scale-missing", f"no kv-scales line for {key}"))
    for line in log.kv_scales:
        key = f"{line.role}.{line.layer}"
        wanted = expects.scales.get(key, [None, None])
        for name, text, hexed in zip("kv", (line.k, line.v), wanted, strict=True):
            fault = _differs(text, hexed)
            if fault:
                found.append(("kv-scale-mismatch", f"{key} {name}_scale: {fault}"))
    return found


def _differs(text: str, hexed: str | None) -> str | None:
    """Compare a logged scale with the checkpoint's, bit for bit as float32."""
    try:
        given = np.float32(text)
    except ValueError:
        return f"loaded {text}, which is no number"
    if hexed is None:
        return None if given == 1 else f"loaded {text}, the checkpoint has none"
    wanted = np.float32(float.fromhex(hexed))
    if wanted == 1:
        return "1.0 in the checkpoint, which cannot be told from a scale that was never loaded"
    if given.tobytes() == wanted.tobytes():
        return None
    default = ", the default: the scale was dropped at load" if given == 1 else ""
    return f"loaded {text}, the checkpoint has {wanted:.9g}{default}"


def _has_chat_template(checkpoint: Path) -> bool:
    if (checkpoint / "chat_template.jinja").is_file():
        return True
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            config = json.loads((checkpoint / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and config.get("chat_template"):
            return True
    return False
