"""A Prefect server, a process worker and Debian's Chromium: what a person has in front of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import Checkpoint
from tasks.run import Run
from tests.servers.prefect import PrefectServer, prefect_worker, running
from tests.ui.team import Team

QUICK: dict[str, Any] = {
    "gates.gsm8k.limit": 24,
    "gates.gsm8k.rule": "point",
    "gates.gsm8k.min_accuracy": 0.8,
    "gates.acceptance.min_requests": 20,
    "gates.acceptance.min_verifications": 100,
    "card.samples": 1,
}
CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@pytest.fixture(scope="session")
def team(
    tmp_path_factory: pytest.TempPathFactory, demo_run: Run, demo_checkpoint: Checkpoint
) -> Iterator[Team]:
    """Everything registered on a server, and a worker whose root holds the demo's checkpoint."""
    folder = tmp_path_factory.mktemp("team")
    root = folder / "root"
    for stage in ("quantize", "requant"):
        kept = demo_run.root / ".quantgate" / "store" / stage
        shutil.copytree(kept, root / ".quantgate" / "store" / stage, copy_function=os.link)
    prompts = folder / "prompts.jsonl"
    shipped = Path("tasks/gates/data/acceptance.jsonl").read_text().splitlines(keepends=True)
    prompts.write_text("".join(shipped[::10]))
    (folder / "server").mkdir()
    server = PrefectServer(folder / "server")
    worker = prefect_worker(server.api, folder, root)
    with running(server):
        made = Team(api=server.api, root=root, server=server, worker=worker)
        made.deploy()
        made.pause_schedule("watch/watch")
        quick = {
            **QUICK,
            "gates.acceptance.prompts": str(prompts),
            "publish.folder": str(folder / "published"),
        }
        for name in ("manual", "nightly"):
            made.preset(name, quick)
        with running(worker):
            yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        assert "CI" not in os.environ, "CI skips no browser test: tests/ui/setup installs Chromium"
        pytest.skip("no chromium: tests/ui/setup installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, team: Team, tmp_path: Path) -> Iterator[Any]:
    """A page of the V2 UI, with patience for a busy machine; its last sight lies in `tmp_path`."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(60_000)
    opened = context.new_page()
    yield opened
    opened.screenshot(path=tmp_path / "last.png")
    context.close()
