"""Reading: every tensor once, on several threads, and what the rules need of it afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tasks.checkpoint.files import CheckpointFiles, TensorInfo
from tasks.gates.audit.compare import Compared, compare_packed, compare_plain
from tasks.gates.audit.laws import FEEDING, row_lengths
from tasks.gates.audit.model import Model, Module
from tasks.gates.audit.result import Findings
from tasks.gates.audit.source import SourceWeights
from tasks.gates.audit.values import (
    Looked,
    check_strangers,
    check_tops,
    check_twins,
    look_at_packed,
    look_at_plain,
)
from tasks.progress import Progress

THREADS = 16
BATCH = 2**22
"""Bytes of the checkpoint that one thread takes at a time."""
HELD = 2**29
"""Bytes read before the pages of the mapped files are given back."""


@dataclass(frozen=True)
class Outcome:
    """What reading one group of weights gave."""

    looked: dict[str, Looked]
    compared: Compared | None
    rows: dict[str, tuple[float, float]]


class Reading:
    """Reads every tensor once.

    Attributes:
        nbytes: bytes read, of the checkpoint and of the source.
        errors: packed module -> relative error against the source.
        proven: modules whose weights were found to be the source's.
        rows: module -> lengths of its longest and its typical row.
    """

    def __init__(
        self, files: CheckpointFiles, weights: SourceWeights | None, progress: Progress
    ) -> None:
        self.files, self.weights, self.progress = files, weights, progress
        self.nbytes = 0
        self.errors: dict[str, float] = {}
        self.proven: set[str] = set()
        self.rows: dict[str, tuple[float, float]] = {}
        self._own: dict[str, bool] = {}
        self._tops: dict[str, int] = {}
        self._prints: dict[str, tuple[Any, ...]] = {}

    def without_model(self, findings: Findings) -> None:
        """Only what needs no architecture: every plain tensor is finite."""
        for info in self.files.tensors.values():
            looked = look_at_plain(self.files, info, may_be_zero=True)
            findings.extend(looked.found)

    def with_model(self, model: Model, findings: Findings) -> None:
        """Read all weights of the model, and compare them with the source where there is one."""
        held = 0
        jobs = [*self._packed_jobs(model), *self._plain_jobs(model)]
        whole, done = max(1, sum(size for size, _ in jobs)), 0
        with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            futures = [(size, pool.submit(_run, batch)) for size, batch in _batches(jobs)]
            for size, future in futures:
                for outcome in future.result():
                    self._keep(outcome, findings)
                self.nbytes += size
                done += size
                held += size
                if held > HELD:
                    self._relax()
                    held = 0
                self.progress(0.98 * done / whole, "reading weights")
        check_tops(model, self._tops, findings)
        check_twins(self._prints, findings)
        check_strangers({n: o for n, o in self._own.items() if n not in self.proven}, findings)
        if self.weights is not None and model.complete:
            self._check_absent(model, findings)

    def _relax(self) -> None:
        self.files.relax()
        if self.weights is not None:
            self.weights.files.relax()

    def _packed_jobs(self, model: Model) -> Iterator[tuple[int, Job]]:
        for members in model.groups():
            size = sum(module.nbytes for module in members)
            yield size, _packed_job(self.files, self.weights, members)

    def _plain_jobs(self, model: Model) -> Iterator[tuple[int, Job]]:
        for module in model.modules.values():
            for suffix in ("", ".weight", ".bias"):
                info = module.tensors.get(suffix)
                if info is not None and not (module.packed and suffix == ".weight"):
                    yield info.nbytes, _plain_job(self.files, self.weights, module, info)

    def _keep(self, outcome: Outcome, findings: Findings) -> None:
        for name, one in outcome.looked.items():
            findings.extend(one.found)
            if one.top is not None:
                self._tops[name] = one.top
            if one.own is not None and not one.found:
                self._own[name] = one.own
            if one.fingerprint is not None:
                self._prints[name] = one.fingerprint
        self.rows |= outcome.rows
        compared = outcome.compared
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


Job = Callable[[], Outcome]


def _batches(jobs: Iterable[tuple[int, Job]]) -> Iterator[tuple[int, list[Job]]]:
    """Small jobs together, so that threads do not spend their time on handing over."""
    size, batch = 0, []
    for nbytes, job in jobs:
        batch.append(job)
        size += nbytes
        if size >= BATCH or len(batch) >= 1000:
            yield size, batch
            size, batch = 0, []
    if batch:
        yield size, batch


def _run(batch: list[Job]) -> list[Outcome]:
    return [job() for job in batch]


def _packed_job(
    files: CheckpointFiles, weights: SourceWeights | None, members: list[Module]
) -> Job:
    def job() -> Outcome:
        looked = {module.name: look_at_packed(files, module) for module in members}
        compared = compare_packed(files, weights, members) if weights else None
        return Outcome(looked, compared, _rows(files, members))

    return job


def _plain_job(
    files: CheckpointFiles, weights: SourceWeights | None, module: Module, info: TensorInfo
) -> Job:
    def job() -> Outcome:
        may_be_zero = not (module.kind.linear or module.kind.name == "embeddings")
        looked = look_at_plain(files, info, may_be_zero=may_be_zero)
        compared = compare_plain(files, weights, info) if weights else None
        return Outcome({module.name: looked}, compared, _rows(files, [module]))

    return job


def _rows(files: CheckpointFiles, members: list[Module]) -> dict[str, tuple[float, float]]:
    measured = {m.name: row_lengths(files, m) for m in members if m.leaf in FEEDING}
    return {name: lengths for name, lengths in measured.items() if lengths is not None}
