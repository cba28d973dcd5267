"""A port on loopback that nobody else listens on."""

from __future__ import annotations

import socket
from contextlib import closing

from tasks.errors import TransientError


def free_port(asked: int) -> int:
    """`asked` if nothing listens there on loopback, or a free port for 0.

    Raises:
        TransientError: the port is taken; whoever listens there must not answer for this release.
    """
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", asked))
        except OSError as error:
            raise TransientError(
                "port-taken",
                f"serve.port: 127.0.0.1:{asked} is taken ({error.strerror}).",
                "Stop what listens there, or set serve.port to 0.",
            ) from error
        port: int = probe.getsockname()[1]
        return port
