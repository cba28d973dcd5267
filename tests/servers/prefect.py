"""A real Prefect server and process worker on loopback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tasks.serve.ports import free_port
from tests.servers.service import Service


class PrefectServer(Service):
    """A server whose port and database stay the same when it is started again."""

    def __init__(self, home: Path) -> None:
        port = str(free_port(0))
        self.api = f"http://127.0.0.1:{port}/api"
        environment = {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": "",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_API_PORT": port,
            "PREFECT_UI_API_URL": self.api,
            "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
            "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
        }
        command = [sys.executable, "-m", "prefect", "server", "start"]
        command += ["--host", "127.0.0.1", "--port", port]
        super().__init__(command, environment, home / "server.log")

    def start(self, seconds: float = 180) -> None:
        """Start it; returns when it answers."""
        super().start()
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.tail
            try:
                if httpx.get(f"{self.api}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.3)
        raise AssertionError(f"no Prefect server after {seconds} s: {self.tail}")


def prefect_worker(api: str, folder: Path, root: Path) -> Service:
    """A worker of the pool `quantgate`; its runs work below `root`."""
    environment = {
        "PREFECT_HOME": str(folder / "worker"),
        "PREFECT_API_URL": api,
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "QUANTGATE_ROOT": str(root),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "quantgate"]
    return Service(command, environment, folder / "worker.log")


@contextmanager
def running(*services: Service) -> Iterator[None]:
    """Start them in this order; stop them in the other at the end of a `with` block."""
    started: list[Service] = []
    try:
        for service in services:
            started.append(service)
            service.start()
        yield
    finally:
        for service in reversed(started):
            service.stop()
