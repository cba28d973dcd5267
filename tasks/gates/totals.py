"""The server's lifetime totals: vLLM's only counters, and a second opinion on SGLang's."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.artifacts import Reason
from tasks.gates.counters import Pooled, counted
from tasks.gates.records import Line

DISAGREE = 0.05
"""Share by which totals and per-request counters may differ, beyond `SLACK` calls."""
SLACK = 40
"""Verification calls of probes and health checks that no record holds."""
FIXED = (
    "version",
    "models",
    "model_path",
    "architectures",
    "quantization",
    "draft_quantization",
    "algorithm",
    "num_steps",
    "topk",
    "draft_tokens",
)
"""What a server says of itself that only another server says otherwise."""


def waves(lines: Sequence[Line], steps: int) -> list[Pooled]:
    """vLLM: what each wave of requests added to the totals. `histogram` has steps + 1 bins."""
    found = []
    before: dict[str, float] | None = None
    for line in lines:
        if line["record"] not in ("session", "totals"):
            continue
        after = line["totals"]
        if line["record"] == "totals" and before and after and "accepted" in after:
            gained = {name: int(after[name] - before.get(name, 0)) for name in after}
            if gained["drafts"] > 0:
                found.append(_wave(gained, steps))
        before = after
    return found


def _wave(gained: dict[str, int], steps: int) -> Pooled:
    drafts = gained["drafts"]
    least = [drafts, *(gained.get(f"position_{i}", 0) for i in range(steps)), 0]
    bins = tuple(least[i] - least[i + 1] for i in range(steps + 1))
    return Pooled(requests=1, verifications=drafts, correct=gained["accepted"], histogram=bins)


def disagreement(lines: Sequence[Line], used: Sequence[Line]) -> list[Reason]:
    """SGLang: whether /metrics counted other verification calls than the requests say.

    Only where it exports the total, and in a run of one session without losses (what an earlier
    session left under way would be counted too). A total that stands still counts nothing, and says
    no more than a page without it.
    """
    sessions = [line for line in lines if line["record"] == "session"]
    after = [line["totals"] for line in lines if line["record"] == "totals"]
    if lines[0]["inputs"]["engine"] == "vllm" or len(sessions) != 1 or not after:
        return []
    first, final = sessions[0]["totals"], after[-1]
    if not first or not final or any(line["status"] != "ok" for line in used):
        return []
    gained = final["drafts"] - first["drafts"]
    said = sum(line["speculation"]["verify_ct"] for line in counted(used))
    if gained > 0 and abs(gained - said) > DISAGREE * max(gained, said) + SLACK:
        detail = f"/metrics counts {gained:.0f} verification calls, the requests {said}"
        return [Reason(code="totals-disagree", detail=detail)]
    return []


def changed(lines: Sequence[Line]) -> list[Reason]:
    """Whether the server became another while it was measured.

    What it says of itself does not change, and its totals never fall, unless it was started anew.
    """
    found: list[str] = []
    facts: Line = {}
    totals: Line = {}
    for line in lines:
        if line["record"] == "session":
            totals = {}
        for name, value in (line.get("facts") or {}).items():
            if name in FIXED and value:
                now = list(value) if isinstance(value, tuple) else value  # as records keep it
                before = facts.setdefault(name, now)
                if before != now:
                    found.append(f"{name} was {before}, then {now}")
        for name, value in (line.get("totals") or {}).items():
            if value < totals.get(name, 0):
                found.append(f"its total of {name} fell from {totals[name]:.0f} to {value:.0f}")
            totals[name] = value
    return [Reason(code="server-changed", detail="; ".join(found[:3]))] if found else []
