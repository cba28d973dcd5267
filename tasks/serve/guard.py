"""Runs one command and ends it when whoever asked for it dies. Standard library only.

Started as `python -I -S guard.py GRACE COMMAND...` in a session of its own, with the read end of a
pipe as standard input; the asker holds the write end. When the asker dies, however hard, the pipe
closes, and the whole process group gets SIGTERM, then SIGKILL after GRACE seconds. The command
itself reads from /dev/null. The exit code is the command's own (128 + signal when it was killed).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time


def main() -> int:
    """Run `sys.argv[2:]` under guard and return its exit code."""
    grace, command = float(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, _pass)
    signal.signal(signal.SIGINT, _pass)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, _pass)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    while True:
        ready, _, _ = select.select([0, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        if child.poll() is not None:
            return child.returncode if child.returncode >= 0 else 128 - child.returncode
        if 0 in ready and not os.read(0, 1):
            return _end(child, grace)


def _pass(number: int, frame: object) -> None:
    """The guard outlives the signals that end its command."""


def _end(child: subprocess.Popen[bytes], grace: float) -> int:
    print("the program that started this engine is gone: stopping", file=sys.stderr, flush=True)
    os.killpg(0, signal.SIGTERM)
    limit = time.monotonic() + grace
    while child.poll() is None and time.monotonic() < limit:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(main())
