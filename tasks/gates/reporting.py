"""What every served gate's report has in common, computed from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.artifacts import Reason
from tasks.gates.records import RECORDS, Line, last


def common(lines: Sequence[Line], answers: Sequence[Line]) -> dict[str, Any]:
    """`engine`, `hardware`, `records` and `seconds` of a report."""
    session = last(lines, "session") or {}
    facts = session.get("facts") or {}
    engine = {
        "name": lines[0]["inputs"]["engine"],
        "version": facts.get("version"),
        "model": session.get("model"),
        "algorithm": facts.get("algorithm"),
        "num_steps": facts.get("num_steps"),
        "topk": facts.get("topk"),
        "draft_tokens": facts.get("draft_tokens"),
        "max_model_len": facts.get("max_model_len"),
    }
    return {
        "engine": {name: value for name, value in engine.items() if value is not None},
        "hardware": session.get("hardware") or {},
        "records": RECORDS,
        "seconds": round(wall_seconds(answers), 3),
    }


def blockers(lines: Sequence[Line]) -> list[Reason]:
    """Why there is nothing to measure: server unreachable, hung, or another model than asked."""
    found = []
    session = last(lines, "session") or {}
    asked, served = lines[0]["inputs"]["model"], (session.get("facts") or {}).get("models") or ()
    if session.get("unreachable"):
        found.append(Reason(code="server-unreachable", detail=session["unreachable"]))
    elif asked and served and asked not in served:
        detail = f"asked for {asked}; the server serves {', '.join(served)}"
        found.append(Reason(code="model-mismatch", detail=detail))
    hung = last(lines, "hung")
    if hung is not None and hung["session"] == session.get("number"):
        found.append(Reason(code="server-hung", detail=hung["why"]))
    return found


def wall_seconds(answers: Sequence[Line]) -> float:
    """Seconds of measuring: in each session, from the first request sent to the last landed."""
    spans: dict[int, list[float]] = {}
    for line in answers:
        spans.setdefault(line["session"], []).extend([line["at"], line["at"] + line["latency"]])
    return sum(max(span) - min(span) for span in spans.values())


def speed(answers: Sequence[Line]) -> dict[str, Any]:
    """Requests and output tokens a second over the wall time, and latency quantiles in seconds."""
    whole = [line for line in answers if line["status"] == "ok"]
    seconds = wall_seconds(answers)
    if not whole or seconds <= 0:
        return {}
    tokens = sum(line.get("completion_tokens") or 0 for line in whole)
    quantiles = np.quantile([line["latency"] for line in whole], [0.5, 0.9, 0.99])
    names = ("p50", "p90", "p99")
    return {
        "requests_per_second": round(len(whole) / seconds, 3),
        "output_tokens_per_second": round(tokens / seconds, 2),
        "output_tokens": tokens,
        "latency_seconds": {n: round(float(q), 4) for n, q in zip(names, quantiles, strict=True)},
    }
