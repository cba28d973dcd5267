"""Pairing with a baseline on the same problems: exact McNemar and non-inferiority."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.artifacts import Interval, Reason, Verdict
from tasks.errors import BadInputError
from tasks.gates.accuracy import score
from tasks.gates.records import RECORDS, Line, answers, read_records
from tasks.gates.statistics import mcnemar_exact, paired_bounds
from tasks.gates.trust import outcome
from tasks.spec import Gsm8kGate

URLS = ("http://", "https://")


def check_baseline(baseline: str | None) -> None:
    """A baseline that is no URL must be there before anything is asked.

    Raises:
        BadInputError: no records there.
    """
    if baseline is None or baseline.startswith(URLS):
        return
    path = _records(baseline)
    if not path.is_file():
        raise BadInputError(
            "baseline-missing",
            f"gsm8k baseline: {path} does not exist.",
            "Give the folder of another GSM8K gate's records, or a server's URL.",
        )


def _records(baseline: str) -> Path:
    folder = Path(baseline)
    return folder / RECORDS if folder.is_dir() else folder


def baseline_record(
    gate: Gsm8kGate, prompts: Mapping[str, str], out: Path, measure: Callable[[str, Path], None]
) -> Line | None:
    """Whether the baseline answered each problem right, as a record; None without a baseline.

    Args:
        gate: its `baseline` is a folder with records, or the base URL of another server.
        prompts: id -> digest of the conversation that was sent.
        out: where a baseline that is measured now keeps its own records (`out/baseline`).
        measure: asks a URL the same problems, recording into a folder.

    Raises:
        BadInputError: no records there, or records of other problems.
    """
    if gate.baseline is None:
        return None
    path = _records(gate.baseline)
    if gate.baseline.startswith(URLS):
        measure(gate.baseline, out / "baseline")
        path = out / "baseline" / RECORDS
    landed = answers(read_records(path))
    common = {
        name: landed[name]
        for name, digest in prompts.items()
        if name in landed and landed[name]["prompt_sha256"] == digest
    }
    if len(common) < len(prompts):
        raise BadInputError(
            "baseline-mismatch",
            f"{path}: answers {len(common)} of these {len(prompts)} problems.",
            "Give the records of a whole GSM8K run on the same data with the same prompt.",
        )
    right = {name: known(line) for name, line in common.items()}
    return {"record": "baseline", "origin": gate.baseline, "right": right}


def known(line: Line) -> bool | None:
    """Right, wrong, or None where lost or cut off."""
    return score(line)[1] if outcome(line) == "ok" else None


def pair(
    gate: Gsm8kGate, used: Sequence[Line], baseline: Mapping[str, Any]
) -> tuple[dict[str, Any], Interval, Verdict, Reason]:
    """Compare answer by answer: (measured, interval, verdict, reason) of the non-inferiority test.

    PASS when the lower bound of the difference is at least -margin with every unknown answer
    counted against us, FAIL when the upper bound is under it with all counted for us.
    """
    right = baseline["right"]
    worst = [(known(line) is True, right[line["id"]] is not False) for line in used]
    best = [(known(line) is not False, right[line["id"]] is True) for line in used]
    low = paired_bounds(*_discordant(worst), len(worst), gate.confidence)[0]
    high = paired_bounds(*_discordant(best), len(best), gate.confidence)[1]
    plain = [(known(x), right[x["id"]]) for x in used]
    both_known = [
        (ours is True, theirs is True) for ours, theirs in plain if None not in (ours, theirs)
    ]
    ours, theirs = _discordant(both_known)
    measured = {
        "baseline": baseline["origin"],
        "pairs": len(both_known),
        "only_ours_right": ours,
        "only_baseline_right": theirs,
        "difference": (ours - theirs) / len(both_known) if both_known else None,
        "mcnemar_p": mcnemar_exact(ours, theirs),
        "margin": gate.margin,
    }
    interval = Interval(
        low=low, high=high, confidence=gate.confidence, method="paired-score-one-sided"
    )
    words = f"difference to the baseline between {low:+.4f} and {high:+.4f}, margin {gate.margin}"
    if low >= -gate.margin:
        return measured, interval, Verdict.PASS, Reason(code="non-inferior", detail=words)
    if high < -gate.margin:
        return measured, interval, Verdict.FAIL, Reason(code="inferior", detail=words)
    return measured, interval, Verdict.INVALID, Reason(code="undecided", detail=words)


def _discordant(pairs: Sequence[tuple[bool, bool]]) -> tuple[int, int]:
    return sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
