from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, time
import httpx
from prefect.server.api.server import SubprocessASGIServer
from flows.own_server import start_own_server

signal.signal(signal.SIGINT, lambda *_: None)
start_own_server()
server = SubprocessASGIServer()
os.killpg(0, signal.SIGINT)
time.sleep(2)
print(httpx.get(f"{server.api_url}/health", timeout=30).status_code)
print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.slow
def test_an_interrupt_leaves_the_server_to_the_run(tmp_path: Path) -> None:
    clear = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=clear
        | {"PREFECT_HOME": str(tmp_path), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        | {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["200", "False"], done.stderr
