"""A person in front of the Prefect UI: form, run page, rejection, cancel, approval."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tasks.store import PROJECT
from tests.ui.team import Team

pytestmark = pytest.mark.browser

PATIENCE = 240.0
"""Seconds for what takes a few on a machine that does nothing else."""
IMAGES = PROJECT / ".cache" / "pictures"
"""What people saw; two of them are copied to docs/images by hand."""


def picture(page: Any, name: str, *, full: bool = False) -> None:
    """Keep what the person sees."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / f"{name}.png", full_page=full)


def open_form(page: Any, team: Team) -> None:
    """From the list of deployments to the form of `manual`."""
    page.goto(team.url("deployments"))
    page.get_by_role("link", name="manual", exact=True).click()
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("Custom run", re.IGNORECASE)).click()
    page.get_by_text("Accuracy that the bound must reach").wait_for()


def submit(page: Any, team: Team) -> str:
    """Submit the form, again when the server is too busy; the id of the run that it started."""
    for _ in range(5):
        with page.expect_response(re.compile("create_flow_run$")) as answered:
            page.get_by_role("button", name="Submit").click()
        if answered.value.status != 503:
            break
        page.wait_for_timeout(5000)
    run: str = answered.value.json()["id"]
    return run


def show_run(page: Any, team: Team, run: str, verdict: str) -> None:
    """Open the run's page and see its verdict."""
    page.goto(team.url(f"runs/flow-run/{run}"))
    page.get_by_text(verdict, exact=True).first.wait_for()


def show_artifact(page: Any, team: Team, run: str, key: str) -> None:
    """Open one artifact of a run."""
    artifact = team.artifacts(run)[key]
    page.goto(team.url(f"artifacts/artifact/{artifact['id']}"))


@pytest.mark.timeout(600)
def test_a_wrong_value_is_told_inline_then_the_demo_is_released(page: Any, team: Team) -> None:
    open_form(page, team)
    accuracy = page.get_by_label("Min accuracy")
    accuracy.fill("1.5")
    page.get_by_role("button", name="Submit").click()
    assert "less than or equal to 1" in accuracy.evaluate("field => field.validationMessage")
    picture(page, "form-wrong-value")
    assert team.runs("release/manual") == [], "nothing was submitted"
    accuracy.fill("0.8")
    page.evaluate("window.scrollTo(0, 0)")
    picture(page, "form")
    run = submit(page, team)

    assert team.ended(run)["name"] == "RELEASED", team.state(run)
    show_run(page, team, run, "RELEASED")
    assert page.get_by_text(re.compile(r"^demo \d{4}-\d{2}-\d{2}")).first.is_visible()
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("decision", exact=True).first.wait_for()
    picture(page, "run")

    found = team.artifacts(run)
    assert {"plan", "gates", "decision", "card", "published", "plot-accuracy"} <= found.keys()
    show_artifact(page, team, run, "decision")
    page.get_by_role("heading", name="RELEASED").wait_for()
    page.get_by_role("cell", name="acceptance", exact=True).first.wait_for()
    picture(page, "decision")
    show_artifact(page, team, run, "plot-accuracy")
    shown = page.locator("img[src^='data:image/png']").first
    shown.wait_for()
    assert shown.evaluate("image => image.complete && image.naturalWidth") > 300
    show_artifact(page, team, run, "card")
    page.locator("img[src^='data:image/png']").first.wait_for()
    picture(page, "card")

    [event] = team.events("quantgate.release.published")
    assert event["resource"]["prefect.resource.id"] == "quantgate.release.demo"
    assert len(team.events("quantgate.gate.passed")) == 4
    assert team.engines() == []


@pytest.mark.timeout(600)
def test_a_threshold_that_is_missed_ends_rejected_and_says_why(page: Any, team: Team) -> None:
    open_form(page, team)
    under = "//*[contains(text(), 'Mean accept length, at least')]/following::input[1]"
    page.locator(f"xpath={under}").fill("2.96")
    run = submit(page, team)
    assert team.ended(run)["name"] == "REJECTED"
    show_run(page, team, run, "REJECTED")
    show_artifact(page, team, run, "decision")
    page.get_by_role("heading", name="REJECTED").wait_for()
    page.get_by_text(re.compile("lies under 2.96")).first.wait_for()
    picture(page, "rejected")
    assert "published" not in team.artifacts(run)
    assert team.events("quantgate.release.rejected")


@pytest.mark.timeout(600)
def test_cancel_in_the_middle_leaves_nothing_running_and_can_go_on(page: Any, team: Team) -> None:
    run = team.start("release/manual", {"gates.gsm8k.seed": 1})
    records = ".quantgate/building/gate-gsm8k-*/files/records.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not any(team.root.glob(records)):
        assert time.monotonic() < deadline and team.state(run)["type"] != "COMPLETED"
        time.sleep(0.1)
    page.goto(team.url(f"runs/flow-run/{run}"))
    page.get_by_role("button", name="Open menu").first.click()
    page.get_by_role("menuitem", name="Cancel").click()
    page.get_by_role("button", name=re.compile("Cancel Flow Run", re.IGNORECASE)).click()
    team.until_no_engine_runs(30)
    assert team.ended(run, 60)["type"] == "CANCELLED"
    page.get_by_text("Cancelled", exact=True).first.wait_for()
    picture(page, "cancelled")
    assert any(team.root.glob(records)), "what was measured is kept for the next run"


def fill_in(page: Any, dialog: Any, answer: str) -> None:
    """Answer the question; again if need be: the page may load its form anew meanwhile."""
    unanswered = dialog.get_by_text("Select", exact=True)
    if unanswered.count():
        unanswered.click()
        page.get_by_role("option", name=answer).click()
        unanswered.wait_for(state="hidden")
    dialog.get_by_label("Name").fill("Ada")
    dialog.get_by_label("Reason").fill("looked at the card")


def gone(dialog: Any) -> bool:
    """Whether a dialog closes within ten seconds."""
    try:
        dialog.wait_for(state="hidden", timeout=10_000)
    except PlaywrightTimeoutError:
        return False
    return True


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("answer", "verdict", "published"),
    [("refuse", "REJECTED", False), ("approve", "RELEASED", True)],
)
def test_a_person_decides_after_the_gates(
    page: Any, team: Team, answer: str, verdict: str, published: bool, tmp_path: Path
) -> None:
    asked = {
        "gates.gsm8k.seed": 1,
        "publish.approval.ask": True,
        "publish.folder": str(tmp_path / "out"),
    }
    run = team.start("release/manual", asked)
    team.until(run, {"PAUSED"})
    assert not (tmp_path / "out").exists()
    page.goto(team.url(f"runs/flow-run/{run}"))
    page.get_by_role("button", name="Open menu").first.click()
    page.get_by_role("menuitem", name="Resume").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("acceptance").first.wait_for()
    fill_in(page, dialog, answer)
    picture(page, f"approval-{answer}")
    dialog.get_by_role("button", name="Resume").click()
    if not gone(dialog):
        fill_in(page, dialog, answer)
        dialog.get_by_role("button", name="Resume").click()
        assert gone(dialog), dialog.inner_text()
    state = team.ended(run, 60)
    assert state["name"] == verdict
    assert (tmp_path / "out").exists() is published
    if not published:
        assert "refused by Ada: looked at the card" in state["message"]
