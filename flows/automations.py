"""What the server does by itself: tell people (off until someone wants it), end dead runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from tasks.artifacts import ReleaseVerdict

BLOCK = "quantgate-notify"
TAG = "prefect.tag.quantgate"
HEARTBEAT = timedelta(minutes=3)
"""How often a run says that it lives (Prefect's default)."""
SILENCE = 5 * HEARTBEAT
"""After this long without a sign a run is taken for dead: longer than a restart of the server."""
UNBORN = timedelta(hours=2)
"""Longer than a host needs to pull an image of tens of gigabytes."""
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", *ReleaseVerdict)
"""Names of final states; an event is called by the name, and a release's is its verdict."""
OUTCOMES = {"quantgate.release.published", "quantgate.release.rejected"}
OUTCOMES |= {"quantgate.release.inconclusive", "quantgate.gate.failed"}


def ensure_automations(client: SyncPrefectClient) -> list[str]:
    """Create the automations that are missing; those that are there stay as people left them."""
    wanted = (notify(_ensure_block(client)), end_zombies(), end_unborn())
    created = []
    for automation in wanted:
        if not client.read_automations_by_name(automation.name):
            client.create_automation(automation)
            created.append(automation.name)
    return created


def notify(block: UUID) -> AutomationCore:
    """Tell people how releases end; disabled until the block has an address of theirs."""
    return AutomationCore(
        name="quantgate: tell people",
        description=f"Give the block {BLOCK} an address, then switch this on.",
        enabled=False,
        trigger=EventTrigger(
            expect=OUTCOMES,
            match={"prefect.resource.id": "quantgate.release.*"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="{{ event.resource.name }}: {{ event.event }}",
                body="{{ event.payload.why or event.payload.reasons }}",
            )
        ],
    )


def end_zombies() -> AutomationCore:
    """A run that was killed together with its worker would stay Running for ever."""
    signs = {"prefect.flow-run.heartbeat"}
    return _crash_after_silence(
        "quantgate: end zombie runs",
        f"A run without a sign of life for {SILENCE} is marked Crashed.",
        after=signs,
        expect=signs | _states(*ENDS),
        within=SILENCE,
        message=f"No sign of life for {SILENCE}.",
    )


def end_unborn() -> AutomationCore:
    """A run whose worker was stopped just after taking it would stay Pending for ever."""
    return _crash_after_silence(
        "quantgate: end runs that never start",
        f"A run that is Pending for {UNBORN} is marked Crashed.",
        after=_states("Pending"),
        expect=_states("Running", "Scheduled", *ENDS),
        within=UNBORN,
        message=f"Did not start within {UNBORN}.",
    )


def _crash_after_silence(
    name: str,
    description: str,
    *,
    after: set[str],
    expect: set[str],
    within: timedelta,
    message: str,
) -> AutomationCore:
    """Mark a run of ours Crashed where none of the expected events follows in time."""
    return AutomationCore(
        name=name,
        description=description,
        enabled=True,
        trigger=EventTrigger(
            after=after,
            expect=expect,
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": TAG},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=within,
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=message)],
    )


def _states(*names: str) -> set[str]:
    return {f"prefect.flow-run.{name}" for name in names}


def _ensure_block(client: SyncPrefectClient) -> UUID:
    kind = CustomWebhookNotificationBlock.get_block_type_slug()
    try:
        return client.read_block_document_by_name(BLOCK, kind).id
    except ObjectNotFound:
        body: dict[str, Any] = {"subject": "{{subject}}", "text": "{{body}}"}
        block = CustomWebhookNotificationBlock(
            name=BLOCK, url="http://127.0.0.1:9/change-me", json_data=body
        )
        saved = block.save(BLOCK)
        assert isinstance(saved, UUID)
        return saved
