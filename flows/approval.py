"""A person looks at gates and card, and approves or refuses, before anything goes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Literal
from uuid import UUID

import httpx
from prefect import runtime
from prefect.exceptions import NotPausedError
from prefect.flow_runs import pause_flow_run, resume_flow_run
from prefect.input import RunInput
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings
from pydantic import Field

from flows.tell import card_markdown, gates_markdown
from tasks.artifacts import Card, GateReport, ReleaseVerdict
from tasks.errors import BadInputError
from tasks.run import Run
from tasks.spec import ApprovalSpec

POLL = 3
"""Seconds between looks at whether somebody has answered."""
GRACE = 600
"""Seconds until Prefect's own time limit, after the spec's."""
NOBODY = "nobody in time"


class Approval(RunInput):
    """Publish this release?"""

    answer: Literal["approve", "refuse"] = Field(description="refuse: it ends REJECTED")
    name: str = Field(default="", description="Who you are; kept with the decision")
    reason: str = Field(default="", description="Why; kept with the decision")


def check_askable(spec: ApprovalSpec) -> None:
    """A question that nobody can see is refused before anything is spent.

    Raises:
        BadInputError: approval is asked for, and no Prefect server is there to show it.
    """
    if spec.ask and not get_current_settings().api.url:
        raise BadInputError(
            "approval-nobody",
            "publish.approval.ask: without a Prefect server nobody can be asked.",
            "Set PREFECT_API_URL, or publish.approval.ask=false.",
        )


def ask_person(
    run: Run, reports: Mapping[str, GateReport], card: Card
) -> tuple[ReleaseVerdict, str] | None:
    """Pause for a person, if the spec asks for one.

    Returns:
        None when it may be published; else how the release ends, and why. Nobody in time:
        INCONCLUSIVE; the next run is there again in seconds, and asks again.
    """
    wanted = run.spec.publish.approval
    if not wanted.ask or run.spec.publish.to == "nowhere":
        return None
    question = f"{gates_markdown(reports)}\n\n---\n\n{card_markdown(card.path, pictures=False)}"
    with _nobody_after(wanted.timeout):
        given = pause_flow_run(
            wait_for_input=Approval.with_initial_data(description=question),
            timeout=int(wanted.timeout) + GRACE,
            poll_interval=POLL,
        )
    if given.name == NOBODY:
        return (
            ReleaseVerdict.INCONCLUSIVE,
            f"nobody approved within {wanted.timeout:.0f} s; not published; run again to ask again",
        )
    words = f"by {given.name or 'a person'}{f': {given.reason}' if given.reason else ''}"
    get_run_logger().info("%s %s", given.answer, words)
    _keep(run.folder, given)
    return None if given.answer == "approve" else (ReleaseVerdict.REJECTED, f"refused {words}")


@contextmanager
def _nobody_after(seconds: float) -> Iterator[None]:
    """Answer in nobody's name after so many seconds, unless the `with` block has ended by then.

    A pause that reaches Prefect's own time limit ends in Failed only; this run has a verdict.
    """
    ended = Event()
    flow_run = UUID(runtime.flow_run.id)
    Thread(target=_answer_for_nobody, args=(flow_run, seconds, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _answer_for_nobody(flow_run: UUID, seconds: float, ended: Event) -> None:
    while not ended.wait(seconds):
        try:
            resume_flow_run(flow_run, {"answer": "refuse", "name": NOBODY})
            return
        except (NotPausedError, httpx.HTTPError):
            seconds = POLL


def _keep(folder: Path, given: Approval) -> None:
    (folder / "approval.json").write_text(given.model_dump_json(indent=2), encoding="utf-8")
