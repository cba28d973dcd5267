"""A small engine for tests: `/health` after a delay, children, stubbornness, sudden ends.

python fake_engine.py PORT [--delay S] [--child] [--stubborn] [--exit-after S] [--exit-code N]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

ASKED = argparse.ArgumentParser()
ASKED.add_argument("port", type=int)
ASKED.add_argument("--delay", type=float, default=0.0)
ASKED.add_argument("--child", action="store_true")
ASKED.add_argument("--stubborn", action="store_true")
ASKED.add_argument("--exit-after", type=float)
ASKED.add_argument("--exit-code", type=int, default=3)
ARGS = ASKED.parse_args()
BEGAN = time.monotonic()


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ready = time.monotonic() - BEGAN >= ARGS.delay
        body = json.dumps({"environment": dict(os.environ), "pid": os.getpid()}).encode()
        self.send_response(200 if ready else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def leave() -> None:
    time.sleep(ARGS.exit_after)
    print("CUDA out of memory, said the fake engine", flush=True)
    os._exit(ARGS.exit_code)


if __name__ == "__main__":
    if ARGS.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if ARGS.child:
        # A child in a session of its own: only its mark tells whose it is.
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        print(f"child={child.pid}", flush=True)
    if ARGS.exit_after is not None:
        threading.Thread(target=leave, daemon=True).start()
    print(f"engine pid={os.getpid()} port={ARGS.port}", flush=True)
    HTTPServer(("127.0.0.1", ARGS.port), Answers).serve_forever()
