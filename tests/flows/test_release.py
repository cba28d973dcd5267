"""The whole release through the command line, on real input; and killed at every stage."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from flows.cli import app
from flows.console import run
from tests.flows.conftest import Start, finish

STAGES = ["quantize", "requant", "gate-audit", "gate-smoke", "gate-gsm8k", "gate-acceptance"]
Moment = Callable[[Path], bool]


def stored(stage: str) -> Moment:
    return lambda root: any((root / ".quantgate/store" / stage).glob("*/entry.json"))


def under_way(stage: str) -> Moment:
    return lambda root: any((root / ".quantgate/building").glob(f"{stage}-*/files/*"))


def some_answers(gate: str) -> Moment:
    def ready(root: Path) -> bool:
        records = (root / ".quantgate/building").glob(f"gate-{gate}-*/files/records.jsonl")
        return any(len(file.read_bytes().splitlines()) > 6 for file in records)

    return ready


MOMENTS: list[tuple[str, Moment]] = [
    ("in the middle of quantize", under_way("quantize")),
    ("after quantize", stored("quantize")),
    ("after requant", stored("requant")),
    ("after the audit", stored("gate-audit")),
    ("after smoke", stored("gate-smoke")),
    ("in the middle of gsm8k", some_answers("gsm8k")),
    ("after gsm8k", stored("gate-gsm8k")),
    ("after acceptance", stored("gate-acceptance")),
    ("after the card", stored("card")),
]


@pytest.mark.slow
def test_killed_at_every_stage_a_release_goes_on_where_it_stopped(
    start_fresh: Start, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    start = partial(start_fresh, **{"quantize.calibration.rows": "8"})
    finished: dict[str, int] = {}
    for name, moment in MOMENTS:
        run = start()
        kill_at(run, moment, root, name)
        assert not (tmp_path / "published" / "quantgate").is_dir() or name == "after the card"
        now = entries(root)
        assert finished.items() <= now.items(), f"{name}: a finished stage was made again"
        finished = now
    decision = finish(start(), 0)
    assert decision["verdict"] == "RELEASED"
    assert decision["published"] is True
    assert set(STAGES) <= set(decision["reused"])
    assert finished.items() <= entries(root).items()
    assert not list((root / ".quantgate/building").iterdir())
    assert engines(root) == []
    place = Path(decision["publication"]["location"])
    assert (place / "README.md").read_text() == Path(decision["card"]).read_text()


def test_a_second_run_reuses_every_stage_and_starts_no_engine(start: Start, tmp_path: Path) -> None:
    first = finish(start(), 0)
    second = finish(start(), 0)
    assert second["verdict"] == "RELEASED"
    assert {*STAGES, "sample-release", "sample-source", "card", "publish"} <= set(second["reused"])
    assert second["publication"] == first["publication"]
    assert not list((tmp_path / "root").glob(f"releases/demo/{second['run']}/logs/engine.log"))
    run = tmp_path / "root/releases/demo" / second["run"]
    assert json.loads((run / "decision.json").read_text()) == second
    for gate in ("audit", "smoke", "gsm8k", "acceptance"):
        report = json.loads((run / "gates" / f"{gate}.json").read_text())
        if report["records"]:
            assert (run / "gates" / report["records"]).is_file()


@pytest.mark.slow
def test_a_finished_run_is_rendered_and_published_again_from_its_folder(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = finish(start(), 0)
    folder = tmp_path / "root/releases/demo" / decision["run"]
    card = folder / "README.md"
    before = card.read_text()
    card.write_text(before + "\nA person's own words.\n")
    assert run(app, ["card", "--release", str(folder), "--json"]) == 0
    assert card.read_text() == before + "\nA person's own words.\n"
    place = Path(decision["publication"]["location"])
    shutil.rmtree(place)
    capsys.readouterr()
    assert run(app, ["publish", "--release", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["published"] is True
    assert "A person's own words." in (place / "README.md").read_text()

    weights = next(Path(decision["checkpoint"]).glob("*.safetensors"))
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert run(app, ["publish", "--release", str(folder), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "checkpoint-changed"


def test_a_failed_threshold_rejects_and_publishes_nothing(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = finish(start(gates__acceptance__min_accept="2.95"), 3)
    assert decision["verdict"] == "REJECTED"
    assert decision["published"] is False
    assert decision["publication"] is None
    assert decision["gates"]["acceptance"]["verdict"] == "FAIL"
    assert "acceptance FAIL" in decision["why"]
    folder = tmp_path / "root/releases/demo" / decision["run"]
    assert run(app, ["publish", "--release", str(folder), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["published"] is False
    assert run(app, ["card", "--release", str(folder), "--json"]) == 2
    assert not (tmp_path / "published").exists()


@pytest.mark.slow
def test_a_dry_run_publishes_nothing(start: Start, tmp_path: Path) -> None:
    decision = finish(start(publish__to="nowhere"), 0)
    assert (decision["verdict"], decision["published"]) == ("RELEASED", False)
    assert not (tmp_path / "published").exists()


def kill_at(run: subprocess.Popen[str], moment: Moment, root: Path, name: str) -> None:
    deadline = time.monotonic() + 240
    while not moment(root):
        assert run.poll() is None, f"{name}: ended before it could be killed: {run.stdout}"
        assert time.monotonic() < deadline, name
        time.sleep(0.02)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()


def entries(root: Path) -> dict[str, int]:
    """Each finished artifact with the time it was written: made again, it would differ."""
    found = (root / ".quantgate/store").glob("*/*/entry.json")
    return {str(file.relative_to(root)): file.stat().st_mtime_ns for file in found}


def engines(root: Path) -> list[int]:
    """Engines that still run from this root."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if "tasks.serve.reference" in words and str(root) in words:
            found.append(process.pid)
    return found


@pytest.fixture(autouse=True)
def no_engine_is_left(tmp_path: Path) -> object:
    yield
    time.sleep(1)
    assert engines(tmp_path / "root") == []
