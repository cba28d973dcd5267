"""Lifetime totals of one engine, and the recent means that its log and gauges show."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tasks.serve.reference.request import Request

HEALTH = "HEALTH_CHECK"
"""Ids of requests that begin so are health checks and count nowhere."""


@dataclass
class Totals:
    """Counters; written by the engine's thread, read by any.

    Attributes:
        steps: verifications of a whole batch; moves only while the engine works.
        spec_tokens: accepted drafts plus one a verification, since the last flush.
        spec_forwards: verifications of single requests, since the last flush.
    """

    running: int = 0
    queued: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    steps: int = 0
    verifications: int = 0
    spec_tokens: int = 0
    spec_forwards: int = 0
    throughput: float = 0.0
    last_work: float = 0.0
    http: dict[tuple[str, str], int] = field(default_factory=dict)
    _recent: list[tuple[int, int, int, float]] = field(default_factory=list)

    def prefilled(self, tokens: int) -> None:
        """Prompts were run."""
        self.prefill_tokens += tokens
        self.last_work = time.time()

    def stepped(self, rows: int, accepted: int, drafted: int, seconds: float) -> None:
        """One step: `rows` verifications of `drafted` tokens each, `accepted` in all."""
        self.steps += 1
        self.last_work = time.time()
        self._recent = [*self._recent[-39:], (rows, accepted, drafted, seconds)]
        tokens = sum(r + a for r, a, _, _ in self._recent)
        self.throughput = tokens / max(1e-9, sum(s for *_, s in self._recent))
        if drafted:
            self.verifications += rows
            self.spec_forwards += rows
            self.spec_tokens += rows + accepted

    def recent_speculation(self) -> tuple[float, float] | None:
        """Mean accept length and rate over the last 40 steps; None without speculation."""
        rows = sum(r for r, _, d, _ in self._recent if d)
        drafted = sum(r * d for r, _, d, _ in self._recent)
        if not rows or not drafted:
            return None
        accepted = sum(a for _, a, d, _ in self._recent if d)
        return 1 + accepted / rows, accepted / drafted

    @property
    def accept_length(self) -> float | None:
        """Mean accept length since the last flush; None when nothing was verified."""
        return self.spec_tokens / self.spec_forwards if self.spec_forwards else None

    def finished(self, request: Request) -> None:
        """A request was answered."""
        if not request.id.startswith(HEALTH):
            self.requests += 1
            self.prompt_tokens += len(request.prompt)
            self.generated_tokens += len(request.output)

    def forget_speculation(self) -> None:
        """As SGLang's flush does."""
        self.spec_tokens = self.spec_forwards = 0

    def rest(self) -> None:
        """Nothing runs."""
        self.running = self.queued = 0
        self._recent = []
