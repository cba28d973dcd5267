"""The url engine: one that already runs. It is never started and never stopped."""

from __future__ import annotations

from tasks.artifacts import Endpoint
from tasks.spec import ServeSpec, UrlStart


def endpoint_at(spec: ServeSpec, start: UrlStart) -> Endpoint:
    """The endpoint that the spec points to.

    The served model's name is the spec's only where the spec sets it; else the server is asked.
    """
    named = "model_name" in spec.model_fields_set
    return Endpoint(
        url=start.url.rstrip("/"),
        engine=spec.engine,
        model=spec.model_name if named else None,
        log=start.log,
    )
