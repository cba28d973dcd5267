"""An engine that answers every chat request, for running the commands of a card."""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar


class Handler(BaseHTTPRequestHandler):
    """Answers with the last word of the message and the config's architecture."""

    config: ClassVar[dict[str, object]] = {}

    def do_POST(self) -> None:
        size = int(self.headers["content-length"])
        asked = json.loads(self.rfile.read(size))
        words = asked["messages"][-1]["content"].split()
        said = {"model": asked["model"], "path": self.path, "last": words[-1], **self.config}
        content = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *parts: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    Handler.config = json.loads((given.model_path / "config.json").read_text())
    HTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
