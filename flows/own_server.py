"""Prefect's temporary server, for a run that has no other, out of reach of the terminal's Ctrl-C.

It is a child in our process group. An interrupt that reached it would end it before the run could
say how it ended: the run would then wait minutes for a server that is gone.
"""

from __future__ import annotations

import signal

from prefect.client.orchestration import get_client


def start_own_server() -> None:
    """Start the temporary server, if PREFECT_API_URL names no other; SIGINT stays blocked in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        get_client(sync_client=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
