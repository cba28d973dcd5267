"""A Prefect server of the tests' own, started once: each run then costs a second, not twenty."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.run import Run
from tasks.store import PROJECT
from tests.servers.prefect import PrefectServer, running

DEMO = "deployments/demo/release.yaml"
QUICK = {
    "gates.gsm8k.limit": "24",
    "gates.gsm8k.rule": "point",
    "gates.gsm8k.min_accuracy": "0.8",
    "gates.acceptance.min_requests": "24",
    "gates.acceptance.min_verifications": "100",
    "card.samples": "1",
}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    with running(server):
        yield server.api


@pytest.fixture
def start(start_fresh: Start, tmp_path: Path, demo_run: Run, demo_checkpoint: object) -> Start:
    """As `start_fresh`, with the demo's checkpoint in the store already."""
    for stage in ("quantize", "requant"):
        kept = demo_run.store.home / "store" / stage
        shutil.copytree(kept, tmp_path / "root/.quantgate/store" / stage, copy_function=os.link)
    return start_fresh


@pytest.fixture
def start_fresh(prefect_api: str, tmp_path: Path) -> Start:
    """Start `quantgate release` on the demo with few requests; its root is `tmp_path/root`."""
    prompts = tmp_path / "prompts.jsonl"
    shipped = Path("tasks/gates/data/acceptance.jsonl").read_text().splitlines(keepends=True)
    prompts.write_text("".join(shipped[::10]))

    def run(**settings: str) -> subprocess.Popen[str]:
        chosen = {
            **QUICK,
            "gates.acceptance.prompts": str(prompts),
            "publish.folder": str(tmp_path / "published"),
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        words = [word for pair in chosen.items() for word in ("--set", "=".join(pair))]
        command = [sys.executable, "-m", "flows.cli", "release", DEMO, "--json", *words]
        return subprocess.Popen(
            [*command, "--root", str(tmp_path / "root")],
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "stderr.log").open("a"),
            text=True,
            cwd=PROJECT,
            env={**os.environ, "PREFECT_API_URL": prefect_api, "OMP_NUM_THREADS": "1"},
        )

    return run


def finish(run: subprocess.Popen[str], code: int) -> dict[str, Any]:
    """Wait for a run's end; its JSON."""
    output, _ = run.communicate(timeout=300)
    assert run.returncode == code, output
    told: dict[str, Any] = json.loads(output)
    return told
