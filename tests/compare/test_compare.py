from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import Checkpoint, GateReport, QuantizationRecord, Reason, Verdict
from tasks.compare.keep import comparisons_for, keep
from tasks.compare.plot import draw
from tasks.compare.rows import Variant, draft_of, in_turns, row, speculation_of, variants
from tasks.gates.records import Records
from tasks.run import Run
from tasks.spec import ReleaseSpec


def records(folder: Path, correct: int, requests: int = 40) -> Path:
    """Answers of which each had 10 verifications and `correct` accepted drafts."""
    inputs = {"engine": "reference", "speculation": {"num_steps": 2, "draft_tokens": 3}}
    header = {"gate": "acceptance", "inputs": inputs, "prompts": []}
    with Records(folder, header) as out:
        for number in range(requests):
            counters = {"verify_ct": 10, "correct": correct, "histogram": [10 - correct, correct]}
            out.append(
                {
                    "record": "answer",
                    "id": f"p{number}",
                    "status": "ok",
                    "finish_reason": "stop",
                    "completion_tokens": 10 + correct,
                    "speculation": counters,
                }
            )
    return out.path


def report(speed: float, verdict: Verdict = Verdict.PASS, code: str = "") -> GateReport:
    reasons = (Reason(code=code, detail="x"),) if code else ()
    measured = {"output_tokens_per_second": speed}
    return GateReport(gate="acceptance", verdict=verdict, reasons=reasons, measured=measured)


def test_variants_are_each_measured_once_a_round_and_none_is_always_first(
    demo_spec: ReleaseSpec,
) -> None:
    wanted = variants(demo_spec, ["bf16", "heuristic"], [1, 2, 3])
    assert [(v.head, v.steps) for v in wanted] == [
        ("bf16", 2),
        ("heuristic", 2),
        ("heuristic", 1),
        ("heuristic", 3),
    ]
    turns = list(in_turns(wanted, 3))
    assert len(turns) == len(set(turns)) == 12
    assert len({turns[0][1], turns[4][1], turns[8][1]}) == 3


def test_steps_and_draft_tokens_go_together(demo_spec: ReleaseSpec) -> None:
    asked = speculation_of(demo_spec, 4)
    assert (asked.num_steps, asked.draft_tokens, asked.topk) == (4, 5, 1)
    assert draft_of("bf16").precision == "bf16"
    assert draft_of("calibrated").scales == "calibrated"


def test_a_row_pools_its_rounds(tmp_path: Path) -> None:
    variant = Variant(head="heuristic", steps=2)
    rounds = [
        (report(100.0), records(tmp_path / "1", correct=6)),
        (report(120.0), records(tmp_path / "2", correct=8)),
    ]
    made = row(variant, rounds)
    assert made.accept_length == pytest.approx(1.7)
    assert made.low is not None and made.high is not None
    assert 1.6 < made.low < 1.7 < made.high < 1.8
    assert (made.slowest_round, made.tokens_per_second, made.fastest_round) == (100, 110, 120)
    assert (made.rounds, made.requests) == (2, 80)


def test_an_untrusted_round_is_left_out(tmp_path: Path) -> None:
    variant = Variant(head="heuristic", steps=2)
    good = (report(100.0), records(tmp_path / "1", correct=6))
    short = (report(90.0, Verdict.INVALID, "too-few-requests"), records(tmp_path / "2", correct=6))
    died = (report(10.0, Verdict.INVALID, "lost-requests"), records(tmp_path / "3", correct=9))
    assert row(variant, [good, short, died]).rounds == 2
    nothing = row(variant, [died])
    assert nothing.accept_length is None and nothing.tokens_per_second is None


def test_the_picture_shows_what_there_is(tmp_path: Path) -> None:
    made = row(Variant(head="bf16", steps=2), [(report(1.0), records(tmp_path / "1", correct=6))])
    empty = row(Variant(head="heuristic", steps=2), [])
    draw([made, empty], [made], tmp_path / "plots" / "comparison.png")
    assert (tmp_path / "plots" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_a_card_shows_only_the_comparison_of_its_own_checkpoint(
    tmp_path: Path, demo_spec: ReleaseSpec
) -> None:
    run = Run.start(demo_spec, tmp_path)
    tables: dict[str, Any] = {"draft_heads": [{"draft_head": "bf16"}], "num_steps": []}
    assert comparisons_for(run, checkpoint("a")) == {}
    kept = keep(run, checkpoint("a"), tables)
    assert json.loads(kept.read_text())["checkpoint"] == "a"
    assert comparisons_for(run, checkpoint("a")) == tables
    assert comparisons_for(run, checkpoint("b")) == {}
    (run.folder.parent / "comparisons.json").write_text("{")
    assert comparisons_for(run, checkpoint("a")) == {}


def checkpoint(digest: str) -> Checkpoint:
    made = QuantizationRecord(
        qformat="nvfp4",
        kv_cache="fp8",
        source_repo=None,
        source_revision=None,
        source_digest="x",
        calibration=None,
    )
    return Checkpoint(path=Path("/nowhere"), digest=digest, quantization=made)
