"""Serve once: every served gate, and the card's samples, on one engine."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

from tasks.artifacts import Checkpoint, GateReport, Image, Verdict
from tasks.card.task import ReleaseSamples, has_release_samples, sample_release
from tasks.gates.task import gate_served, reusable, served_gates
from tasks.run import Run
from tasks.serve.engines import EngineExitedError
from tasks.serve.task import start_engine


@dataclass
class Served:
    """What one engine was asked: the gates' reports and, when all passed, its samples."""

    reports: dict[str, GateReport] = field(default_factory=dict)
    samples: ReleaseSamples | None = None

    @property
    def passed(self) -> bool:
        """Whether every gate that ran passed."""
        return all(report.verdict is Verdict.PASS for report in self.reports.values())


def measure_on_one_engine(run: Run, checkpoint: Checkpoint, image: Image | None) -> Served:
    """No engine when the store has everything; no further gate when smoke does not pass."""
    served = Served()
    try:
        with ExitStack() as engines:
            _ask(run, checkpoint, image, engines, served)
    except EngineExitedError:
        if served.passed:
            raise
    return served


def _ask(
    run: Run, checkpoint: Checkpoint, image: Image | None, engines: ExitStack, served: Served
) -> None:
    gates = served_gates(run.spec)
    known = all(reusable(run, gate, checkpoint, image) for gate in gates)
    known = known and has_release_samples(run, checkpoint, image)
    endpoint = None if known else start_engine(run, checkpoint, image, engines)
    for gate in gates:
        served.reports[gate] = gate_served(run, gate, checkpoint, image, endpoint)
        if gate == "smoke" and not served.passed:
            return
    if served.passed:
        served.samples = sample_release(run, checkpoint, image, endpoint)
