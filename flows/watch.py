"""Look for a new source revision or base image, and start the deployment that releases it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger

from tasks.errors import BadInputError
from tasks.hub.latest import source_stamp
from tasks.image.latest import registry_digest
from tasks.run import default_root
from tasks.spec import ReleaseSpec, parse_spec
from tasks.store import write_whole
from tasks.task import is_transient


@flow(name="watch", flow_run_name="watch {deployment}")
def watch(deployment: str = "release/nightly", root: Path | None = None) -> str:
    """Compare what can be seen now with what was seen last; start the deployment on a change.

    Args:
        deployment: flow/name of the release deployment; it also says which source and image.
        root: folder whose `.quantgate/watch/` remembers what was seen; unset: QUANTGATE_ROOT, else
            here.

    Returns:
        What was done, in one line.

    Raises:
        BadInputError: there is no such deployment, or it holds no valid spec.
    """
    spec = _spec_of(deployment)
    memory = (root or default_root()) / ".quantgate" / "watch" / f"{spec.name}.json"
    seen = look(spec)
    changed = _differences(_remembered(memory), seen)
    if not changed:
        return _told(f"{spec.name}: nothing new")
    run = cast(FlowRun, run_deployment(deployment, timeout=0, as_subflow=False))
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_whole(memory, json.dumps(seen, indent=2))
    return _told(f"{spec.name}: {', '.join(changed)}; started {run.name}")


@task(
    name="look",
    task_run_name="look at source and base image",
    retries=2,
    retry_delay_seconds=[10, 60],
    retry_condition_fn=is_transient,
)
def look(spec: ReleaseSpec) -> dict[str, str | None]:
    """The source's revision and the base image's digest, without downloading either."""
    return {"source": source_stamp(spec.source), "base image": registry_digest(spec)}


def _spec_of(deployment: str) -> ReleaseSpec:
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(deployment)
        except ObjectNotFound as error:
            raise BadInputError(
                "watch-deployment",
                f"deployment: {deployment} is not registered.",
                "Run `quantgate deploy`, or name a deployment as flow/name.",
            ) from error
    return parse_spec(found.parameters.get("spec") or {}, origin=f"deployment {deployment}")


def _remembered(memory: Path) -> dict[str, str | None]:
    try:
        held = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


def _differences(before: dict[str, str | None], now: dict[str, str | None]) -> list[str]:
    """What is new; what cannot be seen now (a registry that does not answer) is not a change."""
    return [
        f"{name} is {value[:19]}" if before.get(name) is None else f"{name} changed to {value[:19]}"
        for name, value in now.items()
        if value is not None and value != before.get(name)
    ]


def _told(line: str) -> str:
    get_run_logger().info(line)
    return line
