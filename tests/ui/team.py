"""What a test may do beside the browser: look at the server, its runs, and this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.automations import BLOCK
from tasks.store import PROJECT
from tests.servers.service import Service

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}


@dataclass(frozen=True)
class Team:
    """A server with a worker: `api` is its URL, `root` the worker's root."""

    api: str
    root: Path
    server: Service
    worker: Service

    def deploy(self) -> list[str]:
        """`quantgate deploy`, as a person calls it; the deployments that it names."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "deploy", "--json"],
            env={**os.environ, "PREFECT_API_URL": self.api},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        names: list[str] = json.loads(done.stdout)["deployments"]
        return names

    def url(self, path: str) -> str:
        """A page of the V2 UI."""
        return f"{self.api.removesuffix('/api')}/v2/{path}"

    def get(self, path: str) -> Any:
        """Ask the server."""
        return self._asked("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the server."""
        return self._asked("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> None:
        """Change something on the server."""
        self._asked("PATCH", path, body)

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """As Prefect's own client: a busy server's 503 is asked again."""
        for _ in range(8):
            answer = httpx.request(method, f"{self.api}/{path}", json=body, timeout=60)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(2)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def deployment(self, name: str) -> dict[str, Any]:
        """A deployment by flow/name."""
        found: dict[str, Any] = self.get(f"deployments/name/{name}")
        return found

    def runs(self, name: str) -> list[dict[str, Any]]:
        """All runs of flow/name, those in the schedule too."""
        wanted = {"deployments": {"id": {"any_": [self.deployment(name)["id"]]}}}
        found: list[dict[str, Any]] = self.post("flow_runs/filter", wanted)
        return found

    def pause_schedule(self, name: str) -> None:
        """Keep the clock from starting flow/name in the middle of a test."""
        found = self.deployment(name)
        for schedule in found["schedules"]:
            path = f"deployments/{found['id']}/schedules/{schedule['id']}"
            self.patch(path, {"active": False})

    def preset(self, name: str, settings: dict[str, Any]) -> None:
        """Change the values that a release deployment fills into its form."""
        found = self.deployment(f"release/{name}")
        parameters = changed(found["parameters"], settings)
        self.patch(f"deployments/{found['id']}", {"parameters": parameters})

    def start(self, name: str, settings: dict[str, Any] | None = None) -> str:
        """Start a run of flow/name, as the UI does; its id."""
        found = self.deployment(name)
        body = {
            "parameters": changed(found["parameters"], settings or {}),
            "state": {"type": "SCHEDULED"},
        }
        run: str = self.post(f"deployments/{found['id']}/create_flow_run", body)["id"]
        return run

    def state(self, run: str) -> dict[str, Any]:
        """The state of a flow run."""
        found: dict[str, Any] = self.get(f"flow_runs/{run}")["state"]
        return found

    def ended(self, run: str, seconds: float = 400) -> dict[str, Any]:
        """Wait until a run has ended; its state."""
        return self.until(run, ENDED, seconds)

    def until(self, run: str, types: set[str], seconds: float = 400) -> dict[str, Any]:
        """Wait until a run is in one of these states."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.state(run)
            if state["type"] in types:
                return state
            time.sleep(0.5)
        raise AssertionError(f"{run} is {state['name']} after {seconds} s, not {types}")

    def artifacts(self, run: str) -> dict[str, dict[str, Any]]:
        """A run's artifacts by key."""
        wanted = {"artifacts": {"flow_run_id": {"any_": [run]}}}
        return {item["key"]: item for item in self.post("artifacts/filter", wanted)}

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events called `name`, newest first."""
        wanted = {"filter": {"event": {"name": [name]}}}
        found: list[dict[str, Any]] = self.post("events/filter", wanted)["events"]
        return found

    def engines(self) -> list[psutil.Process]:
        """Processes that serve or quantize below this root."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.root) in word for word in process.info["cmdline"] or ())
        ]

    def until_an_engine_runs(self, seconds: float = 240) -> None:
        """Wait for the first process of `engines`."""
        deadline = time.monotonic() + seconds
        while not self.engines():
            assert time.monotonic() < deadline, f"no engine within {seconds} s"
            time.sleep(0.2)

    def until_no_engine_runs(self, seconds: float) -> None:
        """Wait until the last process of `engines` has ended."""
        deadline = time.monotonic() + seconds
        while left := self.engines():
            assert time.monotonic() < deadline, left
            time.sleep(0.2)

    @contextmanager
    def telling(self, url: str) -> Iterator[None]:
        """Switch notifications on, as a person does in the UI: the block's address first."""
        [block] = [b for b in self.post("block_documents/filter", {}) if b["name"] == BLOCK]
        body = {"data": {"url": url}, "merge_existing_data": True}
        self.patch(f"block_documents/{block['id']}", body)
        named = {item["name"]: item["id"] for item in self.post("automations/filter", {})}
        automation = f"automations/{named['quantgate: tell people']}"
        self.patch(automation, {"enabled": True})
        try:
            yield
        finally:
            self.patch(automation, {"enabled": False})

    def flow_process(self, run: str) -> psutil.Process | None:
        """The process that runs a flow run."""
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "prefect.engine" in words or "prefect.flow_engine" in words:
                try:
                    environment = process.environ()
                except psutil.Error:
                    continue
                if run in environment.get("PREFECT__FLOW_RUN_ID", ""):
                    return process
        return None


def changed(parameters: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """`parameters` with settings like `gates.gsm8k.limit` of the spec on top."""
    copied = _copied(parameters)
    for dotted, value in settings.items():
        *path, leaf = dotted.split(".")
        node = copied["spec"]
        for name in path:
            node = node[name]
        node[leaf] = value
    return copied


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return list(value) if isinstance(value, list) else value
