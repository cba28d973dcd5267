"""How answers are drawn: the gate's own values first, then the checkpoint's generation config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.errors import BadInputError
from tasks.serve.dialects import Sampling
from tasks.spec import Gsm8kGate

GENERATION_CONFIG = "generation_config.json"


def generation_defaults(checkpoint: Path | None) -> dict[str, Any]:
    """temperature, top_p, top_k, min_p of the checkpoint; empty where it says nothing.

    `do_sample: false` is temperature 0.

    Raises:
        BadInputError: the file is there but is no JSON object.
    """
    if checkpoint is None or not (checkpoint / GENERATION_CONFIG).is_file():
        return {}
    path = checkpoint / GENERATION_CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise BadInputError(
            "generation-config-unreadable", f"{path}: {error}.", "Correct or remove it."
        ) from error
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    names = ("temperature", "top_p", "top_k", "min_p")
    return {name: config[name] for name in names if config.get(name) is not None}


def draw(gate: Gsm8kGate, checkpoint: Path | None) -> Sampling:
    """The sampling of one GSM8K request; values that nobody names stay the server's own."""
    values = generation_defaults(checkpoint)
    for name in ("temperature", "top_p"):
        if getattr(gate, name) is not None:
            values[name] = getattr(gate, name)
    if values.get("temperature") == 0:
        values = {"temperature": 0.0}
    return Sampling(max_tokens=gate.max_tokens, seed=gate.seed, thinking=gate.thinking, **values)
