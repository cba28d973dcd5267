"""Apply all patches to one tree, or none; prove what was written; say what became of each.

Runs in the project and inside an image alike (`python -I PATCHES_FOLDER --image`), standard library
only.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import site
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from . import attention_quant, fp4_archs, kv_scales, log_kv_scales, mtp_kv_scales, mtp_quant
from .source import DriftError, Finding, Workspace

PATCHES: tuple[ModuleType, ...] = (
    attention_quant,
    kv_scales,
    mtp_quant,
    mtp_kv_scales,
    fp4_archs,
    log_kv_scales,
)
MANIFEST = "/opt/quantgate/manifest.json"


class NoSGLangError(Exception):
    """The folder holds no SGLang."""


def apply(roots: list[Path], check: bool) -> tuple[dict[str, Any], list[Path]]:
    """Apply the patches to the packages under `roots`, unless `check`.

    All or nothing: when one patch has drifted, or what was written does not hold, every file stays
    (or is put back) as it was.

    Returns:
        The report {"sglang_version", "patches": [{"name", "state", "reason", "sites"}]}, and the
        files that were written.

    Raises:
        NoSGLangError: there is no `sglang` folder under the roots.
    """
    if not any((root / "sglang").is_dir() for root in roots):
        raise NoSGLangError(f"{roots[0]} holds no sglang folder")
    work = Workspace(*roots)
    findings = {patch.NAME: _find(patch, work) for patch in PATCHES}
    written: list[Path] = []
    needed = any(finding.state == "needed" for finding in findings.values())
    if needed and not check and not _drift(findings):
        findings = _edit(work, findings)
        if not _drift(findings):
            findings, written = _write(work, findings)
    return _report(roots, findings), written


def _find(patch: ModuleType, work: Workspace) -> Finding:
    """The patch's finding; a source that is not Python, or not readable, has drifted."""
    try:
        finding: Finding = patch.plan(work)
    except DriftError as drift:
        return _drifted(str(drift))
    except SyntaxError as error:
        return _drifted(f"a target is not Python: line {error.lineno}: {error.msg}")
    except (OSError, UnicodeDecodeError) as error:
        return _drifted(f"a target cannot be read: {error}")
    return finding


def _drifted(reason: str) -> Finding:
    return Finding("drifted", reason)


def _edit(work: Workspace, findings: dict[str, Finding]) -> dict[str, Finding]:
    """Make the needed edits in memory; each patch must then find itself applied."""
    after = dict(findings)
    for patch in PATCHES:
        # Planned anew: an earlier patch may have moved the bytes of the same file.
        wanted = _find(patch, work)
        if wanted.state != "needed":
            continue
        work.edit(wanted.edits)
        after[patch.NAME] = _confirmed(_find(patch, work), wanted)
    for patch in PATCHES:
        # Every postcondition once more, now that all edits are made.
        state = _find(patch, work).state
        if state in {"needed", "drifted"}:
            after[patch.NAME] = _drifted(f"it does not hold after all edits: {state}")
    return after


def _confirmed(now: Finding, wanted: Finding) -> Finding:
    if now.state != "applied":
        return _drifted(f"it does not hold after the edit: {now.reason}")
    return Finding("applied", f"was needed: {wanted.reason}", wanted.sites, missing=wanted.missing)


def _write(work: Workspace, findings: dict[str, Finding]) -> tuple[dict[str, Finding], list[Path]]:
    """Write the edited files and prove them as they lie on disk, or put all of them back."""
    changed = work.changed()
    done: list[Path] = []
    try:
        for path, data in changed.items():
            compile(data, str(path), "exec", dont_inherit=True)
        for path, data in changed.items():
            done.append(path)
            _replace(path, data)
        fresh = Workspace(*work.roots)
        for patch in PATCHES:
            state = _find(patch, fresh).state
            if state in {"needed", "drifted"}:
                raise ValueError(f"{patch.NAME} does not hold in the written file: {state}")
    except (OSError, ValueError, SyntaxError) as error:
        for path in done:
            _replace(path, work.before[path])
        names = [name for name, finding in findings.items() if finding.state == "applied"]
        failed = _drifted(f"nothing was kept: {error}")
        return {**findings, **dict.fromkeys(names, failed)}, []
    return findings, done


def _replace(path: Path, data: bytes) -> None:
    """Put `data` in place of the file, whole, with its mode; stale bytecode goes."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(path.stat().st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(draft, path.stat().st_uid, path.stat().st_gid)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        stale.unlink(missing_ok=True)


def _drift(findings: dict[str, Finding]) -> bool:
    return any(finding.state == "drifted" for finding in findings.values())


def _report(roots: list[Path], findings: dict[str, Finding]) -> dict[str, Any]:
    return {
        "sglang_version": sglang_version(roots),
        "patches": [
            {
                "name": name,
                "state": finding.state,
                "reason": finding.reason,
                "sites": finding.sites,
            }
            for name, finding in findings.items()
        ],
    }


def sglang_version(roots: list[Path]) -> str | None:
    """SGLang's version as its own files state it; told in reports, never asked by a patch."""
    for root in roots:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            tree = ast.parse((root / "sglang/_version.py").read_bytes())
            for node in tree.body:
                if isinstance(node, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id in {"version", "__version__"}
                    for target in node.targets
                ):
                    return str(ast.literal_eval(node.value))
        for info in sorted(root.glob("sglang-*.dist-info/METADATA")):
            found = re.search(r"^Version: (\S+)$", info.read_text(errors="replace"), re.MULTILINE)
            if found:
                return found[1]
    return None


def missing_packages(roots: list[Path]) -> list[str]:
    """Packages that a serving image must have and these roots lack."""
    work = Workspace(*roots)
    return sorted({name for patch in PATCHES for name in _find(patch, work).missing})


def patch_digest() -> str:
    """sha256 over the names and bytes of this folder's modules: what an image was patched with."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _installed_roots() -> list[Path]:
    """Folders that hold this interpreter's sglang and its other packages."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise NoSGLangError("this interpreter has no sglang")
    roots = [Path(location).parent for location in spec.submodule_search_locations]
    others = [*site.getsitepackages(), *(entry for entry in sys.path if entry)]
    for entry in others:
        if Path(entry).is_dir() and Path(entry) not in roots:
            roots.append(Path(entry))
    return roots


def _manifest(report: dict[str, Any], written: list[Path]) -> dict[str, Any]:
    return {
        **report,
        "patch_digest": patch_digest(),
        "python": sys.version.split()[0],
        "files": {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(written)
        },
    }


def main(arguments: list[str] | None = None) -> int:
    """Command line inside an image: 0 applied, 3 drifted or incomplete, 2 no SGLang."""
    asked = argparse.ArgumentParser(prog="patches", description=__doc__)
    asked.add_argument("--sglang", type=Path, action="append", help="folder that holds sglang/")
    asked.add_argument("--check", action="store_true", help="write nothing")
    asked.add_argument("--image", action="store_true", help="every package must be there")
    asked.add_argument("--manifest", type=Path, help="where to write the manifest")
    asked.add_argument("--expect", help="the patch digest that the build was asked for")
    given = asked.parse_args(arguments)
    try:
        roots = given.sglang or _installed_roots()
        if given.expect and given.expect != patch_digest():
            print("patches: these are not the patches that were asked for", file=sys.stderr)
            return 3
        missing = missing_packages(roots) if given.image else []
        report, written = apply(roots, given.check or bool(missing))
    except NoSGLangError as error:
        print(f"patches: {error}", file=sys.stderr)
        return 2
    for patch in report["patches"]:
        print("patch {name}: {state} ({reason}; sites: {sites})".format(**patch), flush=True)
    if missing:
        print(f"patches: not installed: {', '.join(missing)}", file=sys.stderr)
        return 3
    if any(patch["state"] == "drifted" for patch in report["patches"]):
        print("patches: drifted, nothing was written", file=sys.stderr)
        return 3
    if given.manifest:
        given.manifest.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_manifest(report, written), indent=2, sort_keys=True)
        given.manifest.write_text(text + "\n")
    return 0
