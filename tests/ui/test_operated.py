"""Scheduled and watched runs, wrong input, dead runs: server and worker without a browser."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue

import psutil
import pytest

from flows.automations import SILENCE, UNBORN
from tasks.hub.latest import source_stamp
from tasks.spec import FolderSource
from tests.servers.http import Answer, HttpServer
from tests.ui.team import Team

pytestmark = pytest.mark.browser


@pytest.mark.timeout(600)
def test_wrong_input_that_the_schema_cannot_see_fails_in_one_line(team: Team) -> None:
    run = team.start("release/manual", {"gates.gsm8k.data": "no/such/file.jsonl"})
    state = team.ended(run)
    assert state["type"] == "FAILED"
    assert "gates.gsm8k.data: no/such/file.jsonl does not exist" in state["message"]
    assert "\n" not in state["message"].strip()
    error = team.artifacts(run)["error"]
    assert "file-missing" in error["data"] and "What to do" in error["data"]
    took = team.get(f"flow_runs/{run}")["total_run_time"]
    assert took < 15


@pytest.mark.timeout(600)
def test_nightly_ends_unchanged_in_seconds_on_its_own_schedule(team: Team) -> None:
    """Its clock is moved: the run that stands in the schedule is due now."""
    first = team.ended(team.start("release/nightly"))
    assert first["name"] in {"RELEASED", "UNCHANGED"}
    nightly = team.deployment("release/nightly")
    [schedule] = nightly["schedules"]
    assert schedule["schedule"]["cron"] == "0 2 * * *" and schedule["active"]
    deadline = time.monotonic() + 90
    while not (waiting := [run for run in team.runs("release/nightly") if run["auto_scheduled"]]):
        assert time.monotonic() < deadline, "the schedule put no run in the queue"
        time.sleep(1)
    for planned in waiting[:2]:  # planned before the form's values were set, the first releases
        run = planned["id"]
        assert planned["expected_start_time"][11:16] == "02:00"
        now = {"scheduled_time": datetime.now(UTC).isoformat()}
        due = {"type": "SCHEDULED", "name": "Scheduled", "state_details": now}
        team.post(f"flow_runs/{run}/set_state", {"state": due, "force": True})
        state = team.ended(run)
        if state["name"] == "UNCHANGED":
            break
    assert state["name"] == "UNCHANGED", state
    assert "nothing to do since run" in state["message"]
    assert team.get(f"flow_runs/{run}")["total_run_time"] < 20


@pytest.mark.timeout(600)
def test_watch_starts_nightly_on_what_is_new_and_only_then(team: Team) -> None:
    """Its memory is changed, as if the source had been another one at its last look."""
    memory = team.root / ".quantgate" / "watch" / "demo.json"

    def look() -> str:
        before = {run["id"] for run in team.runs("release/nightly")}
        assert team.ended(team.start("watch/watch"))["type"] == "COMPLETED"
        new = [run for run in team.runs("release/nightly") if run["id"] not in before]
        started: list[str] = [run["id"] for run in new if run["auto_scheduled"] is False]
        return started[0] if started else ""

    seen = {"source": source_stamp(FolderSource(path=Path("deployments/demo/model")))}
    memory.parent.mkdir(parents=True, exist_ok=True)
    memory.write_text(json.dumps(seen))
    assert look() == "", "nothing is new"
    memory.write_text(json.dumps({"source": "another"}))
    run = look()
    assert run, "a new source was seen"
    assert team.ended(run)["type"] == "COMPLETED"


@pytest.mark.timeout(600)
def test_a_killed_run_takes_its_engine_along_and_ends_crashed(team: Team) -> None:
    run = team.start("release/manual", {"gates.gsm8k.seed": 2})
    team.until_an_engine_runs()
    process = team.flow_process(run)
    assert process is not None
    process.kill()
    team.until_no_engine_runs(30)
    assert team.ended(run, 60)["type"] == "CRASHED"


@pytest.mark.timeout(600)
def test_a_worker_that_is_told_to_stop_leaves_no_engine_and_no_run_running(team: Team) -> None:
    run = team.start("release/manual", {"gates.gsm8k.seed": 3})
    team.until(run, {"RUNNING"})
    team.until_an_engine_runs()
    team.worker.stop(signal.SIGTERM)
    team.until_no_engine_runs(30)
    team.worker.start()
    again = team.start("release/manual", {"gates.gsm8k.seed": 3})
    assert team.ended(again)["name"] == "RELEASED"
    team.ended(run, 0.1)  # by itself, or marked by the second: none is left Running


@pytest.mark.timeout(600)
def test_a_server_that_is_started_again_costs_no_release(team: Team) -> None:
    settings = {"gates.gsm8k.seed": 4}
    run = team.start("release/manual", settings)
    team.until_an_engine_runs()
    team.server.stop(signal.SIGKILL)
    time.sleep(5)
    team.server.start()
    state = team.ended(run)
    team.until_no_engine_runs(30)
    if state["name"] != "RELEASED":
        state = team.ended(team.start("release/manual", settings))
    assert state["name"] == "RELEASED", state


@pytest.mark.timeout(600)
def test_nobody_in_time_publishes_nothing_and_the_next_run_asks_again(
    team: Team, tmp_path: Path
) -> None:
    asked = {
        "gates.gsm8k.seed": 3,
        "publish.approval.ask": True,
        "publish.approval.timeout": 2,
        "publish.folder": str(tmp_path / "out"),
    }
    for _ in range(2):
        run = team.start("release/manual", asked)
        state = team.ended(run)
        assert state["name"] == "INCONCLUSIVE", state
        assert "nobody approved within 2 s; not published" in state["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(600)
def test_people_are_told_how_a_release_ended_once_they_want_it(team: Team) -> None:
    told: Queue[dict[str, str]] = Queue()

    async def listen(method: str, path: str, body: bytes) -> Answer:
        told.put(json.loads(body))
        return Answer(b"{}")

    with HttpServer(listen) as listener, team.telling(f"{listener.url}/hook"):
        run = team.start("release/manual", {"gates.gsm8k.seed": 3})
        assert team.ended(run)["name"] == "RELEASED"
        while "quantgate.release.published" not in (message := told.get(timeout=60))["subject"]:
            assert "demo: quantgate." in message["subject"]
    assert "passed" in message["text"]


def test_zombies_are_ended_only_after_a_safe_time(team: Team) -> None:
    found = {item["name"]: item for item in team.post("automations/filter", {})}
    zombies = found["quantgate: end zombie runs"]
    assert zombies["enabled"] and zombies["trigger"]["within"] == SILENCE.total_seconds() >= 900
    assert "prefect.flow-run.RELEASED" in zombies["trigger"]["expect"]
    unborn = found["quantgate: end runs that never start"]
    assert unborn["enabled"] and unborn["trigger"]["within"] == UNBORN.total_seconds()
    assert not found["quantgate: tell people"]["enabled"]


def test_nothing_listens_beyond_loopback(team: Team) -> None:
    ours = {int(team.api.split(":")[2].split("/")[0])}
    listening = [c for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert ours <= {c.laddr.port for c in listening}
    me = psutil.Process()
    mine = {me.pid, *(child.pid for child in me.children(recursive=True))}
    for connection in listening:
        if connection.pid in mine:
            assert connection.laddr.ip in {"127.0.0.1", "::1"}, connection


@pytest.mark.timeout(600)
def test_deploying_again_keeps_what_is_there_and_what_people_changed(team: Team) -> None:
    """The last of this file: it puts the deployments' own values back."""

    def known() -> dict[str, list[str]]:
        pages = ("deployments", "work_pools", "automations", "block_documents")
        pages += ("v2/concurrency_limits",)
        return {
            page: sorted(item["id"] for item in team.post(f"{page}/filter", {})) for page in pages
        }

    limit = "v2/concurrency_limits/quantgate-gpu"
    team.patch(limit, {"limit": 4})
    before = known()
    assert len(before["work_pools"]) >= 3
    assert {"release/manual", "release/nightly"} < set(team.deploy())
    assert known() == before
    assert team.get(limit)["limit"] == 4
