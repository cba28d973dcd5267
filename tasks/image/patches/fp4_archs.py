"""fp4-archs: CUTLASS DSL's block-scaled tcgen05 instruction is admitted on sm_120a and sm_121a."""

from __future__ import annotations

import ast
from pathlib import Path

from .source import DriftError, Edit, Finding, Source, Workspace, class_named, is_name

NAME = "fp4-archs"
HOLDS = (
    "tcgen05.BlockScaledMmaOp.admissible_archs holds sm_120a and sm_121a in the CUTLASS DSL and in"
    " the copy that flashinfer bundles"
)
VERSIONS = {
    "0.5.15 (CUTLASS DSL 4.5.2)": "needed by the release's author; two copies",
    "0.5.16 on (CUTLASS DSL 4.6.0 on)": "not applicable: only flashinfer's unused copy is left",
}
REFERENCE = (
    "cutlass/cute/nvgpu/tcgen05/mma.py; NVIDIA: tcgen05 does not exist on sm_12x,"
    " warp.MmaSM120BlockScaledOp admits sm_121a"
)
DSL = "nvidia_cutlass_dsl"
OLD = f"{DSL}/python_packages/cutlass/cute/nvgpu"
NEW = f"{DSL}/dsl_packages/cutlass/cute/nvgpu"
BUNDLE = "flashinfer/data/cutlass/python/CuTeDSL/cutlass/cute/nvgpu"
_CLASS = "BlockScaledMmaOp"
_ARCHS = ("sm_120a", "sm_121a")


def plan(work: Workspace) -> Finding:
    """Look at the DSL and at flashinfer's copy; see `HOLDS`."""
    missing = tuple(name for name in (DSL, "flashinfer") if work.locate(name) is None)
    if DSL in missing:
        return Finding("not-applicable", f"not installed: {', '.join(missing)}", missing=missing)
    if work.locate(f"{OLD}/tcgen05/mma.py") is None:
        return _moved(work, missing)
    targets = [f"{OLD}/tcgen05/mma.py"]
    if "flashinfer" not in missing:
        targets.append(f"{BUNDLE}/tcgen05/mma.py")
    return _both(work, targets, missing)


def _moved(work: Workspace, missing: tuple[str, ...]) -> Finding:
    """The DSL's file is not where it was: is it where we know it to have gone?"""
    path = work.locate(f"{NEW}/tcgen05/mma.py")
    if path is None or _archs(work.open(path)) is None:
        raise DriftError(f"{DSL} has no tcgen05.{_CLASS} in any known place")
    warp = work.locate(f"{NEW}/warp/mma.py")
    admits = warp is not None and _warp_admits(work.open(warp))
    if not admits:
        raise DriftError(f"{DSL}: no warp instruction admits {_ARCHS[1]}, and tcgen05 has moved")
    return Finding(
        "not-applicable",
        "the DSL's tcgen05 moved to dsl_packages, and sm_12x has no tcgen05; its own"
        f" warp instruction already admits {_ARCHS[1]}; flashinfer's copy is not used",
        missing=missing,
    )


def _both(work: Workspace, targets: list[str], missing: tuple[str, ...]) -> Finding:
    edits: dict[Path, list[Edit]] = {}
    for target in targets:
        path = work.locate(target)
        source = work.open(path) if path else None
        listed = _archs(source) if source else None
        if path is None or source is None or listed is None:
            raise DriftError(f"{target}: no {_CLASS} with a list of admissible_archs")
        names = {item.attr for item in listed.elts if isinstance(item, ast.Attribute)}
        absent = [arch for arch in _ARCHS if arch not in names]
        last = listed.elts[-1] if listed.elts else None
        if not isinstance(last, ast.Attribute) or len(names) != len(listed.elts):
            raise DriftError(f"{target}: admissible_archs lists something that is not known")
        if absent:
            owner = source.text(last.value)
            indent = "\n" + " " * last.col_offset if last.lineno != listed.lineno else " "
            words = "".join(f",{indent}{owner}.{arch}" for arch in absent)
            edits[path] = [Edit(source.end(last), source.end(last), words)]
    note = f"; not installed: {', '.join(missing)}" if missing else ""
    if edits:
        reason = "sm_12x is refused by the block-scaled instruction" + note
        return Finding("needed", reason, len(edits), edits, missing)
    return Finding("applied", "sm_12x is admitted" + note, len(targets), missing=missing)


def _archs(source: Source) -> ast.List | None:
    """The list literal `admissible_archs` of the class; None when there is none."""
    found = class_named(source.tree, _CLASS)
    for statement in found.body if found else []:
        if isinstance(statement, ast.Assign) and is_name(statement.targets[0], "admissible_archs"):
            return statement.value if isinstance(statement.value, ast.List) else None
    return None


def _warp_admits(source: Source) -> bool:
    return any(
        isinstance(statement, ast.Assign)
        and is_name(statement.targets[0], "admissible_archs")
        and any(
            isinstance(item, ast.Attribute) and item.attr == _ARCHS[1]
            for item in ast.walk(statement.value)
        )
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
    )
