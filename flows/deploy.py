"""Register everything that the Prefect server needs to know; safe to run again at any time.

Deployments follow the files of this project each time. What people may have changed on the server
(pools, limits, the notification's address, automations) is created when missing, then left alone.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from flows.automations import ensure_automations
from flows.recipes import PROCESS_POOL
from tasks.errors import QuantgateError
from tasks.store import PROJECT
from tasks.task import GPU_LIMIT

PREFECT_FILE = PROJECT / "deployments" / "prefect.yaml"
KUBERNETES_TEMPLATE = PROJECT / "deployments" / "kubernetes" / "base-job-template.json"
DOCKER_DEFAULTS = {
    "image": "quantgate-worker:latest",
    "image_pull_policy": "IfNotPresent",
    "network_mode": "host",
    "volumes": ["quantgate:/data", "/var/run/docker.sock:/var/run/docker.sock"],
    "env": {"QUANTGATE_ROOT": "/data"},
    "auto_remove": True,
}


def deploy() -> list[str]:
    """Register pools, limits, blocks, automations and deployments.

    Returns:
        The deployments as flow/name.

    Raises:
        QuantgateError: the server refused, or there is none.
    """
    try:
        with get_client(sync_client=True) as client:
            _ensure_pools(client)
            _ensure_limit(client)
            ensure_automations(client)
    except httpx.TransportError as error:
        raise QuantgateError(
            "server-unreachable",
            f"No Prefect server answers at {os.environ.get('PREFECT_API_URL')}:"
            f" {str(error).rstrip('.')}.",
            "Start `prefect server start`, or correct PREFECT_API_URL.",
        ) from error
    _register()
    return deployments()


def deployments() -> list[str]:
    """What deployments/prefect.yaml lists, as flow/name."""
    listed = yaml.safe_load(PREFECT_FILE.read_text(encoding="utf-8"))["deployments"]
    return [f"{item['entrypoint'].partition(':')[2]}/{item['name']}" for item in listed]


def _ensure_pools(client: SyncPrefectClient) -> None:
    known = client.read_worker_metadata()
    docker = copy.deepcopy(known["prefect-docker"]["docker"]["default_base_job_configuration"])
    for variable, default in DOCKER_DEFAULTS.items():
        docker["variables"]["properties"][variable]["default"] = default
    pools = {
        PROCESS_POOL: ("process", "Runs on the worker's machine: one person, or one GPU host.", {}),
        f"{PROCESS_POOL}-docker": (
            "docker",
            "Each run in a container on the worker's host.",
            docker,
        ),
        f"{PROCESS_POOL}-kubernetes": (
            "kubernetes",
            "Each run as a Job: a cluster with GPU nodes and a shared volume.",
            json.loads(KUBERNETES_TEMPLATE.read_text(encoding="utf-8")),
        ),
    }
    for name, (kind, description, template) in pools.items():
        pool = WorkPoolCreate(
            name=name,
            type=kind,
            description=description,
            base_job_template=template,
        )
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            continue


def _ensure_limit(client: SyncPrefectClient) -> None:
    """One GPU user at a time; people raise it on the page Concurrency when there are more GPUs."""
    try:
        client.read_global_concurrency_limit_by_name(GPU_LIMIT)
    except ObjectNotFound:
        client.create_global_concurrency_limit(
            GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1)
        )


def _register() -> None:
    """Run `prefect deploy` on deployments/prefect.yaml, with the pool that QUANTGATE_POOL names."""
    content = yaml.safe_load(PREFECT_FILE.read_text(encoding="utf-8"))
    for item in content["deployments"]:
        item["work_pool"] = {"name": os.environ.get("QUANTGATE_POOL") or PROCESS_POOL}
    with tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
        file = Path(scratch) / "prefect.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        options = ["--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *options],
            cwd=PROJECT,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise QuantgateError(
            "deploy-failed",
            f"Prefect could not register the deployments: {_refusal(said)}.",
            "Look at the server, then run `quantgate deploy` again.",
        )


def _refusal(said: list[str]) -> str:
    told = [line for line in said if "rror" in line]
    return " ".join((told or said or ["it said nothing"])[-1].split())[:400]
