"""`python -m tests.hub.emulator [--port N] [--root DIR]`: run it, and print how to use it."""

from __future__ import annotations

import argparse
import socket
import tempfile
from pathlib import Path

import uvicorn

from tests.hub.emulator.app import build


def main() -> None:
    """Serve on loopback until stopped; tokens are hf_writer, hf_reader and hf_other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--root", type=Path, default=None)
    given = parser.parse_args()
    root = given.root or Path(tempfile.mkdtemp(prefix="hub-emulator-"))
    # The protocol must be named: only then does asyncio send small answers without delay.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", given.port))
    listener.listen(128)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(f"export HF_ENDPOINT={base} HF_TOKEN=hf_writer", flush=True)
    app = build(root, base)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
