"""A program in the background that a test starts, stops and starts again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Service:
    """A command; what it says goes to the end of `log`.

    `environment` lies on top of this process's; an empty value takes a variable away.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it in a session of its own."""
        merged = {**os.environ, **self.environment}
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={name: value for name, value in merged.items() if value},
                start_new_session=True,
            )

    def stop(self, number: signal.Signals = signal.SIGTERM, patience: float = 60) -> None:
        """Send it a signal, wait for its end, and kill it if that does not come."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]
