"""Is what the server sent to be trusted? Each doubt makes a measurement INVALID, whatever it shows.

The measures are stated, with their limits, at the constants; `doubts` applies them to the answers
of one run in the order in which they were asked.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tasks.artifacts import Reason
from tasks.gates.counters import contradictions

Line = dict[str, Any]

TOLERATED = 0.01
"""Share of answers that may show a per-answer oddity before it counts as the server's doing."""
ALIKE = 0.1
"""Share of answers that may repeat another where prompts have no one right answer."""
SAME_TEXT_CHARS = 24
"""Two prompts with one answer are odd only from this length on: short answers do coincide."""
OUTAGE = 3
"""Requests lost in a row that make an outage."""
PERIODIC = 4
"""Losses at equal distances (within 2 requests) that make a pattern."""

MARKUP = re.compile(r"<\|(?:im_start|im_end|endoftext|end|eot_id|start_header_id)\|>|</?think>")
"""Chat-template and reasoning markup that has no business in an answer."""


def outcome(line: Line) -> str:
    """`lost`, `cut_off` or `ok`: a finish other than stop or length is a lost request.

    An answer that used up its token limit was cut off, whatever finish the server names.
    """
    if line["status"] != "ok" or line.get("finish_reason") not in ("stop", "length"):
        return "lost"
    limit, tokens = line.get("max_tokens"), line.get("completion_tokens")
    used_up = limit is not None and tokens is not None and tokens >= limit
    return "cut_off" if used_up or line["finish_reason"] == "length" else "ok"


def doubts(
    answers: Sequence[Line], model: str | None, steps: int | None, max_tokens: int | None = None
) -> list[Reason]:
    """Everything that speaks against trusting these answers.

    Args:
        answers: records in the order of the prompts.
        model: the name that was asked for.
        steps: draft steps a verification, None when not known.
        max_tokens: limit that was asked for, None when prompts differ.
    """
    whole = [line for line in answers if line["status"] == "ok"]
    found = [
        *_other_model(whole, model),
        *_repeated_ids(whole),
        *_repeated_texts(whole),
        *_doubled(whole),
        *_markup(whole),
        *_reasoning(whole),
        *_tokens(whole, max_tokens),
        *_counters(whole, steps),
        *_stubs(whole),
        *_losses(answers),
    ]
    return [Reason(code=code, detail=detail) for code, detail in found]


def _other_model(whole: Sequence[Line], model: str | None) -> list[tuple[str, str]]:
    others = {line.get("model") for line in whole} - {model, None}
    if model is None or not others:
        return []
    return [("model-mismatch", f"asked {model}, answered by {', '.join(sorted(map(str, others)))}")]


def _repeated_ids(whole: Sequence[Line]) -> list[tuple[str, str]]:
    ids = Counter(line.get("response_id") for line in whole if line.get("response_id"))
    twice = [name for name, count in ids.items() if count > 1]
    if not twice or len(ids) == 1:  # one id for all: the server gives none that mean anything
        return []
    return [("duplicate-answers", f"{len(twice)} response ids came more than once ({twice[0]})")]


def _repeated_texts(whole: Sequence[Line]) -> list[tuple[str, str]]:
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in whole:
        text = line["text"].strip() + "\0" + line.get("reasoning", "").strip()
        if len(text) > SAME_TEXT_CHARS:
            groups[text].append(line)
    odd = 0
    if len(groups) == 1 and all("gold" not in line["meta"] for line in whole):
        return []  # one text for everything says nothing on counters; the smoke gate condemns it
    for lines in groups.values():
        prompts = {line["prompt_sha256"] for line in lines}
        golds = {line["meta"].get("gold") for line in lines}
        if len(prompts) > 1 and (len(golds) > 1 or golds == {None}):
            odd += len(lines) - 1
    judged = any("gold" in line["meta"] for line in whole)
    if odd <= max(2, (2 * TOLERATED if judged else ALIKE) * len(whole)):
        return []
    return [("duplicate-answers", f"{odd} answers repeat the answer to another prompt")]


def _doubled(whole: Sequence[Line]) -> list[tuple[str, str]]:
    odd = [line for line in whole if is_doubled(line["text"])]
    return _over(odd, whole, "doubled-answers", "answers are one text twice")


def is_doubled(text: str) -> bool:
    """Whether a text is the same text twice, with nothing or white space between."""
    text = text.strip()
    middle = len(text) // 2
    return len(text) >= 2 * SAME_TEXT_CHARS and text[:middle].strip() == text[-middle:].strip()


def _markup(whole: Sequence[Line]) -> list[tuple[str, str]]:
    odd = [line for line in whole if MARKUP.search(line["text"])]
    return _over(odd, whole, "markup-in-answers", "answers hold chat or reasoning markup")


def _reasoning(whole: Sequence[Line]) -> list[tuple[str, str]]:
    same = [
        line
        for line in whole
        if (line.get("reasoning") or "").strip()
        and line["text"].strip()
        and line["text"].strip() in line["reasoning"]
        and len(line["text"].strip()) > max(SAME_TEXT_CHARS, len(line["reasoning"]) // 2)
    ]
    hidden = [
        line
        for line in whole
        if (line.get("reasoning_tokens") or 0) > 0
        and not (line.get("reasoning") or "").strip()
        and line["text"].strip()
    ]
    thinking = [line for line in whole if (line.get("own_tokens") or {}).get("thinks")]
    aloud = [x for x in thinking if not (x.get("reasoning") or "").strip() and x["text"].strip()]
    found = [
        *_over(same, whole, "reasoning-as-answer", "answers are the reasoning once more"),
        *_over(hidden, whole, "reasoning-as-answer", "answers bill reasoning that is not apart"),
    ]
    if 2 * len(aloud) > len(thinking):
        detail = f"the template opens the reasoning; {len(aloud)} of {len(thinking)} answers have"
        found.append(("reasoning-as-answer", f"{detail} none apart (no reasoning parser?)"))
    return found


def _tokens(whole: Sequence[Line], max_tokens: int | None) -> list[tuple[str, str]]:
    odd = []
    for line in whole:
        tokens = line.get("completion_tokens")
        if tokens is None:
            continue
        size = len(line["text"].encode()) + len((line.get("reasoning") or "").encode())
        over = max_tokens is not None and tokens > max_tokens
        if tokens > size + 64 or over or (tokens < 1 <= size):
            odd.append(line)
    return _over(odd, whole, "token-mismatch", "answers have more tokens than text or limit allow")


def _counters(whole: Sequence[Line], steps: int | None) -> list[tuple[str, str]]:
    odd = [(line, words) for line in whole if (words := contradictions(line, steps))]
    if not odd:
        return []
    line, words = odd[0]
    detail = f"{len(odd)} of {len(whole)} answers; first {line['id']}: {'; '.join(words)}"
    return [("counters-contradict", detail)]


def _stubs(whole: Sequence[Line]) -> list[tuple[str, str]]:
    """Answers that stop in the middle of a word at one and the same length: cut without saying."""
    ended = [line for line in whole if line.get("finish_reason") == "stop" and line["text"]]
    lengths = [line.get("completion_tokens") or len(line["text"]) for line in ended]
    if len(lengths) < 20:
        return []
    longest = max(lengths)
    if longest < 16:
        return []
    at_most = [n for n, _ in zip(ended, lengths, strict=True) if _ == longest]
    unfinished = [line for line in at_most if not _looks_finished(line["text"])]
    if len(at_most) < 0.1 * len(ended) or 2 * len(unfinished) < len(at_most):
        return []
    detail = f"{len(at_most)} of {len(ended)} answers end at {longest} tokens, in mid-sentence"
    return [("cut-without-saying", detail)]


def _looks_finished(text: str) -> bool:
    end = text.rstrip()
    return end[-1:].isdigit() or end[-1:] in tuple(".!?:;)]}>`*\"'$%|")


def _losses(answers: Sequence[Line]) -> list[tuple[str, str]]:
    """Losses in a row as they landed, or at equal distances as they were sent or as they landed."""
    landed = sorted(answers, key=lambda line: (line["session"], line["at"] + line["latency"]))
    found = []
    run = longest = 0
    for line in landed:
        run = run + 1 if outcome(line) == "lost" else 0
        longest = max(longest, run)
    if longest >= OUTAGE:
        found.append(("outage", f"{longest} requests in a row were lost"))
    for order in (answers, landed):
        lost = [place for place, line in enumerate(order) if outcome(line) == "lost"]
        gaps = [b - a for a, b in pairwise(lost)]
        if len(lost) >= PERIODIC and max(gaps) - min(gaps) <= 2 and min(gaps) > 3:
            detail = f"every {gaps[0]}th request was lost ({len(lost)})"
            found.append(("periodic-losses", detail))
            break
    return found


def _over(
    odd: Sequence[Line], whole: Sequence[Line], code: str, words: str
) -> list[tuple[str, str]]:
    if len(odd) <= TOLERATED * len(whole):
        return []
    return [(code, f"{len(odd)} of {len(whole)} {words} (first: {odd[0]['id']})")]
