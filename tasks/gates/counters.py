"""Speculation counters: pooled over requests, and checked against each other and against the text.

Per request (SGLang's `meta_info`): `verify_ct` verifications, `correct` accepted draft tokens,
`proposed` drafted ones, and a histogram of accepted tokens a verification, trimmed of trailing
zeros. The mean accept length is 1 + sum(correct) / sum(verify_ct), never the server's own average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]

MANY = 8
"""Verifications of a request from which its scatter is more than that of rounding."""
EVEN_UNITS = 100
"""Requests of so many verifications that it takes to tell."""
EVEN = 0.3
"""Share of chance's scatter under which counters were not counted."""
LEAST = 0.02
"""Variance of accepted drafts under which there is no scatter to speak of (one bin)."""


@dataclass(frozen=True)
class Pooled:
    """Counters summed over requests. `histogram[i]`: verifications that accepted i drafts."""

    requests: int
    verifications: int
    correct: int
    histogram: tuple[int, ...]

    @property
    def accept_length(self) -> float:
        """Mean tokens a verification, the verified one included."""
        return 1 + self.correct / self.verifications if self.verifications else 0.0

    @property
    def position_rates(self) -> tuple[float, ...]:
        """Share of verifications in which at least the first 1, 2, ... drafts were accepted."""
        total = sum(self.histogram)
        return tuple(sum(self.histogram[i:]) / total for i in range(1, len(self.histogram)))


def counted(answers: Iterable[Line]) -> list[Line]:
    """The answers whose counters say something: whole numbers, at least one verification."""
    return [line for line in answers if _usable(line.get("speculation"))]


def pool(answers: Iterable[Line], steps: int) -> Pooled:
    """Sum the counters of all answers that have them; histograms padded to steps + 1 bins."""
    lines = counted(answers)
    bins = [0] * (steps + 1)
    for line in lines:
        for accepted, count in enumerate(line["speculation"].get("histogram") or ()):
            bins += [0] * (accepted + 1 - len(bins))
            bins[accepted] += count
    return Pooled(
        requests=len(lines),
        verifications=sum(line["speculation"]["verify_ct"] for line in lines),
        correct=sum(line["speculation"]["correct"] for line in lines),
        histogram=tuple(bins),
    )


def contradictions(line: Line, steps: int | None) -> list[str]:
    """What is impossible in one answer's counters, in words; empty when they agree.

    - completion tokens are told, and minus verifications minus correct they are -1, 0 or +1;
    - the histogram's bins sum to verifications and, weighted, to correct;
    - no verification accepts more than `steps`; proposed = verifications x steps;
    - the server's own per-request length is (tokens or verifications + correct) / verifications.
    """
    counters = line.get("speculation")
    if counters is None:
        return []
    if not _usable(counters):
        return ["counters that are no whole numbers"]
    verify, correct = counters["verify_ct"], counters["correct"]
    tokens = counters.get("completion_tokens")
    tokens = line.get("completion_tokens") if tokens is None else tokens
    found = []
    if tokens is None:
        found.append("counters beside no number of tokens")
    elif abs(tokens - verify - correct) > 1:
        found.append(f"{tokens} tokens from {verify} verifications and {correct} accepted drafts")
    if tokens is not None and line.get("completion_tokens") not in (None, tokens):
        found.append(f"{tokens} tokens counted, {line['completion_tokens']} billed")
    found += _histogram_faults(counters, verify, correct, steps)
    length = counters.get("accept_length")
    if isinstance(length, int | float) and tokens is not None and verify > 0:
        possible = (tokens / verify, 1 + correct / verify)
        if all(abs(length - value) > 0.01 for value in possible):
            found.append(f"accept length {length:.3f} where the counters say {possible[1]:.3f}")
    return found


def _histogram_faults(counters: Line, verify: int, correct: int, steps: int | None) -> list[str]:
    found = []
    histogram = counters.get("histogram")
    if histogram is not None:
        if sum(histogram) != verify or sum(i * n for i, n in enumerate(histogram)) != correct:
            found.append(f"histogram {histogram} against {verify} verifications, {correct} correct")
        if steps is not None and len(histogram) > steps + 1:
            found.append(f"{len(histogram) - 1} drafts accepted at once with {steps} steps")
    proposed = counters.get("proposed")
    if steps is not None and proposed is not None and proposed != verify * steps:
        found.append(f"{proposed} drafts proposed in {verify} verifications of {steps} steps")
    if steps is not None and correct > verify * steps:
        found.append(f"{correct} drafts accepted of {verify * steps} possible")
    return found


def too_even(answers: Iterable[Line], steps: int) -> float | None:
    """The scatter of accepted drafts over requests, in shares of chance's; None where it is sound.

    Each verification accepts some of `steps` drafts. If they were drawn one by one from the pooled
    histogram, a request of n verifications would stray from n times the mean with n times the
    histogram's variance. Texts differ in difficulty, so that real requests scatter as much or more
    (0.5 to 1.3 measured); counters made up from the answer's length hardly do.
    """
    texts = {line["text"]: line for line in counted(answers)}
    units = [line for line in texts.values() if line["speculation"]["verify_ct"] >= MANY]
    if len(units) < EVEN_UNITS:
        return None
    pooled = pool(units, steps)
    mean = pooled.accept_length - 1
    squares = sum(n * (i - mean) ** 2 for i, n in enumerate(pooled.histogram))
    # Whole numbers of this mean scatter at least so much, whatever their histogram.
    variance = max(squares / pooled.verifications, (mean % 1) * (1 - mean % 1))
    if variance < LEAST:
        return None
    counters = [line["speculation"] for line in units]
    strays = [(c["correct"] - mean * c["verify_ct"]) ** 2 / c["verify_ct"] for c in counters]
    scatter = sum(strays) / len(strays) / variance
    return scatter if scatter < EVEN else None


def _usable(counters: Any) -> bool:
    if not isinstance(counters, dict):
        return False
    verify, correct, histogram = (counters.get(k) for k in ("verify_ct", "correct", "histogram"))
    whole = [verify, correct, *(histogram if isinstance(histogram, list) else [])]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in whole):
        return False
    return counters["verify_ct"] > 0 and isinstance(histogram, list | None)
