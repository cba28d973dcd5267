"""How the smoke gate judges its records: a condemning sign is FAIL, a lost request INVALID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.artifacts import Counts, GateReport, Reason, Verdict
from tasks.gates.answers import extract, grade
from tasks.gates.counters import counted, pool
from tasks.gates.degenerate import degenerate
from tasks.gates.loaded import Expected, compare, is_draft, not_measured
from tasks.gates.loadlog import LoadLog
from tasks.gates.records import Line, answers, last
from tasks.gates.reporting import blockers, common, speed
from tasks.gates.tokens import other_prompts, other_texts
from tasks.gates.totals import changed
from tasks.gates.trust import MARKUP, doubts, outcome
from tasks.spec import SmokeGate

DEGENERATE = 0.1
"""Share of degenerate answers over which it fails (one is always borne)."""
ALGORITHMS = ("EAGLE", "NEXTN")
"""How an engine reports NEXTN; SGLang says EAGLE."""


def judge(lines: Sequence[Line]) -> GateReport:
    """Judge the records of a run: any condemning sign is FAIL, any lost request INVALID."""
    inputs = lines[0]["inputs"]
    gate, landed = SmokeGate(**inputs["options"]), answers(lines)
    log_line = last(lines, "log") or {"log": None}
    log = LoadLog.from_dict(log_line["log"]) if log_line["log"] else None
    expects = Expected(**inputs["expected"]) if inputs["expected"] else None
    facts = (last(lines, "session") or {}).get("facts") or {}
    used = list(landed.values())
    failed = [*_log_faults(log), *(compare(expects, log, facts) if expects else [])]
    blocked = blockers(lines)
    if not blocked:
        failed += _speculation(inputs["speculation"], inputs["engine"], lines, used, log)
        failed += [*_known(gate, landed), *_text(used), *_stable(landed), *_turns(landed)]
        failed += [*other_prompts(used), *other_texts(used)]
    invalid = [*blocked, *_lost(used), *_other_log(log, facts), *changed(lines)]
    missing = not_measured(expects, log)
    if gate.require_log and [m for m in missing if "log" in m.detail]:
        invalid += missing
    session = last(lines, "session") or {}
    steps = _steps(inputs["speculation"])
    if not blocked and not failed:
        invalid += doubts(used, session.get("model"), steps, gate.max_tokens)
    verdict = Verdict.FAIL if failed else Verdict.INVALID if invalid else Verdict.PASS
    reasons = failed or invalid or missing
    if failed:
        reasons = [*failed, *invalid]
    known = [line for name, line in landed.items() if _is_known(name)]
    return GateReport(
        gate="smoke",
        verdict=verdict,
        reasons=tuple(reasons),
        measured=_measured(landed, log, expects),
        threshold={"min_known": gate.min_known, "require_log": gate.require_log},
        counts=Counts(
            asked=len(used),
            scored=sum(outcome(line) != "lost" for line in known),
            correct=sum(_right(line) for line in known),
            lost=sum(outcome(line) == "lost" for line in used),
            cut_off=sum(outcome(line) == "cut_off" for line in used),
        ),
        **common(lines, used),
    )


def _steps(speculation: Mapping[str, Any]) -> int | None:
    if speculation["algorithm"] == "none":
        return None
    return int(speculation["num_steps"])


def _is_known(name: str) -> bool:
    return name.startswith("known-") and not name.endswith(("-again", "-more"))


def _right(line: Line) -> bool:
    if line["status"] != "ok":
        return False
    found = extract(line["text"])
    return found.rule != "none" and grade(found.answer, line["meta"]["gold"])


def _log_faults(log: LoadLog | None) -> list[Reason]:
    if log is None:
        return []
    found = [Reason(code=f"log-{code}", detail=line) for code, line in log.condemned]
    return [*found, *(Reason(code="log-fatal", detail=line) for line in log.fatal)][:10]


def _other_log(log: LoadLog | None, facts: Mapping[str, Any]) -> list[Reason]:
    path, served = log.model_path if log else None, facts.get("model_path")
    if not path or not served or path == served:
        return []
    detail = f"the log is of a server of {path}; this one serves {served}"
    return [Reason(code="log-of-another-server", detail=detail)]


def _speculation(
    asked: Mapping[str, Any],
    engine: str,
    lines: Sequence[Line],
    used: Sequence[Line],
    log: LoadLog | None,
) -> list[Reason]:
    """Three independent signs: reported with the asked steps, loaded by the log, and counted."""
    if asked["algorithm"] == "none":
        return []
    facts = (last(lines, "session") or {}).get("facts") or {}
    found = []
    if engine != "vllm":
        if facts.get("algorithm") not in ALGORITHMS:
            found.append(f"the server reports algorithm {facts.get('algorithm')}, not EAGLE")
        for name in ("num_steps", "topk", "draft_tokens"):
            if facts.get(name) is not None and facts[name] != asked[name]:
                found.append(f"the server reports {name} {facts[name]}, asked {asked[name]}")
    if log is not None and log.loaded and not any(is_draft(item.type) for item in log.loaded):
        found.append("the log shows no `Load weight end` of a draft head")
    if engine == "vllm":
        totals = [x["totals"] for x in lines if x["record"] in ("session", "totals")]
        moved = totals and totals[-1] and totals[-1]["drafts"] > (totals[0] or {}).get("drafts", 0)
        if not moved:
            found.append("the server's totals count no drafts")
    elif not counted(used):
        found.append("no answer counts a verification (spec_verify_ct)")
    return [Reason(code="speculation-inactive", detail=words) for words in found]


def _known(gate: SmokeGate, landed: Mapping[str, Line]) -> list[Reason]:
    known = [x for n, x in landed.items() if _is_known(n) and outcome(x) != "lost"]
    if not known:
        return []
    found = []
    right = sum(_right(line) for line in known)
    if right < gate.min_known * len(known):
        detail = f"{right} of {len(known)} right, {gate.min_known:.0%} needed"
        found.append(Reason(code="known-answers", detail=detail))
    cut = sum(outcome(line) == "cut_off" for line in known)
    if 2 * cut > len(known):
        detail = f"{cut} of {len(known)} answers ran into the token limit: no stop token"
        found.append(Reason(code="never-stops", detail=detail))
    return found


def _text(used: Sequence[Line]) -> list[Reason]:
    whole = [line for line in used if line["status"] == "ok"]
    odd = [(line, kind) for line in whole if (kind := _condition(line))]
    found = []
    if len(odd) > max(1, DEGENERATE * len(whole)):
        kinds = ", ".join(sorted({kind for _, kind in odd}))
        detail = f"{len(odd)} of {len(whole)} answers ({kinds}); first: {odd[0][0]['text'][:60]!r}"
        found.append(Reason(code="degenerate", detail=detail))
    marked = [line for line in whole if MARKUP.search(line["text"])]
    if marked:
        mark = MARKUP.search(marked[0]["text"])
        detail = f"{len(marked)} answers hold {mark.group() if mark else ''} (first: "
        found.append(Reason(code="markup-in-answers", detail=f"{detail}{marked[0]['id']})"))
    texts = {line["text"].strip() for line in whole if line["meta"].get("gold")}
    golds = {line["meta"]["gold"] for line in whole if line["meta"].get("gold")}
    if len(texts) == 1 < len(golds):
        found.append(Reason(code="same-answer", detail="every question gets one and the same text"))
    return found


def _condition(line: Line) -> str | None:
    kind = degenerate(line["text"])
    if kind == "empty" and (line.get("reasoning") or "").strip():
        return degenerate(line["reasoning"]) if outcome(line) == "cut_off" else "empty"
    return kind


def _stable(landed: Mapping[str, Line]) -> list[Reason]:
    """Greedy text must repeat: at most one of the questions asked twice may differ."""
    pairs: dict[str, list[str]] = {}
    for line in landed.values():
        if line["status"] == "ok" and "twice" in line["meta"]:
            pairs.setdefault(line["meta"]["twice"], []).append(line["text"] + line["reasoning"])
    full = [texts for texts in pairs.values() if len(texts) == 2]
    differ = sum(first != second for first, second in full)
    if not full or differ <= (1 if len(full) > 1 else 0):
        return []
    detail = f"{differ} of {len(full)} greedy prompts got another text the second time"
    return [Reason(code="greedy-unstable", detail=detail)]


def _turns(landed: Mapping[str, Line]) -> list[Reason]:
    """System prompt and earlier turns must reach the model; long prompts must be read whole."""
    found = []
    base = next((line for name, line in landed.items() if _is_known(name)), {})
    for name, words in (("template-system", "system prompt"), ("template-turns", "earlier turn")):
        line = landed.get(name) or {}
        short, more = base.get("prompt_tokens"), line.get("prompt_tokens")
        if short is not None and more is not None and more <= short:
            detail = f"with {words} the prompt has {more} tokens, without {short}"
            found.append(Reason(code="chat-template", detail=detail))
    for name, line in landed.items():
        if not name.startswith("long-") or line["status"] != "ok":
            continue
        tokens, target = line.get("prompt_tokens"), line["meta"]["target_tokens"]
        if tokens is not None and tokens < target / 2:
            detail = f"{name}: about {target} tokens were sent, {tokens} read"
            found.append(Reason(code="long-prompt", detail=detail))
        kind = _condition(line)
        if kind:
            found.append(Reason(code="long-prompt", detail=f"{name}: the answer is {kind}"))
    return found


def _lost(used: Sequence[Line]) -> list[Reason]:
    lost = [line for line in used if outcome(line) == "lost"]
    found = []
    if lost:
        why = lost[0]["error"] or f"finish reason {lost[0].get('finish_reason')}"
        detail = f"{len(lost)} of {len(used)} (first {lost[0]['id']}: {why})"
        found.append(Reason(code="lost-requests", detail=detail))
    return found


def _measured(
    landed: Mapping[str, Line],
    log: LoadLog | None,
    expects: Expected | None,
) -> dict[str, Any]:
    known = [line for name, line in landed.items() if _is_known(name)]
    long_ones = [line for name, line in landed.items() if name.startswith("long-")]
    pooled = pool(landed.values(), 0)
    measured: dict[str, Any] = {
        "known_right": sum(_right(line) for line in known) / len(known) if known else None,
        "long_prompt_tokens": max((x.get("prompt_tokens") or 0 for x in long_ones), default=None),
        "long_right": f"{sum(map(_right, long_ones))} of {len(long_ones)}",
        "verifications": pooled.verifications,
        **speed(list(landed.values())),
    }
    if log is not None:
        measured |= {
            "loaded": [f"{x.type} quant={x.quant or 'none'}" for x in log.loaded],
            "kv_cache": list(log.kv_dtypes),
            "kv_scales": {f"{s.role}.{s.layer}": [s.k, s.v] for s in log.kv_scales},
        }
    if expects is not None and expects.scales and log is not None and log.kv_scales:
        measured["kv_scales_compared"] = len(expects.scales)
    return {name: value for name, value in measured.items() if value is not None}
