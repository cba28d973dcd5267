"""The image's health check: does the engine in this container answer /health with 200?"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

TIMEOUT = 20


def healthy(port: str) -> bool:
    """Whether 127.0.0.1:`port` answers /health with 200, no proxy in between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/health", timeout=TIMEOUT) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


if __name__ == "__main__":
    sys.exit(0 if healthy(os.environ.get("QUANTGATE_PORT", "30000")) else 1)
