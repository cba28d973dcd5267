"""`python -m tasks.serve.reference`: HTTP in the main thread, the engine in its own."""

from __future__ import annotations

import os

# Read by OpenMP when torch loads it: idle threads sleep instead of spinning on a shared machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import asyncio
import signal
import socket
import sys

from tasks.serve.reference.engine import Engine, State
from tasks.serve.reference.log import configure, say
from tasks.serve.reference.options import Options, parse_options


async def serve(options: Options, listener: socket.socket) -> int:
    """Serve until a signal or a failure; the exit code."""
    from tasks.serve.reference.server import QuietServer, Server

    loop = asyncio.get_running_loop()
    failed = asyncio.Event()
    stop = asyncio.Event()

    def on_state(state: State) -> None:
        if state == "failed":
            loop.call_soon_threadsafe(failed.set)

    engine = Engine(options, on_state)
    http = QuietServer(Server(engine).app)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine.start()
    serving = asyncio.create_task(http.serve([listener]))
    ends = [asyncio.create_task(event.wait()) for event in (failed, stop)]
    await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        say("Shutting down on a signal.")
    await asyncio.to_thread(engine.stop)
    http.should_exit = True
    await asyncio.wait([serving], timeout=3)
    return 1 if failed.is_set() else 0


def main() -> None:
    """Parse, bind, serve, exit: 0 after a signal, 1 when the load or the engine failed."""
    options = parse_options()
    configure()
    say("quantgate reference engine: %s", options)
    # asyncio sets TCP_NODELAY only where the protocol is named.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        say("Cannot bind %s:%d: %s", options.host, options.port, error.strerror)
        sys.exit(1)
    code = asyncio.run(serve(options, listener))
    sys.stderr.flush()
    # The engine's thread may still be inside torch; nothing is left to clean up.
    os._exit(code)


if __name__ == "__main__":
    main()
