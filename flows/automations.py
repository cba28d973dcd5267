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

BLOCK = "quantgate-notify"
TAG = "prefect.tag.quantgate"
HEARTBEAT = timedelta(minutes=3)
"""How often a run says that it lives (Prefect's default)."""
SILENCE = 5 * HEARTBEAT
"""After this long without a sign a run is taken for dead: longer than a restart of the server."""
UNBORN = timedelta(hours=2)
"""Longer than a host needs to pull an image of tens of gigabytes."""
ENDS = ("Completed", "Failed", "Cancelled", "Crashed")
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
    signs: set[str] = {"prefect.flow-run.heartbeat"}
    return AutomationCore(
        name="quantgate: end zombie runs",
        description=f"A run without a sign of life for {SILENCE} is marked Crashed.",
        enabled=True,
        trigger=EventTrigger(
            after=signs,
            expect=signs | {f"prefect.flow-run.{end}" for end in ENDS},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": TAG},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(state=StateType.CRASHED, message=f"No sign of life for {SILENCE}.")
        ],
    )


def end_unborn() -> AutomationCore:
    """A run whose worker was stopped just after taking it would stay Pending for ever."""
    return AutomationCore(
        name="quantgate: end runs that never start",
        description=f"A run that is Pending for {UNBORN} is marked Crashed.",
        enabled=True,
        trigger=EventTrigger(
            after={"prefect.flow-run.Pending"},
            expect={f"prefect.flow-run.{state}" for state in ("Running", "Scheduled", *ENDS)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": TAG},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=UNBORN,
        ),
        actions=[
            ChangeFlowRunState(state=StateType.CRASHED, message=f"Did not start within {UNBORN}.")
        ],
    )


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
