"""Runs that died without a word are marked Crashed; those that live or ended are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Running, State

from flows.dead import ALIVE, WHY, living, report_dead_runs
from flows.hooks import NAME
from tasks.locks import locked
from tasks.run import Run
from tasks.spec import ReleaseSpec


@flow
def nothing() -> None:
    """A flow whose runs these tests make up."""


@pytest.fixture
def client(prefect_api: str) -> SyncPrefectClient:
    with temporary_settings({PREFECT_API_URL: prefect_api}), get_client(sync_client=True) as made:
        yield made


def left_behind(client: SyncPrefectClient, run: Run, state: State[object]) -> str:
    """A flow run in `state`, and the folder of its run as a killed process leaves it."""
    flow_run = client.create_flow_run(nothing, state=state)
    (run.folder / NAME).write_text(str(flow_run.id))
    (run.folder / ALIVE).touch()
    return str(flow_run.id)


def test_dead_living_and_ended(
    client: SyncPrefectClient, demo_spec: ReleaseSpec, tmp_path: Path
) -> None:
    dead, alive, ended, unknown = (Run.start(demo_spec, tmp_path) for _ in range(4))
    died = left_behind(client, dead, Running())
    lives = left_behind(client, alive, Running())
    over = left_behind(client, ended, Completed())
    (unknown.folder / ALIVE).touch()
    with locked(alive.folder / ALIVE, alive.id):
        assert report_dead_runs(tmp_path) == [died]
    states = {one: client.read_flow_run(one).state for one in (died, lives, over)}
    assert [state.name for state in states.values() if state] == ["Crashed", "Running", "Completed"]
    assert states[died] is not None and states[died].message == WHY
    assert [p.parent for p in tmp_path.rglob(ALIVE)] == [alive.folder]


def test_a_run_that_ends_leaves_no_sign_of_life(demo_spec: ReleaseSpec, tmp_path: Path) -> None:
    run = Run.start(demo_spec, tmp_path)
    with pytest.raises(ZeroDivisionError), living(run):
        assert (run.folder / ALIVE).exists()
        raise ZeroDivisionError
    assert report_dead_runs(tmp_path) == []
    assert not (run.folder / ALIVE).exists()
