"""The fault matrix: some faults in every test run, all of them under the marker `long`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.artifacts import Verdict
from tasks.spec import ReleaseSpec
from tests.faults.inject import Copy
from tests.gates.conftest import questions
from tests.gates.matrix.__main__ import demo_spec, fake_gates, gaps
from tests.gates.matrix.breaks import BREAKS, Break
from tests.gates.matrix.running import Row, run_break, run_wrong, table
from tests.gates.matrix.wrong import WRONG, Wrong, poor
from tests.servers.fake import Brain, solver

QUICK = (
    "the same, with no /metrics",
    "becomes another model under the same name",
    "truncates at half the median answer",
    "answers 500, then recovers",
    "duplicates answers",
    "reports fake accept lengths",
    "returns the reasoning as the answer",
)


@pytest.fixture(scope="module")
def spec() -> ReleaseSpec:
    return demo_spec(200)


def run(fault: Wrong, brain: Brain, spec: ReleaseSpec, scratch: Path) -> Row:
    return run_wrong(fault, brain, fake_gates(spec), spec, scratch)


@pytest.fixture(scope="module")
def good(spec: ReleaseSpec, tmp_path_factory: pytest.TempPathFactory) -> Row:
    none = Wrong("none", poor)
    return run(none, solver(questions()), spec, tmp_path_factory.mktemp("good"))


def test_the_good_server_passes_all(good: Row) -> None:
    assert not good.stopped, table([good], {"fake": good})


@pytest.mark.parametrize("name", QUICK)
def test_wrong_servers_are_stopped(
    name: str, brain: Brain, spec: ReleaseSpec, good: Row, tmp_path: Path
) -> None:
    fault = next(fault for fault in WRONG if fault.name == name)
    row = run(fault, brain, spec, tmp_path)
    assert not gaps([row], {"fake": good})


def test_a_fault_that_changes_nothing_is_a_gap(good: Row) -> None:
    same = Row("nothing at all", good.reports, good.fingerprint)
    found = gaps([same], {"fake": good})
    assert found == ["nothing at all: nothing stopped it", "nothing at all: changed no record"]


@pytest.mark.parametrize("fault", BREAKS, ids=lambda fault: fault.name)
def test_every_break_changes_what_is_served(
    fault: Break, demo_release: Path, tmp_path: Path
) -> None:
    copy = Copy(demo_release, tmp_path / "copy")
    before = content(copy.root)
    (fault.served or fault.make)(copy)
    changed = content(copy.root) != before
    made = Copy(demo_release, tmp_path / "made")
    fault.make(made)
    assert changed or fault.flags or content(made.root) != before


def content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def test_a_broken_release_is_stopped_by_the_first_gate_that_listens(
    demo_release: Path, spec: ReleaseSpec, tmp_path: Path
) -> None:
    fault = next(fault for fault in BREAKS if fault.name == "engine drops the draft's KV scales")
    row = run_break(demo_release, fault, spec, tmp_path, stop_early=True)
    assert row.reports["audit"].verdict is Verdict.PASS, row.reports["audit"].reasons
    assert row.reports["smoke"].verdict is Verdict.FAIL
    assert {reason.code for reason in row.reports["smoke"].reasons} == {"kv-scale-mismatch"}


@pytest.mark.long
def test_the_whole_matrix_has_no_gap(
    demo_release: Path, spec: ReleaseSpec, brain: Brain, good: Row, tmp_path: Path
) -> None:
    rows = [run(fault, brain, spec, tmp_path) for fault in WRONG]
    served = run_break(demo_release, Break("none"), spec, tmp_path, stop_early=False)
    rows += [run_break(demo_release, fault, spec, tmp_path, False) for fault in BREAKS]
    best = {"fake": good, "served": served}
    assert not gaps([good, served, *rows], best), table(rows, best)
