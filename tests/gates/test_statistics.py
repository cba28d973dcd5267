from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.gates.statistics import (
    bootstrap_accept_length,
    mcnemar_exact,
    paired_bounds,
    samples_to_decide,
    wilson_high,
    wilson_low,
)


def test_wilson_agrees_with_scipy() -> None:
    for right, total in ((0, 10), (7, 10), (196, 200), (1273, 1319), (50, 50)):
        two_sided = stats.binomtest(right, total).proportion_ci(0.9, method="wilson")
        assert wilson_low(right, total, 0.95) == pytest.approx(two_sided.low, abs=1e-9)
        assert wilson_high(right, total, 0.95) == pytest.approx(two_sided.high, abs=1e-9)


def test_the_real_release_passes_a_true_965_and_stops_a_true_94() -> None:
    total = 1319
    passes = [wilson_low(right, total, 0.95) >= 0.94 for right in range(total + 1)]
    chances = [
        sum(stats.binom.pmf(k, total, true) for k in range(total + 1) if passes[k])
        for true in (0.965, 0.94)
    ]
    assert chances[0] == pytest.approx(0.996, abs=0.001)
    assert chances[1] == pytest.approx(0.04, abs=0.005)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.5, 0.999), st.floats(0.5, 0.999), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_samples_asked_for_do_decide(share: float, bar: float, confidence: float) -> None:
    needed = samples_to_decide(share, bar, confidence)
    if needed is None or needed > 10**6:
        return
    right = round(share * needed * 4)
    low, high = (f(right, needed * 4, confidence) for f in (wilson_low, wilson_high))
    if abs(right / (needed * 4) - bar) > 0.6 * abs(share - bar):
        assert low >= bar or high <= bar


def test_no_number_of_samples_parts_equal_shares() -> None:
    assert samples_to_decide(0.95, 0.95, 0.95) is None
    assert samples_to_decide(0.955, 0.95, 0.95) == 5141


def test_the_bootstrap_covers_the_truth_and_repeats_itself() -> None:
    draw = random.Random(7)
    inside = 0
    for _ in range(60):
        verified = [draw.randint(5, 60) for _ in range(200)]
        rates = [draw.betavariate(8, 3) for _ in verified]
        correct = [
            sum(draw.random() < rate for _ in range(2 * n))
            for rate, n in zip(rates, verified, strict=True)
        ]
        low, high = bootstrap_accept_length(correct, verified, 0.95, draws=400)
        inside += low <= 1 + 2 * 8 / 11 <= high
    assert inside >= 50
    first = bootstrap_accept_length(correct, verified, 0.95)
    assert first == bootstrap_accept_length(correct, verified, 0.95)
    assert first[0] < 1 + sum(correct) / sum(verified) < first[1]


def test_mcnemar_agrees_with_the_binomial_test() -> None:
    for ours, theirs in ((0, 0), (5, 15), (1, 9), (12, 12)):
        expected = stats.binomtest(ours, ours + theirs).pvalue if ours + theirs else 1.0
        assert mcnemar_exact(ours, theirs) == pytest.approx(expected)


def test_paired_bounds_invert_a_score_test_with_the_likelihood_maximised() -> None:
    ours, theirs, pairs = 5, 15, 400
    for bound, sign in zip(paired_bounds(ours, theirs, pairs, 0.95), (1, -1), strict=True):
        grid = np.linspace(max(0.0, -bound) + 1e-9, (1 - bound) / 2 - 1e-9, 200_001)
        likelihood = ours * np.log(grid + bound) + theirs * np.log(grid)
        likelihood += (pairs - ours - theirs) * np.log1p(-2 * grid - bound)
        best = grid[likelihood.argmax()]
        spread = math.sqrt(pairs * (2 * best + bound - bound * bound))
        score = (ours - theirs - pairs * bound) / spread
        assert score == pytest.approx(sign * 1.6449, abs=1e-3)


def test_paired_bounds_without_discordant_pairs() -> None:
    low, high = paired_bounds(0, 0, 300, 0.95)
    assert -0.01 < low < 0 < high < 0.01
    assert paired_bounds(0, 0, 0, 0.95) == (-1.0, 1.0)
