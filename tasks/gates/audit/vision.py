"""The vision tower, whose modules the architecture table leaves open: whole, of one shape."""

from __future__ import annotations

import re

from tasks.gates.audit.model import Model
from tasks.gates.audit.result import Findings

BLOCK = re.compile(r"(?P<before>model\.visual\.(?:.+\.)?blocks)\.(?P<index>\d+)\.(?P<rest>.+)")


def check_vision(model: Model, findings: Findings) -> None:
    """As many blocks as config.json says, all with the same tensors of the same shapes."""
    config = model.config.get("vision_config")
    if not isinstance(config, dict) or not model.complete:
        return
    blocks: dict[int, dict[str, tuple[int, ...]]] = {}
    for name, info in model.files.tensors.items():
        found = BLOCK.fullmatch(name)
        if found:
            blocks.setdefault(int(found["index"]), {})[found["rest"]] = info.shape
    depth = config.get("depth")
    if not any(name.startswith("model.visual.") for name in model.files.tensors):
        findings.add("tensor-missing", "model.visual", "config.json has a vision tower.")
        return
    if type(depth) is int and set(blocks) != set(range(depth)):
        what = f"{len(blocks)} blocks, config.json says {depth}."
        findings.add("tensor-missing", "model.visual.blocks", what)
    every = {rest: shape for block in blocks.values() for rest, shape in block.items()}
    for index, block in blocks.items():
        for rest, shape in every.items():
            name = f"model.visual.blocks.{index}.{rest}"
            if rest not in block:
                findings.add("tensor-missing", name, "Other blocks have it.")
            elif block[rest] != shape:
                what = f"Is {list(block[rest])}, in another block {list(shape)}."
                findings.add("shape-mismatch", name, what)
