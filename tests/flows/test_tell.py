from __future__ import annotations

from pathlib import Path

from flows.decide import Decision
from flows.events import DRY_RUN, GATE_EVENTS, RELEASE_EVENTS
from flows.hooks import failure_markdown, folders_of
from flows.tell import card_markdown, decision_markdown, gates_markdown
from tasks.artifacts import GateReport, Publication, Reason, ReleaseVerdict, Verdict
from tasks.errors import BadInputError
from tasks.run import StageNote

PIXEL = b"\x89PNG\r\n\x1a\n" + b"0" * 20


def report(verdict: Verdict, detail: str = "") -> GateReport:
    reasons = (Reason(code="x", detail=detail),) if detail else ()
    return GateReport(gate="smoke", verdict=verdict, reasons=reasons, measured={"known": 0.5})


def test_the_gate_table_keeps_one_row_a_gate_whatever_the_reasons_hold() -> None:
    table = gates_markdown(
        {"smoke": report(Verdict.FAIL, "a | b\nc"), "audit": report(Verdict.PASS)}
    )
    rows = table.splitlines()
    assert len(rows) == 4
    assert "**FAIL**" in rows[2] and "a \\| b c" in rows[2]
    assert "**PASS**" in rows[3]


def test_the_decision_names_verdict_reason_gates_stages_and_place() -> None:
    decision = Decision(
        verdict=ReleaseVerdict.RELEASED,
        published=True,
        why="4 gates passed",
        release="demo",
        run="r",
        publication=Publication(to="hub", location="https://hub.example/a/b", revision="x"),
        gates={"smoke": report(Verdict.PASS)},
    )
    notes = [StageNote("quantize", 1.25, True), StageNote("image", 0, False, "skipped: none")]
    page = decision_markdown(decision, notes, Path("/runs/r"))
    for words in (
        "## RELEASED",
        "4 gates passed",
        "[https://hub.example/a/b](https://hub.example/a/b)",
        "| quantize | 1.2 | yes |",
        "| image | 0.0 | skipped: none |",
        "`/runs/r`",
    ):
        assert words in page


def test_the_card_carries_its_pictures(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "accuracy.png").write_bytes(PIXEL)
    card = tmp_path / "README.md"
    card.write_text(
        "---\nlicense: mit\n---\n# Title\n![how good](plots/accuracy.png)\n![no](plots/none.png)\n"
    )
    shown = card_markdown(card)
    assert "license" not in shown and shown.startswith("# Title")
    assert "![how good](data:image/png;base64,iVBORw0" in shown
    assert "*no*" in shown
    assert "base64" not in card_markdown(card, pictures=False)


def test_every_end_has_its_event() -> None:
    assert set(GATE_EVENTS) == set(Verdict)
    assert set(RELEASE_EVENTS) == set(ReleaseVerdict)
    names = {*GATE_EVENTS.values(), *RELEASE_EVENTS.values(), DRY_RUN}
    assert len(names) == 8 and all(name.startswith("quantgate.") for name in names)


def test_a_failure_says_what_to_do() -> None:
    page = failure_markdown(BadInputError("file-missing", "a: no such file.", "Give a file."))
    assert "## file-missing" in page and "**What to do:** Give a file." in page
    assert "## ValueError" in failure_markdown(ValueError("odd"))


def test_a_hook_finds_the_folders_of_its_own_run_only(tmp_path: Path) -> None:
    for run, flow_run in (("r1", "id-1"), ("r2", "id-2"), ("r3", "id-1")):
        folder = tmp_path / "releases" / "demo" / run
        folder.mkdir(parents=True)
        (folder / "flow-run.txt").write_text(flow_run)

    class FlowRun:
        id = "id-1"
        parameters = {"root": str(tmp_path), "spec": {"name": "demo"}}  # noqa: RUF012

    assert sorted(folder.name for folder in folders_of(FlowRun())) == ["r1", "r3"]
    FlowRun.parameters = {"root": str(tmp_path / "elsewhere")}
    assert folders_of(FlowRun()) == []
