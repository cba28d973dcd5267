from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import Endpoint, GateReport, Verdict
from tasks.errors import BadInputError
from tasks.gates.accuracy import Tally, undecided
from tasks.gates.gsm8k import recompute, run_gsm8k
from tasks.spec import Gsm8kGate
from tests.gates.conftest import GSM8K, codes, questions, timeless
from tests.servers.fake import (
    Brain,
    FakeEngine,
    Reply,
    Spoil,
    after,
    drop,
    every,
    solver,
    status,
)


def gate(**values: Any) -> Gsm8kGate:
    return Gsm8kGate(**{"data": GSM8K, "min_accuracy": 0.9, "max_tokens": 256, **values})


def run(out: Path, brain: Brain, spoil: Spoil | None = None, **values: Any) -> GateReport:
    with FakeEngine(brain=brain, spoil=spoil) as fake:
        report = run_gsm8k(fake.endpoint, gate(**values), out, ready_timeout=5)
    assert recompute(out / "records.jsonl") == report
    kept = GateReport.model_validate_json((out / "report.json").read_text(encoding="utf-8"))
    assert kept == report
    return report


def test_a_good_run_passes_and_keeps_every_request(tmp_path: Path, brain: Brain) -> None:
    report = run(tmp_path, brain)
    assert report.verdict is Verdict.PASS and not report.reasons
    assert report.counts.correct == report.counts.asked >= 198
    assert report.measured["extraction_rules"]["hashes"] == report.counts.asked
    assert report.engine["version"] == "0.5.17" and report.engine["model"] == "tiny"
    lines = [json.loads(x) for x in (tmp_path / "records.jsonl").open(encoding="utf-8")]
    answer = next(line for line in lines if line["record"] == "answer")
    for field in ("text", "reasoning", "finish_reason", "completion_tokens", "latency", "attempts"):
        assert field in answer
    assert answer["speculation"]["verify_ct"] > 0


def test_a_bad_model_fails_early(tmp_path: Path) -> None:
    report = run(tmp_path, solver(questions(), wrong=lambda place: place % 3 == 0), concurrency=4)
    assert report.verdict is Verdict.FAIL and codes(report) == {"accuracy-low"}
    assert report.counts.asked < 120
    assert report.interval is not None and report.interval.high < 0.9


def test_an_accuracy_too_near_the_bar_is_neither(tmp_path: Path) -> None:
    brain = solver(questions(), wrong=lambda place: place % 10 == 4)
    report = run(tmp_path, brain, min_accuracy=0.88)
    assert report.verdict is Verdict.INVALID and codes(report) == {"undecided"}
    assert "715 samples would decide" in report.reasons[0].detail
    assert "non-inferior" in report.reasons[0].detail
    assert report.counts.asked == 200


def test_a_perfect_score_on_too_few_is_no_failure(tmp_path: Path, brain: Brain) -> None:
    report = run(tmp_path, brain, limit=20, min_accuracy=0.95)
    assert report.verdict is Verdict.INVALID and codes(report) == {"undecided"}
    assert report.counts.correct == 20


@pytest.mark.parametrize(("share", "verdict"), [(10, Verdict.FAIL), (30, Verdict.PASS)])
def test_the_point_rule_compares_the_estimate(tmp_path: Path, share: int, verdict: Verdict) -> None:
    brain = solver(questions(), wrong=lambda place: place % share == 3)
    assert run(tmp_path, brain, rule="point", min_accuracy=0.95).verdict is verdict


def cut(reply: Reply, _: int) -> None:
    reply.finish = "length"


def test_cut_off_answers_make_it_invalid_though_all_are_right(tmp_path: Path, brain: Brain) -> None:
    report = run(tmp_path, brain, every(40, cut))
    assert report.verdict is Verdict.INVALID and "cut-off-answers" in codes(report)
    assert report.counts.cut_off == 3 and report.counts.lost == 0


@pytest.mark.parametrize("spoil", [every(50, drop), every(50, status(500)), after(100, drop)])
def test_lost_requests_make_it_invalid(tmp_path: Path, brain: Brain, spoil: Spoil) -> None:
    report = run(tmp_path, brain, spoil, concurrency=8)
    assert report.verdict is Verdict.INVALID and "lost-requests" in codes(report)
    assert report.counts.asked < 200


def test_two_lost_of_two_hundred_are_borne_and_counted_wrong(tmp_path: Path, brain: Brain) -> None:
    report = run(tmp_path, brain, every(90, drop))
    assert report.verdict is Verdict.PASS
    assert report.counts.lost == 2 and report.counts.correct == report.counts.asked - 2


def test_an_answer_that_ends_oddly_is_lost(tmp_path: Path, brain: Brain) -> None:
    def abort(reply: Reply, _: int) -> None:
        reply.finish = "abort"

    report = run(tmp_path, brain, every(20, abort))
    assert report.verdict is Verdict.INVALID and "lost-requests" in codes(report)


def test_a_short_outage_within_the_limit_is_still_an_outage(tmp_path: Path, brain: Brain) -> None:
    def recovering(reply: Reply, count: int) -> None:
        if count <= 3:
            reply.status = 500

    report = run(tmp_path, brain, recovering, max_lost=0.05)
    assert report.verdict is Verdict.INVALID and "outage" in codes(report)


def test_sampling_comes_from_the_checkpoint_and_is_recorded(tmp_path: Path, brain: Brain) -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": 1}
    model = tmp_path / "model"
    model.mkdir()
    (model / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    with FakeEngine(brain=brain) as fake:
        report = run_gsm8k(fake.endpoint, gate(limit=4, seed=5), tmp_path / "a", model)
        sent = fake.bodies[-4:]
        run_gsm8k(fake.endpoint, gate(limit=4, temperature=0.0), tmp_path / "b", model)
        greedy = fake.bodies[-1]
    assert {(b["temperature"], b["top_p"], b["top_k"]) for b in sent} == {(0.6, 0.95, 20)}
    assert sorted(b["seed"] for b in sent) == [5, 6, 7, 8]
    assert report.measured["sampling"]["temperature"] == 0.6
    assert greedy["temperature"] == 0 and "top_p" not in greedy


def test_max_tokens_is_fitted_to_the_context(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain, max_model_len=2048) as fake:
        run_gsm8k(fake.endpoint, gate(limit=3, max_tokens=16384), tmp_path)
        assert all(1024 <= body["max_tokens"] < 2048 for body in fake.bodies)


def test_reasoning_is_kept_apart(tmp_path: Path, brain: Brain) -> None:
    def think(reply: Reply, _: int) -> None:
        reply.reasoning = "Let me see, that could be 99999 or so."

    report = run(tmp_path, brain, think)
    assert report.verdict is Verdict.PASS
    assert report.measured["reasoning_apart"] == report.counts.asked


@pytest.mark.parametrize("url", ["nonsense", "http://"])
def test_a_malformed_url_is_bad_input(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInputError):
        run_gsm8k(Endpoint(url=url, engine="sglang"), gate(), tmp_path)


def test_nobody_there_is_invalid(tmp_path: Path) -> None:
    endpoint = Endpoint(url="http://127.0.0.1:9", engine="sglang")
    report = run_gsm8k(endpoint, gate(), tmp_path, ready_timeout=0.5)
    assert report.verdict is Verdict.INVALID and codes(report) == {"server-unreachable"}
    assert recompute(tmp_path / "records.jsonl") == report


def test_another_model_than_asked_is_invalid(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain, asked="release") as fake:
        report = run_gsm8k(fake.endpoint, gate(), tmp_path)
        assert fake.count == 0
    assert report.verdict is Verdict.INVALID and codes(report) == {"model-mismatch"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no rows"),
        ("{", "line 1"),
        ('{"question": "q", "answer": "none"}', "no number"),
        ('{"question": " ", "answer": "#### 1"}', "question"),
        (
            '{"id": 1, "question": "q", "answer": "1"}\n{"id": 1, "question": "p", "answer": "1"}',
            "twice",
        ),
    ],
)
def test_unreadable_data_is_bad_input(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BadInputError, match=words):
        run_gsm8k(Endpoint(url="http://127.0.0.1:9", engine="sglang"), gate(data=path), tmp_path)


def test_records_of_other_options_are_refused(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain) as fake:
        run_gsm8k(fake.endpoint, gate(limit=5), tmp_path)
        for other in ({"limit": 6}, {"limit": 5, "seed": 1}, {"limit": 5, "min_accuracy": 0.5}):
            with pytest.raises(BadInputError, match="another run"):
                run_gsm8k(fake.endpoint, gate(**other), tmp_path)
    with FakeEngine(brain=brain) as fake, pytest.raises(BadInputError, match="other url"):
        run_gsm8k(fake.endpoint, gate(limit=5), tmp_path)


def test_a_finished_run_is_judged_again_without_asking(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain) as fake:
        first = run_gsm8k(fake.endpoint, gate(limit=30, min_accuracy=0.5), tmp_path)
        asked = fake.count
        again = run_gsm8k(fake.endpoint, gate(limit=30, min_accuracy=0.5), tmp_path)
        assert fake.count == asked
    assert again == first


def test_the_verdict_does_not_depend_on_concurrency(tmp_path: Path) -> None:
    brain = solver(questions(), wrong=lambda place: place % 4 == 0)
    reports = [
        timeless(run(tmp_path / str(width), brain, concurrency=width)) for width in (1, 7, 64)
    ]
    assert reports[0] == reports[1] == reports[2]


def test_paired_with_a_stored_baseline(tmp_path: Path, brain: Brain) -> None:
    stored = tmp_path / "before"
    run(stored, brain, max_lost=0.0, min_accuracy=0.9, max_cut_off=0.0)
    worse = solver(questions(), wrong=lambda place: place in (5, 50, 150))
    values = {"rule": "non-inferior", "baseline": str(stored), "max_lost": 0.0}
    report = run(tmp_path / "b", worse, **values, margin=0.05)
    assert report.verdict is Verdict.PASS
    assert report.measured["paired"]["only_baseline_right"] == 3
    assert report.interval is not None and report.interval.method == "paired-score-one-sided"
    report = run(tmp_path / "c", worse, **values, margin=0.02)
    assert report.verdict is Verdict.INVALID and codes(report) == {"undecided"}
    broken = solver(questions(), wrong=lambda place: place % 8 == 0)
    report = run(tmp_path / "d", broken, **values, margin=0.05)
    assert report.verdict is Verdict.FAIL and codes(report) == {"inferior"}


def test_paired_with_another_server(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=solver(questions(), wrong=lambda place: place < 8)) as other:
        report = run(tmp_path, brain, baseline=other.http.url)
    assert report.measured["paired"]["only_ours_right"] == 8
    assert report.measured["paired"]["mcnemar_p"] == pytest.approx(2 / 2**8)


def test_a_baseline_of_other_problems_is_refused(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain) as fake:
        run_gsm8k(fake.endpoint, gate(limit=5), tmp_path / "a")
        with pytest.raises(BadInputError, match="answers 5 of these 9"):
            run_gsm8k(fake.endpoint, gate(limit=9, baseline=str(tmp_path / "a")), tmp_path / "b")


def test_limits_come_first_then_pass_then_fail() -> None:
    bar = Gsm8kGate(min_accuracy=0.95)
    assert Tally(200, correct=196, lost=2, seen=200).verdict(bar) is Verdict.PASS
    assert Tally(200, correct=197, lost=3, seen=200).verdict(bar) is Verdict.INVALID
    assert Tally(200, correct=100, cut_off=3, seen=200).verdict(bar) is Verdict.INVALID
    assert Tally(200, correct=170, lost=2, seen=200).verdict(bar) is Verdict.FAIL
    assert Tally(200, correct=190, lost=0, seen=200).verdict(bar) is Verdict.INVALID
    assert Tally(200, correct=196, seen=198).verdict(bar) is Verdict.PASS
    assert Tally(200, correct=194, lost=1, seen=198).verdict(bar) is None
    assert "5141" in undecided(bar, Tally(1000, correct=955, seen=1000)).detail
