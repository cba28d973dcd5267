"""What is quantized and what is not, counted from the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.gates.audit.coverage import bits_per_weight, classes_table
from tasks.gates.audit.draft import kv_summary
from tasks.gates.audit.model import Model
from tasks.gates.audit.source import SourceWeights


def summarize(
    model: Model,
    qformat: str | None,
    draft: str,
    values: Mapping[str, float],
    errors: Mapping[str, float],
    source: SourceWeights | None,
) -> dict[str, Any]:
    """The audit's figures, as the card prints them.

    Keys: architecture, qformat, kv_cache, draft, classes (a row a module class: class, part,
    modules, nvfp4, bf16, weights, bytes), modules, quantized_modules, weights, quantized_weights,
    bits_per_weight (all weights), bits_per_quantized_weight (scales included), bytes, shards,
    tensors, kv_scales; against a source also source_bytes, size_ratio, relative_error.
    """
    packed = list(model.packed())
    modules = [module for module in model.modules.values() if module.weight is not None]
    weights = sum(module.parameters for module in modules)
    stored = sum(info.nbytes for info in model.files.tensors.values())
    summary: dict[str, Any] = {
        "architecture": model.architecture.name,
        "qformat": qformat,
        "kv_cache": "fp8" if model.kv_cache() == "FP8" else "none",
        "draft": draft,
        "classes": classes_table(model),
        "modules": len(modules),
        "quantized_modules": len(packed),
        "weights": weights,
        "quantized_weights": sum(module.parameters for module in packed),
        "bits_per_weight": round(8 * stored / weights, 4) if weights else None,
        "bits_per_quantized_weight": _rounded(bits_per_weight(packed)),
        "bytes": stored,
        "shards": len(model.files.shards),
        "tensors": len(model.files.tensors),
        "kv_scales": kv_summary(model, dict(values)),
        "excluded": sorted({e for li in model.lists.values() for e in li.entries}),
    }
    if source is not None:
        summary |= {
            "source_bytes": source.nbytes(),
            "size_ratio": round(stored / max(1, source.nbytes()), 4),
            "source_draft_layout": source.draft_layout(model.architecture),
            "relative_error": _spread(errors),
        }
    return summary


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _spread(errors: Mapping[str, float]) -> dict[str, Any]:
    if not errors:
        return {}
    ordered = sorted(errors.values())
    worst = max(errors, key=lambda name: errors[name])
    return {
        "tensors": len(ordered),
        "median": round(ordered[len(ordered) // 2], 5),
        "largest": round(ordered[-1], 5),
        "largest_in": worst,
    }
