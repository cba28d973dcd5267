from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import GateReport, Verdict
from tasks.gates.acceptance import recompute, run_acceptance
from tasks.gates.gsm8k import run_gsm8k
from tasks.spec import AcceptanceGate, Gsm8kGate, SpeculationSpec
from tests.gates.conftest import GSM8K, codes
from tests.servers.fake import Brain, FakeEngine, Reply, every, prose, status


def run(
    out: Path,
    *,
    gate: dict[str, Any] | None = None,
    speculation: dict[str, Any] | None = None,
    **fake: Any,
) -> GateReport:
    with FakeEngine(**fake) as engine:
        report = run_acceptance(
            engine.endpoint,
            AcceptanceGate(**(gate or {})),
            SpeculationSpec(**(speculation or {})),
            out,
            ready_timeout=5,
        )
    assert recompute(out / "records.jsonl") == report
    return report


def test_a_healthy_head_passes_with_rates_and_kinds(tmp_path: Path) -> None:
    report = run(tmp_path, gate={"min_accept": 2.2})
    assert report.verdict is Verdict.PASS, report.reasons
    measured = report.measured
    total = sum(measured["histogram"])
    assert total == measured["verifications"] >= 2000
    assert measured["accept_length"] == 1 + measured["accepted_drafts"] / total
    first, second = measured["position_rates"]
    assert 0.8 < first < 0.9 and 0.5 < second < first
    assert set(measured["by_kind"]) == {"math", "code", "prose", "chat"}
    assert report.interval is not None
    assert report.interval.low < measured["accept_length"] < report.interval.high
    assert report.threshold["max_accept"] == pytest.approx(0.99 * 3)


@pytest.mark.parametrize(
    ("accept", "bounds", "verdict", "code"),
    [
        ((0.30, 0.20), {"min_accept": 2.0}, Verdict.FAIL, "accept-low"),
        ((0.01, 0.01), {}, Verdict.FAIL, "accept-near-one"),
        ((1.0, 0.0), {}, Verdict.FAIL, "one-bin"),
        ((0.97, 0.97), {"max_accept": 2.5}, Verdict.FAIL, "accept-ceiling"),
        ((0.85, 0.75), {"min_accept": 2.475}, Verdict.INVALID, "undecided"),
        ((0.85, 0.75), {"max_accept": 2.475}, Verdict.INVALID, "undecided"),
    ],
)
def test_bounds(
    tmp_path: Path, accept: tuple[float, ...], bounds: Any, verdict: Verdict, code: str
) -> None:
    report = run(tmp_path, gate=bounds, accept=accept)
    assert report.verdict is verdict and code in codes(report), report.reasons


def test_the_ceiling_is_a_failure_with_both_causes_named(tmp_path: Path) -> None:
    def pinned(reply: Reply, _: int) -> None:
        reply.tokens -= reply.tokens % 3
        reply.verify_ct = reply.tokens // 3
        reply.correct, reply.histogram = 2 * reply.verify_ct, [0, 0, reply.verify_ct]

    report = run(tmp_path, gate={"min_verifications": 1000}, spoil=pinned, accept=(0.99, 0.99))
    assert report.verdict is Verdict.FAIL
    assert codes(report) == {"one-bin", "accept-ceiling"}
    assert "garbage" in report.reasons[0].detail and "dropped" in report.reasons[0].detail


def test_too_few_requests_or_verifications(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text(
        "".join(f'{{"id": "{i}", "kind": "chat", "prompt": "Say {i}"}}\n' for i in range(30)),
        encoding="utf-8",
    )
    report = run(tmp_path / "a", gate={"prompts": few})
    assert report.verdict is Verdict.INVALID
    assert {"too-few-requests", "too-few-verifications"} <= codes(report)


def test_no_counters_is_invalid(tmp_path: Path) -> None:
    def silent(reply: Reply, _: int) -> None:
        reply.speculation = False

    report = run(tmp_path, spoil=silent, info={"speculative_algorithm": None})
    assert report.verdict is Verdict.INVALID and "no-counters" in codes(report)


def test_other_steps_than_asked_are_invalid(tmp_path: Path) -> None:
    report = run(tmp_path, speculation={"num_steps": 3, "draft_tokens": 4})
    assert report.verdict is Verdict.INVALID and "other-speculation" in codes(report)


def flattering(reply: Reply, _: int) -> None:
    """Claims that everything was accepted, in fewer verifications than /metrics counts."""
    reply.changes |= {
        "spec_verify_ct": (reply.tokens + 2) // 3,
        "spec_num_correct_drafts": reply.tokens - (reply.tokens + 2) // 3,
        "spec_accept_length": 2.9,
    }


def test_counters_that_contradict_themselves_are_invalid(tmp_path: Path) -> None:
    report = run(tmp_path, spoil=flattering, accept=(0.4, 0.3))
    assert report.verdict is Verdict.INVALID and "counters-contradict" in codes(report)


def test_counters_that_agree_but_not_with_the_server_s_totals_are_invalid(tmp_path: Path) -> None:
    def careful(reply: Reply, _: int) -> None:
        verify = max(1, round(reply.tokens / 2.5))
        correct = min(reply.tokens - verify, 2 * verify)
        twos = max(0, correct - verify) + max(0, (verify - max(0, correct - verify)) // 4)
        twos = min(twos, correct // 2)
        ones = correct - 2 * twos
        histogram = [verify - ones - twos, ones, twos]
        reply.changes |= {
            "spec_verify_ct": verify,
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": 2 * verify,
            "spec_correct_drafts_histogram": histogram,
            "spec_accept_length": reply.tokens / verify,
        }

    report = run(tmp_path, spoil=careful, accept=(0.3, 0.2))
    assert report.verdict is Verdict.INVALID
    assert codes(report) == {"totals-disagree", "counters-too-even"}


def made_up(reply: Reply, _: int) -> None:
    """The same accept length for every text, in counters that agree with all else."""
    verify = max(1, round((reply.tokens - 1) / 2.7))
    correct = min(2 * verify, reply.tokens - verify)
    twos = max(correct - verify, 0)
    histogram = [verify - (correct - 2 * twos) - twos, correct - 2 * twos, twos]
    reply.verify_ct, reply.correct, reply.histogram = verify, correct, histogram


def test_counters_made_up_from_the_length_are_invalid(tmp_path: Path) -> None:
    report = run(tmp_path, spoil=made_up)
    assert report.verdict is Verdict.INVALID and codes(report) == {"counters-too-even"}


@pytest.mark.parametrize("accept", [(0.2, 0.1), (0.5, 0.9), (0.9, 0.8), (0.97, 0.97)])
def test_counters_of_a_real_draft_scatter(tmp_path: Path, accept: tuple[float, ...]) -> None:
    for seed in range(3):
        report = run(tmp_path / str(seed), accept=accept, seed=seed)
        assert "counters-too-even" not in codes(report), report.reasons


def test_counters_without_a_number_of_tokens_are_invalid(tmp_path: Path) -> None:
    with FakeEngine() as fake:

        def bare(reply: Reply, count: int) -> None:
            body = json.loads(fake.payload(reply, count))
            del body["usage"], body["choices"][0]["meta_info"]["completion_tokens"]
            reply.raw = json.dumps(body).encode()

        fake.spoil = bare
        report = run_acceptance(fake.endpoint, AcceptanceGate(), SpeculationSpec(), tmp_path)
    assert report.verdict is Verdict.INVALID and "counters-contradict" in codes(report)


def test_totals_that_stand_still_say_nothing(tmp_path: Path) -> None:
    with FakeEngine() as fake:
        fake.decodes = False
        report = run_acceptance(fake.endpoint, AcceptanceGate(), SpeculationSpec(), tmp_path)
    assert not codes(report) & {"totals-disagree", "server-changed"}


@pytest.mark.parametrize(
    "other", [{"model_path": "/models/other"}, {"version": "0.5.99"}, {"speculative_num_steps": 3}]
)
def test_a_server_that_becomes_another_is_invalid(tmp_path: Path, other: dict[str, Any]) -> None:
    with FakeEngine() as fake:

        def restart(_: Reply, count: int) -> None:
            if count == 100:
                fake.info |= other

        fake.spoil = restart
        report = run_acceptance(fake.endpoint, AcceptanceGate(), SpeculationSpec(), tmp_path)
    assert report.verdict is Verdict.INVALID and "server-changed" in codes(report)


def test_a_vllm_that_starts_anew_is_invalid(tmp_path: Path) -> None:
    with FakeEngine(engine="vllm") as fake:

        def restart(_: Reply, count: int) -> None:
            if count == 100:
                fake.verifications = fake.accepted = fake.drafted = 0

        fake.spoil = restart
        report = run_acceptance(fake.endpoint, AcceptanceGate(), SpeculationSpec(), tmp_path)
    assert report.verdict is Verdict.INVALID and "server-changed" in codes(report)


def test_lost_requests_are_invalid(tmp_path: Path) -> None:
    report = run(tmp_path, spoil=every(50, status(500)))
    assert report.verdict is Verdict.INVALID and "lost-requests" in codes(report)


def test_the_server_s_own_average_is_never_believed(tmp_path: Path) -> None:
    states = [{"avg_spec_accept_length": 2.7}]
    report = run(
        tmp_path, gate={"min_accept": 2.0}, accept=(0.2, 0.1), info={"internal_states": states}
    )
    assert report.verdict is Verdict.FAIL
    assert report.measured["server_average_not_judged"] == 2.7


def test_vllm_is_measured_by_its_totals(tmp_path: Path) -> None:
    healthy = run(tmp_path / "a", engine="vllm", gate={"min_accept": 2.2})
    same = run(tmp_path / "b", gate={"min_accept": 2.2})
    assert healthy.verdict is Verdict.PASS, healthy.reasons
    assert healthy.measured["histogram"] == same.measured["histogram"]
    assert healthy.measured["accept_length"] == same.measured["accept_length"]
    broken = run(tmp_path / "c", engine="vllm", accept=(0.02, 0.02))
    assert broken.verdict is Verdict.FAIL and "accept-near-one" in codes(broken)


def test_a_gsm8k_run_can_feed_it(tmp_path: Path, brain: Brain) -> None:
    def talk(content: str) -> str:
        return f"{prose(content)} {brain(content)}"

    with FakeEngine(brain=talk) as fake:
        gate = Gsm8kGate(data=GSM8K, min_accuracy=0.5)
        # A bar that only all problems can decide: none of them may stay unasked.
        gate = gate.model_copy(update={"max_lost": 0.0, "max_cut_off": 0.0, "min_accuracy": 0.98})
        run_gsm8k(fake.endpoint, gate, tmp_path / "g")
        asked = fake.count
        report = run_acceptance(
            fake.endpoint,
            AcceptanceGate(min_accept=2.2),
            SpeculationSpec(),
            tmp_path / "a",
            feed=tmp_path / "g" / "records.jsonl",
        )
        assert fake.count == asked
    assert report.verdict is Verdict.PASS, report.reasons
    assert report.counts.asked == 200
    assert recompute(tmp_path / "a" / "records.jsonl") == report
