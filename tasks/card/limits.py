"""What a reader must not conclude, in plain words, from what was measured and what was not."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.card.escape import Safe, code, words
from tasks.card.evidence import Evidence
from tasks.card.material import CardMaterial
from tasks.card.metadata import LOCAL, dataset_of


def limits_of(material: CardMaterial, evidence: Evidence) -> list[Safe]:
    """The limits that follow from this release's own measurements, the weightiest first."""
    return [
        *_accuracy(material, evidence),
        *_engine(material, evidence),
        *_draft(material, evidence),
        *_vision(material),
        *_context(evidence),
    ]


def _accuracy(material: CardMaterial, evidence: Evidence) -> Iterator[Safe]:
    if not evidence.has("gates/gsm8k"):
        yield Safe("Accuracy was not measured.")
        return
    data, title = dataset_of(material.spec)
    name = words(title)
    asked = evidence.show("integer", "gates/gsm8k", "counts", "asked")
    yield Safe(
        f"Accuracy was measured on one task only ({name}, {asked} problems asked, one answer each)."
        " Other abilities, other languages and longer tasks may have suffered more or less."
    )
    if data == LOCAL:
        yield Safe(
            "These problems have the form of GSM8K and are the release's own: the figure is not a"
            " GSM8K score."
        )
    if stopped_early(evidence):
        shown = evidence.show("integer", "gates/gsm8k", "measured", "problems")
        yield Safe(
            f"Of {shown} problems the gate asked only as many as decided it: no answer to the rest"
            " could have changed the verdict. The lower bound counts the rest as wrong, the upper"
            " one as right."
        )
    if not evidence.has("gates/gsm8k", "measured", "baseline"):
        yield Safe(
            "The source was not measured under the same conditions, so the loss against it is not"
            " known from this release; figures of the source from elsewhere are not comparable."
        )


def stopped_early(evidence: Evidence) -> bool:
    """Whether the accuracy gate ended before it had asked all problems."""
    if not evidence.has("gates/gsm8k", "measured", "problems"):
        return False
    total = evidence.value("gates/gsm8k", "measured", "problems")
    return bool(evidence.value("gates/gsm8k", "counts", "asked") < total)


def _engine(material: CardMaterial, evidence: Evidence) -> Iterator[Safe]:
    if material.spec.serve.engine == "reference":
        yield Safe(
            "The reference engine unpacks the NVFP4 weights and rounds no activation. It shows what"
            " the weights and the KV scales do; the rounding of activations to four bits, as in a"
            " GPU's FP4 kernels, was not exercised, and its speed says nothing about a GPU."
        )
    yield Safe(
        "Every figure holds for the engine, its version and the hardware named beside it. Another"
        " engine, version or GPU may choose other kernels; run the gates again there."
    )


def _draft(material: CardMaterial, evidence: Evidence) -> Iterator[Safe]:
    draft = material.checkpoint.draft
    if draft is None or draft.precision != "nvfp4":
        return
    if draft.scales == "heuristic":
        source = (
            f", and its KV scales are borrowed from {code(draft.borrowed_from)}"
            if (draft.borrowed_from)
            else ""
        )
        yield Safe(
            f"The draft head's activation scales follow a rule and were not calibrated{source}."
            " That can cost accepted tokens, never right ones."
        )
    if draft.unseen_experts:
        count = len(draft.unseen_experts)
        yield Safe(
            f"No calibration token reached {words(str(count))} of the draft head's experts; their"
            " input scale is a fallback."
        )
    compared = evidence.trees.get("comparisons", {}).get("draft_heads", [])
    if not any(row.get("draft_head") == "bf16" for row in compared):
        yield Safe(
            "The quantized draft head was not compared with a BF16 one in this release, so the"
            " accept length shows that it works, not what its quantization costs."
        )


def _vision(material: CardMaterial) -> Iterator[Safe]:
    if material.source.architecture.endswith("ForConditionalGeneration"):
        yield Safe(
            "Calibration and gates were text only. The vision tower is stored as in the source;"
            " answers about images were not measured."
        )


def _context(evidence: Evidence) -> Iterator[Safe]:
    length = evidence.show("integer", "spec", "serve", "context_length")
    yield Safe(
        f"The engine served at most {length} tokens a request; longer contexts were not measured."
    )
