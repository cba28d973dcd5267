"""What the templates decide by, and the few texts that they do not hold themselves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote as urlquote

from tasks.card.comparisons import comparison_tables
from tasks.card.escape import Safe, block, code, command, quote, remarks, words
from tasks.card.evidence import Evidence
from tasks.card.figures import Gate, gates_of, rows_of
from tasks.card.limits import limits_of, stopped_early
from tasks.card.material import CardMaterial
from tasks.card.metadata import dataset_of
from tasks.card.plots import Plot
from tasks.card.trees import patches_of, portable

HUB = "https://huggingface.co"
PURPOSES = {
    "attention-quant": "lets attention and Gated-DeltaNet layers be quantized, as they are here",
    "kv-scales": "loads the FP8 KV scales of the main model; without it they are taken as one",
    "mtp-quant": "keeps the draft head quantized; without it the weights do not fit and it crashes",
    "mtp-kv-scales": "loads the FP8 KV scales of the draft head; without it they are taken as one",
    "fp4-archs": "admits consumer Blackwell chips to the FP4 matrix instructions",
    "log-kv-scales": "writes the KV scales that were really loaded into the log, for the gates",
}


def view_of(material: CardMaterial, evidence: Evidence, plots: list[Plot]) -> dict[str, Any]:
    """The names that the templates use; all text in it is `Safe`."""
    spec, draft = material.spec, material.checkpoint.draft
    gates = gates_of(evidence, {"gsm8k": dataset_of(spec)[1]})
    repo = spec.publish.repo
    return {
        "title": words(spec.card.title or repo.partition("/")[2]),
        "base": _base(material),
        "gates": gates,
        "where": {gate.name: where(evidence, gate) for gate in gates},
        "measured_on": measured_on(evidence, gates),
        "kv_words": _kv_words(material),
        "draft_words": _draft_words(material, evidence),
        "draft": draft.model_dump() if draft else {"precision": "none"},
        "unseen": _listed(draft.unseen_experts if draft else ()),
        "download": _download(repo) if spec.publish.to == "hub" else "",
        "command": command(portable(material)) if material.endpoint_command else "",
        "request": request(spec.serve.model_name, material.endpoint_command),
        "must_patch": any(p.state == "applied" for p in patches_of(material)),
        "patches": [
            {"index": str(i), "purpose": words(PURPOSES.get(p.name, "an edit of the engine"))}
            for i, p in enumerate(patches_of(material))
        ],
        "engine": spec.serve.engine,
        "samples": [
            {
                "prompt": quote(sample.prompt),
                "before": _answer(sample.before),
                "after": _answer(sample.after),
            }
            for sample in material.samples
        ],
        "module_rows": [
            str(i) for i in range(len(evidence.value("provenance", "weights", "modules")))
        ],
        "stopped_early": stopped_early(evidence),
        "limits": limits_of(material, evidence),
        "declared": [
            {"what": words(what.replace("_", " ").replace(".", ", ")), "reason": words(reason)}
            for what, reason in spec.card.not_measured.items()
        ],
        "notes": remarks(spec.card.notes) if spec.card.notes.strip() else "",
        "comparisons": comparison_tables(evidence),
        "plots": plots,
        "rows": lambda file, *path: rows_of(evidence, file, *path),
        "interval": lambda gate: interval(evidence, gate),
        "sampled": [gate for gate in gates if evidence.has(gate.file, "measured", "sampling")],
        "comma": _separator(", "),
        "gap": _separator(" "),
        "block": block,
    }


def _separator(text: str) -> Callable[[bool], Safe]:
    return lambda last: Safe("") if last else Safe(text)


def _base(material: CardMaterial) -> dict[str, Safe] | None:
    repo = material.source.repo
    return {"text": words(repo), "url": Safe(f"{HUB}/{urlquote(repo)}")} if repo else None


def _answer(text: str) -> Safe:
    return quote(text) if text.strip() else Safe("<i>(no text)</i>")


def _listed(names: tuple[str, ...], most: int = 8) -> Safe:
    if not names:
        return Safe("")
    shown = ", ".join(code(name) for name in names[:most])
    rest = ", and more (see provenance)" if len(names) > most else ""
    return Safe(shown + rest)


def where(evidence: Evidence, gate: Gate) -> Safe:
    """Engine and hardware of a gate, for the place beside its figures."""
    if gate.name == "audit":
        return Safe("files only, no engine")
    parts = [evidence.show("engine", gate.file, "engine", "name")]
    if evidence.has(gate.file, "engine", "version"):
        parts[0] = Safe(f"{parts[0]} {evidence.show('text', gate.file, 'engine', 'version')}")
    return Safe(", ".join([*parts, *hardware(evidence, gate.file)]))


def interval(evidence: Evidence, gate: Gate) -> Safe:
    """A gate's interval in words; one-sided bounds as the bound that counts."""
    if gate.value is None or not evidence.has(gate.file, "interval"):
        return Safe("")
    style, sure = gate.value.style, evidence.show("percent0", gate.file, "interval", "confidence")
    low = evidence.show(style, gate.file, "interval", "low")
    if "one-sided" in str(evidence.value(gate.file, "interval", "method")):
        return Safe(f"at least {low} with {sure} confidence")
    high = evidence.show(style, gate.file, "interval", "high")
    return Safe(f"{low} to {high} with {sure} confidence")


def hardware(evidence: Evidence, file: str) -> list[Safe]:
    """What a gate's engine ran on: its GPUs, else its device, else its processor."""
    gpus = (
        evidence.value(file, "hardware", "gpus") if evidence.has(file, "hardware", "gpus") else []
    )
    if isinstance(gpus, list) and gpus:
        first = evidence.show("text", file, "hardware", "gpus", "0")
        return [Safe(f"{len(gpus)} x {first}") if len(gpus) > 1 else first]
    for key in ("device", "cpu"):
        name = (
            str(evidence.value(file, "hardware", key))
            if evidence.has(file, "hardware", key)
            else ""
        )
        if name and name.lower() not in ("cpu", "cuda"):
            return [evidence.show("text", file, "hardware", key)]
    return [evidence.show("text", file, "hardware", "device")]


def measured_on(evidence: Evidence, gates: list[Gate]) -> Safe:
    """Each engine with its hardware, once."""
    served = [where(evidence, gate) for gate in gates if gate.name != "audit"]
    return Safe("; ".join(dict.fromkeys(served))) if served else Safe("files only, no engine")


def _kv_words(material: CardMaterial) -> Safe:
    if material.checkpoint.quantization.kv_cache == "fp8":
        return Safe("FP8 (E4M3), with scales calibrated for each attention layer of the main model")
    return Safe("BF16; no scales were calibrated")


def _draft_words(material: CardMaterial, evidence: Evidence) -> Safe:
    draft = material.checkpoint.draft
    if draft is None or draft.precision == "none":
        return Safe("left out; served without speculation")
    if draft.precision == "bf16":
        return Safe("BF16, carried over unchanged")
    steps = evidence.show("integer", "spec", "serve", "speculation", "num_steps")
    how = "calibrated scales" if draft.scales == "calibrated" else "scales by rule, not calibrated"
    return Safe(f"NVFP4 too ({how}), served with {steps} draft steps")


def _download(repo: str) -> str:
    name = shlex.quote(repo.partition("/")[2])
    return f"hf download {shlex.quote(repo)} --local-dir {name}"


def request(model: str, started: tuple[str, ...]) -> str:
    """A chat request to the engine as it was started, as a shell command."""
    port = next(
        (value for name, value in pairwise(started) if name == "--port" and value.isdigit()),
        "30000",
    )
    message = {"role": "user", "content": "Compute 12 * 7 and say only the number."}
    lines = (
        "{",
        f'    "model": {json.dumps(model)},',
        f'    "messages": [{json.dumps(message)}],',
        '    "max_tokens": 64',
        "  }",
    )
    return (
        f"curl http://127.0.0.1:{port}/v1/chat/completions \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(chr(10).join(lines))}"
    )
