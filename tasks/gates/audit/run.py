"""The audit from end to end: headers first, then every byte once, then what they say together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.artifacts import Verdict
from tasks.checkpoint.files import CheckpointFiles, TensorInfo
from tasks.checkpoint.survey import Survey, survey
from tasks.errors import BadInputError
from tasks.gates.audit.compare import Compared, compare_packed, compare_plain
from tasks.gates.audit.coverage import check_coverage
from tasks.gates.audit.draft import check_draft, check_kv
from tasks.gates.audit.excludes import ExcludeList
from tasks.gates.audit.laws import check_laws
from tasks.gates.audit.metadata import (
    check_config,
    check_quantization_config,
    compare_config,
)
from tasks.gates.audit.model import Model, Module, build_model
from tasks.gates.audit.result import AuditResult, Findings, Promise
from tasks.gates.audit.scalars import check_scalars, read_scalars
from tasks.gates.audit.shapes import check_shapes
from tasks.gates.audit.sidecars import check_sidecars, compare_sidecars
from tasks.gates.audit.source import SourceWeights
from tasks.gates.audit.structure import check_structure, exclude_lists, find_architecture
from tasks.gates.audit.summary import summarize
from tasks.gates.audit.values import (
    Looked,
    check_tops,
    check_twins,
    look_at_packed,
    look_at_plain,
)
from tasks.gates.audit.vision import check_vision
from tasks.progress import Progress, silent

THREADS = 16
HELD = 2**29
"""Bytes read before the pages of the mapped files are given back."""


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
        read = _Reading(CheckpointFiles(found), weights, progress)
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
    model: Model, promise: Promise, read: _Reading, findings: Findings
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
        check_laws(model, values, findings)
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


class _Reading:
    """Reads every tensor once, on several threads, and keeps what the rules need afterwards."""

    def __init__(
        self, files: CheckpointFiles, weights: SourceWeights | None, progress: Progress
    ) -> None:
        self.files, self.weights, self.progress = files, weights, progress
        self.nbytes = 0
        self.errors: dict[str, float] = {}
        self.proven: set[str] = set()

    def without_model(self, findings: Findings) -> None:
        """Only what needs no architecture: every plain tensor is finite."""
        for info in self.files.tensors.values():
            looked = look_at_plain(self.files, info, may_be_zero=True)
            findings.extend(looked.found)

    def with_model(self, model: Model, findings: Findings) -> None:
        """Read all weights of the model, and compare them with the source where there is one."""
        tops: dict[str, int] = {}
        prints: dict[str, tuple[Any, ...]] = {}
        jobs = [*self._packed_jobs(model), *self._plain_jobs(model)]
        whole, done, held = max(1, sum(size for size, _ in jobs)), 0, 0
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            futures: list[tuple[int, Future[_Outcome]]] = [
                (size, pool.submit(job)) for size, job in jobs
            ]
            for size, future in futures:
                looked, compared = future.result()
                for name, one in looked.items():
                    findings.extend(one.found)
                    if one.top is not None:
                        tops[name] = one.top
                    if one.fingerprint is not None:
                        prints[name] = one.fingerprint
                self._keep(compared, model, findings)
                self.nbytes += size
                done += size
                held += size
                if held > HELD:
                    self._relax()
                    held = 0
                self.progress(0.98 * done / whole, "reading weights")
        check_tops(model, tops, findings)
        check_twins(prints, findings)
        if self.weights is not None and model.complete:
            self._check_absent(model, findings)

    def _relax(self) -> None:
        self.files.relax()
        if self.weights is not None:
            self.weights.files.relax()

    def _packed_jobs(self, model: Model) -> Iterator[tuple[int, Callable[[], _Outcome]]]:
        for members in model.groups():
            size = sum(module.nbytes for module in members)
            yield size, _packed_job(self.files, self.weights, members)

    def _plain_jobs(self, model: Model) -> Iterator[tuple[int, Callable[[], _Outcome]]]:
        for module in model.modules.values():
            for suffix in ("", ".weight", ".bias"):
                info = module.tensors.get(suffix)
                if info is not None and not (module.packed and suffix == ".weight"):
                    yield info.nbytes, _plain_job(self.files, self.weights, module, info)

    def _keep(self, compared: Compared | None, model: Model, findings: Findings) -> None:
        if compared is None:
            return
        findings.extend(compared.found)
        self.errors |= compared.errors
        self.proven |= compared.proven
        self.nbytes += compared.nbytes
        for name in compared.missing:
            findings.add("source-mismatch", name, "The source has no such weight.")

    def _check_absent(self, model: Model, findings: Findings) -> None:
        assert self.weights is not None
        for name in self.weights.names():
            if name not in self.files.tensors and (model.has_draft or not name.startswith("mtp.")):
                code = "draft-partial" if name.startswith("mtp.") else "tensor-missing"
                findings.add(code, name, "The source has it.")


_Outcome = tuple[dict[str, Looked], Compared | None]


def _packed_job(
    files: CheckpointFiles, weights: SourceWeights | None, members: list[Module]
) -> Callable[[], _Outcome]:
    def job() -> _Outcome:
        looked = {module.name: look_at_packed(files, module) for module in members}
        return looked, compare_packed(files, weights, members) if weights else None

    return job


def _plain_job(
    files: CheckpointFiles, weights: SourceWeights | None, module: Module, info: TensorInfo
) -> Callable[[], _Outcome]:
    def job() -> _Outcome:
        may_be_zero = not (module.kind.linear or module.kind.name == "embeddings")
        looked = look_at_plain(files, info, may_be_zero=may_be_zero)
        compared = compare_plain(files, weights, info) if weights else None
        return {module.name: looked}, compared

    return job


@contextmanager
def _guard(findings: Findings, part: str) -> Iterator[None]:
    """What no rule foresaw is a fault too: the audit reports it and goes on."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        what = f"{part}: {type(error).__name__}: {' '.join(str(error).split())[:200]}."
        findings.add("audit-stopped", None, what)
