"""The audit from end to end: headers first, then every byte once, then what they say together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.artifacts import Verdict
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.survey import Survey, survey
from tasks.errors import BadInputError
from tasks.gates.audit.coverage import check_coverage
from tasks.gates.audit.draft import check_draft, check_kv
from tasks.gates.audit.excludes import ExcludeList
from tasks.gates.audit.laws import Laws
from tasks.gates.audit.metadata import (
    check_config,
    check_quantization_config,
    compare_config,
)
from tasks.gates.audit.model import Model, build_model
from tasks.gates.audit.reading import Reading
from tasks.gates.audit.result import AuditResult, Findings, Promise
from tasks.gates.audit.scalars import check_scalars, read_scalars
from tasks.gates.audit.shapes import check_shapes
from tasks.gates.audit.sidecars import check_sidecars, compare_sidecars
from tasks.gates.audit.source import SourceWeights
from tasks.gates.audit.structure import check_structure, exclude_lists, find_architecture
from tasks.gates.audit.summary import summarize
from tasks.gates.audit.vision import check_vision
from tasks.progress import Progress, silent


def audit(
    checkpoint: Path,
    source: Path | None = None,
    progress: Progress = silent,
    promise: Promise | None = None,
) -> AuditResult:
    """Check the files of a quantized checkpoint; no model is built and nothing is served.

    Args:
        checkpoint: its folder. Everything wrong inside it is a fault of the result.
        source: folder of the BF16 model that it was made from; weights are then recomputed and
            compared, and metadata too.
        progress: told how far it is.
        promise: what the release spec promised; None: what the checkpoint says of itself.

    Raises:
        BadInputError: `not-a-folder`: `checkpoint` is no folder; `source` cannot be read.
    """
    began = time.monotonic()
    root = Path(checkpoint)
    if not root.is_dir():
        raise BadInputError("not-a-folder", f"{root}: no folder.", "Give a checkpoint's folder.")
    weights = SourceWeights.open(Path(source)) if source is not None else None
    findings, promise = Findings(), promise or Promise()
    summary: dict[str, Any] = {}
    with _guard(findings, "structure"):
        found = survey(root)
        complete = check_structure(found, findings)
        lists = exclude_lists(found, findings)
        architecture = find_architecture(found, findings)
        read = Reading(CheckpointFiles(found), weights, progress)
        if architecture is None:
            read.without_model(findings)
        else:
            model = build_model(read.files, architecture, lists, complete=complete)
            summary = _audit_model(model, promise, read, findings)
        _audit_metadata(found, lists, weights, promise, findings)
    faults = findings.faults()
    seconds = time.monotonic() - began
    by_code = findings.counts()
    summary |= {"faults": sum(by_code.values()), "faults_by_code": by_code}
    summary["seconds"] = round(seconds, 3)
    read_bytes = summary.get("bytes_read", 0)
    summary["gigabytes_per_second"] = round(read_bytes / 1e9 / max(seconds, 1e-9), 3)
    verdict = Verdict.FAIL if faults else Verdict.PASS
    progress(1.0, f"{verdict}: {len(faults)} faults")
    return AuditResult(verdict=verdict, faults=faults, summary=summary)


def _audit_model(
    model: Model, promise: Promise, read: Reading, findings: Findings
) -> dict[str, Any]:
    qformat, draft = None, "none"
    with _guard(findings, "coverage"):
        qformat = check_coverage(model, promise, findings)
        check_shapes(model, findings)
        check_vision(model, findings)
        _check_unmatched(model, findings)
    with _guard(findings, "draft head"):
        draft = check_draft(model, promise, findings)
        check_kv(model, promise, findings)
    values: dict[str, float] = {}
    with _guard(findings, "values"):
        values = read_scalars(model)
        read.with_model(model, findings)
        check_scalars(model, values, read.proven, findings)
        Laws(model, values, read.rows).check(findings)
    with _guard(findings, "summary"):
        return summarize(model, qformat, draft, values, read.errors, read.weights) | {
            "bytes_read": read.nbytes
        }
    return {}


def _audit_metadata(
    found: Survey,
    lists: dict[str, ExcludeList],
    weights: SourceWeights | None,
    promise: Promise,
    findings: Findings,
) -> None:
    with _guard(findings, "quantization config"):
        check_quantization_config(found, lists, findings)
        check_config(found.config, findings)
    with _guard(findings, "side files"):
        check_sidecars(found.root, found.config, findings)
    if weights is not None:
        with _guard(findings, "comparison of metadata"):
            if found.config:
                compare_config(found.config, weights.files.config, promise, findings)
            compare_sidecars(found.root, weights.files.root, promise, findings)


def _check_unmatched(model: Model, findings: Findings) -> None:
    if not model.complete:
        return
    names = {*model.modules, *(name for name in model.expected if not name.startswith("mtp."))}
    if model.has_draft:
        names |= set(model.expected)
    for file, entries in model.lists.items():
        for entry in entries.unmatched(names):
            if entry != "lm_head" and (model.has_draft or not entry.startswith("mtp")):
                findings.add("exclude-unmatched", entry, f"{file}: matches no module.")


@contextmanager
def _guard(findings: Findings, part: str) -> Iterator[None]:
    """What no rule foresaw is a fault too: the audit reports it and goes on."""
    try:
        yield
    except Exception as error:
        what = f"{part}: {type(error).__name__}: {' '.join(str(error).split())[:200]}."
        findings.add("audit-stopped", None, what)
