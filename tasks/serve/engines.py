"""Bring an engine up on a checkpoint, watch it, and always take it down again.

Three ways share one contract (`spec.start`): `process`, `container` and `url`. `serve` yields the
`Endpoint` as soon as the engine is started; `wait_ready` waits until it answers.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import httpx

import tasks
from tasks.artifacts import Endpoint, Image
from tasks.errors import BadInputError, TransientError
from tasks.serve import process
from tasks.serve.environment import engine_environment
from tasks.serve.flags import engine_command, says_nvfp4
from tasks.serve.ports import free_port
from tasks.serve.url import endpoint_at
from tasks.spec import ContainerStart, ProcessStart, ServeSpec, UrlStart


class EngineExitedError(TransientError):
    """The engine ended by itself while it should have served; nothing it measured counts."""


@contextmanager
def serve(
    checkpoint: Path, spec: ServeSpec, image: Image | None, log: Path, run: str
) -> Iterator[Endpoint]:
    """Serve `checkpoint` as `spec` says for the length of a `with` block.

    Args:
        checkpoint: folder of the checkpoint; the engine gets it read-only where it is a container.
        image: the serving image, for `spec.start.how: container` without an image of its own.
        log: where the engine's whole output goes; the pidfile lies beside it.
        run: names pidfile, container and label, so that leftovers can be told.

    Yields:
        The endpoint, started but not ready: see `wait_ready`. Whatever ends the block (an error,
        a cancellation, a signal turned into an exception), the engine is stopped.

    Raises:
        BadInputError: wrong interpreter, image, flags or environment, or no such checkpoint.
        EngineExitedError: the block went well, but the engine had ended before it did.
        TransientError: the engine could not be started.
    """
    if isinstance(spec.start, UrlStart):
        yield endpoint_at(spec, spec.start)
        return
    if not checkpoint.is_dir():
        raise BadInputError(
            "checkpoint-missing", f"{checkpoint} is no folder.", "Give a checkpoint's folder."
        )
    if isinstance(spec.start, ContainerStart):
        from tasks.serve.container import serve_container

        with serve_container(checkpoint.resolve(), spec, spec.start, image, log, run) as endpoint:
            yield from _watched(endpoint)
        return
    with _serve_process(checkpoint.resolve(), spec, spec.start, log.absolute(), run) as endpoint:
        yield from _watched(endpoint)


def _watched(endpoint: Endpoint) -> Iterator[Endpoint]:
    yield endpoint
    if not alive(endpoint):
        raise EngineExitedError(
            "engine-exited",
            f"The engine ended while it should have served:\n{_last_words(endpoint)}",
            "Read its log; the run may be started again.",
        )


@contextmanager
def _serve_process(
    checkpoint: Path, spec: ServeSpec, start: ProcessStart, log: Path, run: str
) -> Iterator[Endpoint]:
    python = process.interpreter(start.python)
    environment = engine_environment(os.environ, spec.env)
    port = free_port(spec.port)
    if start.command:
        command = process.fill(
            start.command, spec, python=python, checkpoint=str(checkpoint), port=port
        )
    else:
        version = _installed_version(python, spec.engine)
        command = engine_command(
            spec,
            python=python,
            checkpoint=str(checkpoint),
            port=port,
            version=version,
            nvfp4=says_nvfp4(checkpoint),
        )
    if spec.engine == "reference":
        environment = _with_this_package(environment)
    engine = process.start_process(command, environment, log, run)
    try:
        yield Endpoint(
            url=f"http://127.0.0.1:{port}",
            engine=spec.engine,
            model=spec.model_name,
            log=log,
            command=command,
            pidfile=engine.pidfile,
        )
    finally:
        engine.stop()


def alive(endpoint: Endpoint) -> bool:
    """Whether the engine that this program started still runs; True for one it did not start."""
    if endpoint.pidfile is not None:
        record = process.EngineRecord.read(endpoint.pidfile)
        return record is not None and record.alive()
    if endpoint.container is not None:
        from tasks.serve.containers import container_alive

        return container_alive(endpoint.container)
    return True


def wait_ready(
    endpoint: Endpoint,
    timeout: float,
    alive: Callable[[], bool] | None = None,
    path: str = "/health",
) -> float:
    """Wait until the engine answers `path` with 200; the seconds that took.

    Args:
        timeout: seconds, at most.
        alive: tells whether the engine still runs; unset: this module's own `alive`.

    Raises:
        EngineExitedError: it ended by itself; its last log lines are in the message.
        TransientError: it did not answer in time.
    """
    still = alive or (lambda: globals()["alive"](endpoint))
    began, last = time.monotonic(), "no answer"
    with httpx.Client(trust_env=False) as client:
        while (waited := time.monotonic() - began) < timeout:
            if not still():
                raise EngineExitedError(
                    "engine-exited",
                    f"The engine ended before it was ready:\n{_last_words(endpoint)}",
                    "Read its log.",
                )
            try:
                limit = min(30.0, max(1.0, timeout - waited))
                answer = client.get(endpoint.url + path, timeout=limit)
                if answer.status_code == httpx.codes.OK:
                    return time.monotonic() - began
                last = f"status {answer.status_code}"
            except httpx.HTTPError as error:
                last = type(error).__name__
            time.sleep(min(0.25, timeout))
    raise TransientError(
        "engine-not-ready",
        f"{endpoint.url} was not ready after {timeout:.0f} s ({last}):\n"
        f"{process.tail(endpoint.log)}",
        "Read its log, or raise serve.ready_timeout.",
    )


def _last_words(endpoint: Endpoint) -> str:
    """The log's last lines, once a container's have been copied out of Docker."""
    if endpoint.container is None:
        return process.tail(endpoint.log)
    from tasks.serve.containers import container_end

    time.sleep(0.5)
    return f"({container_end(endpoint.container)})\n{process.tail(endpoint.log)}"


def cleanup_leftovers(root: Path) -> list[str]:
    """Take down engines that dead runs left under `root` (its `releases` folder, if any).

    Returns:
        The runs whose engine was still up. Never touches an engine whose run is alive.
    """
    releases = root / "releases"
    ended = process.end_leftovers(releases if releases.is_dir() else root)
    from tasks.serve.containers import remove_leftovers

    return [*ended, *remove_leftovers(root)]


def stop_engines(folder: Path) -> list[str]:
    """Take down every engine of the run whose folder this is, whoever started it.

    For hooks that run in another process (`on_cancellation`, `on_crashed`). May be called at any
    time, and again. Returns the runs whose engine was still up.
    """
    ended = []
    for pidfile in process.pidfiles(folder, depth=2):
        record = process.EngineRecord.read(pidfile)
        if process.end_engine(pidfile) and record is not None:
            ended.append(record.run)
    from tasks.serve.containers import remove_containers_of

    return [*ended, *remove_containers_of(folder)]


def _installed_version(python: str, engine: str) -> str | None:
    """The engine's version in the environment of `python`; None when it is not installed there."""
    if engine == "reference":
        return metadata.version("quantgate") if _has("quantgate") else None
    question = f"from importlib.metadata import version; print(version({engine!r}))"
    try:
        answer = subprocess.run(
            [python, "-c", question], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BadInputError(
            "engine-not-installed",
            f"serve.start.python: {python} has no {engine}.",
            f"Install {engine} in that environment, or serve with a container.",
        ) from error
    return answer.stdout.strip()


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _with_this_package(environment: dict[str, str]) -> dict[str, str]:
    here = str(Path(tasks.__file__).parent.parent)
    path = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{here}{os.pathsep}{path}" if path else here}
