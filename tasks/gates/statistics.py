"""The intervals that decide: Wilson, bootstrap of a ratio, McNemar and paired non-inferiority."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np


def one_sided_z(confidence: float) -> float:
    """Standard normal quantile at `confidence` (0.95 -> 1.645)."""
    return NormalDist().inv_cdf(confidence)


def wilson_low(successes: int, total: int, confidence: float) -> float:
    """One-sided lower Wilson bound of a proportion; 0 when `total` is 0.

    Source: E. B. Wilson, JASA 22 (1927): the smallest p that a one-sided score test at
    `confidence` does not reject.
    """
    return _wilson(successes, total, confidence, -1)


def wilson_high(successes: int, total: int, confidence: float) -> float:
    """One-sided upper Wilson bound of a proportion; 1 when `total` is 0."""
    return _wilson(successes, total, confidence, +1)


def _wilson(successes: int, total: int, confidence: float, side: int) -> float:
    if not 0 <= successes <= total:
        raise ValueError(f"{successes} successes of {total}")
    if total == 0:
        return 0.0 if side < 0 else 1.0
    z = one_sided_z(confidence)
    share, square = successes / total, z * z / total
    spread = z * math.sqrt((share * (1 - share) + square / 4) / total)
    bound = (share + square / 2 + side * spread) / (1 + square)
    return min(1.0, max(0.0, bound))


def samples_to_decide(share: float, threshold: float, confidence: float) -> int | None:
    """Samples at which a Wilson bound parts `share` from `threshold`; None when equal.

    Solves |share - threshold| = z * sqrt(threshold * (1 - threshold) / n) for n, which is when the
    score test at the threshold rejects. For a threshold of 0 or 1 one sample is enough.
    """
    gap = abs(share - threshold)
    if gap == 0:
        return None
    z = one_sided_z(confidence)
    return max(1, math.ceil(threshold * (1 - threshold) * (z / gap) ** 2))


def bootstrap_accept_length(
    correct: Sequence[int],
    verifications: Sequence[int],
    confidence: float,
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Two-sided percentile interval of 1 + sum(correct) / sum(verifications).

    Whole requests are drawn with replacement, because the tokens of one request are not
    independent. `correct` and `verifications` are [requests], tokens and counts. The seed is fixed:
    the same records give the same interval.
    """
    accepted = np.asarray(correct, dtype=np.float64)
    verified = np.asarray(verifications, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.empty(draws)
    block = max(1, 4_000_000 // max(1, accepted.size))
    for start in range(0, draws, block):
        size = min(block, draws - start)
        picks = generator.integers(0, accepted.size, size=(size, accepted.size))
        means[start : start + size] = 1 + accepted[picks].sum(1) / verified[picks].sum(1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def mcnemar_exact(only_ours: int, only_theirs: int) -> float:
    """Two-sided exact McNemar p-value from the discordant pairs (binomial at one half)."""
    pairs = only_ours + only_theirs
    if pairs == 0:
        return 1.0
    fewer = min(only_ours, only_theirs)
    tail = sum(math.comb(pairs, k) for k in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**pairs))


def paired_bounds(
    only_ours: int, only_theirs: int, pairs: int, confidence: float
) -> tuple[float, float]:
    """One-sided score bounds (low, high) of P(ours right) - P(theirs right) on paired problems.

    Source: T. Tango, Statistics in Medicine 17 (1998): the differences that the score test of
    paired proportions does not reject, found by bisection. `pairs` counts the concordant ones too.
    """
    if pairs == 0:
        return -1.0, 1.0
    z = one_sided_z(confidence)
    estimate = (only_ours - only_theirs) / pairs

    def score(difference: float) -> float:
        return _tango(only_ours, only_theirs, pairs, difference)

    low = _bisect(lambda d: score(d) - z, -1.0, estimate)
    high = _bisect(lambda d: score(d) + z, estimate, 1.0)
    return low, high


def _tango(only_ours: int, only_theirs: int, pairs: int, difference: float) -> float:
    linear = (2 * pairs - only_ours + only_theirs) * difference - only_ours - only_theirs
    constant = -only_theirs * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear * linear - 8 * pairs * constant))
    theirs = (root - linear) / (4 * pairs)
    variance = pairs * (2 * theirs + difference * (1 - difference))
    gap = only_ours - only_theirs - pairs * difference
    if variance <= 1e-15:
        return math.copysign(math.inf, gap) if abs(gap) > 1e-12 else 0.0
    return gap / math.sqrt(variance)


def _bisect(falling: Callable[[float], float], left: float, right: float) -> float:
    if falling(left) < 0:
        return left
    if falling(right) > 0:
        return right
    for _ in range(80):
        middle = (left + right) / 2
        if falling(middle) > 0:
            left = middle
        else:
            right = middle
    return (left + right) / 2
