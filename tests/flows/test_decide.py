from __future__ import annotations

import pytest

from flows.decide import headline, judge
from tasks.artifacts import GateReport, Interval, Reason, ReleaseVerdict, Verdict

ASKED = ("audit", "smoke", "gsm8k")


def reports(**verdicts: str) -> dict[str, GateReport]:
    return {
        gate: GateReport(
            gate=gate,
            verdict=Verdict(verdict),
            reasons=(Reason(code="because", detail=f"{gate} says so"),),
        )
        for gate, verdict in verdicts.items()
    }


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ({"audit": "PASS", "smoke": "PASS", "gsm8k": "PASS"}, "RELEASED"),
        ({"audit": "PASS", "smoke": "PASS", "gsm8k": "FAIL"}, "REJECTED"),
        ({"audit": "PASS", "smoke": "INVALID", "gsm8k": "FAIL"}, "REJECTED"),
        ({"audit": "PASS", "smoke": "PASS", "gsm8k": "INVALID"}, "INCONCLUSIVE"),
        ({"audit": "PASS", "smoke": "PASS"}, "INCONCLUSIVE"),
        ({"audit": "FAIL"}, "REJECTED"),
        ({}, "INCONCLUSIVE"),
    ],
)
def test_only_passes_of_every_gate_asked_release(verdicts: dict[str, str], expected: str) -> None:
    verdict, why = judge(reports(**verdicts), ASKED)
    assert verdict is ReleaseVerdict(expected)
    assert why


def test_the_reason_of_a_rejection_is_named() -> None:
    _, why = judge(reports(audit="PASS", smoke="PASS", gsm8k="FAIL"), ASKED)
    assert "gsm8k FAIL: gsm8k says so" in why


def test_an_absent_gate_is_named() -> None:
    _, why = judge(reports(audit="PASS"), ASKED)
    assert why == "not measured: smoke, gsm8k"


def test_a_headline_is_never_empty() -> None:
    assert headline(GateReport(gate="audit", verdict=Verdict.PASS)) == ("-", "-")
    assert headline(GateReport(gate="other", verdict=Verdict.PASS, measured={"a": 1}))[0] == "a 1"


def test_a_headline_shows_the_figure_that_decides_with_its_interval() -> None:
    report = GateReport(
        gate="gsm8k",
        verdict=Verdict.PASS,
        measured={"accept_length": 2.8, "accuracy": 0.97253},
        threshold={"max_lost": 0.01, "min_accuracy": 0.9},
        interval=Interval(low=0.951, high=1.0, confidence=0.95, method="one-sided"),
    )
    assert headline(report) == ("accuracy 0.9725 [0.951, 1]", "min accuracy 0.9")
