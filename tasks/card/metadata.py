"""The card's metadata for the Hub, checked by the Hub client's own classes."""

from __future__ import annotations

from typing import Any

import yaml

from tasks.artifacts import GateReport
from tasks.card.escape import visible
from tasks.card.material import CardMaterial
from tasks.errors import BadInputError
from tasks.hub.fetch import front_matter
from tasks.spec import ReleaseSpec

LIBRARY = "Model Optimizer"
GSM8K = "openai/gsm8k"
LOCAL = "local"
"""Data set id of problems that are not on the Hub."""
BASE_TAGS = ("nvfp4", "fp4", "quantized", "modelopt")
SERVED_BY_OTHERS = ("sglang", "vllm")
"""Engines that people filter the Hub by; the reference engine is not one."""


def metadata_yaml(material: CardMaterial) -> str:
    """The front matter as YAML, without its `---` lines.

    Raises:
        BadInputError: the Hub's own classes refuse it.
    """
    return dump(validated(_metadata(material)))


def _metadata(material: CardMaterial) -> dict[str, Any]:
    source = material.source
    inherited = front_matter(source.path / "README.md")
    data: dict[str, Any] = {
        "license": source.license,
        "license_name": source.license_name,
        "license_link": source.license_link,
        "base_model": source.repo,
        "base_model_relation": "quantized" if source.repo else None,
        "library_name": LIBRARY,
        "pipeline_tag": _one(inherited.get("pipeline_tag")) or _pipeline(source.architecture),
        "language": inherited.get("language"),
        "tags": _tags(material),
        "model-index": _model_index(material),
    }
    return {key: _clean(value) for key, value in data.items() if value}


def _tags(material: CardMaterial) -> list[str]:
    draft = material.checkpoint.draft
    tags = list(BASE_TAGS)
    if material.spec.serve.engine in SERVED_BY_OTHERS:
        tags.append(material.spec.serve.engine)
    if material.checkpoint.quantization.kv_cache == "fp8":
        tags.append("fp8-kv-cache")
    if draft is not None and draft.precision != "none":
        tags += ["mtp", "speculative-decoding"]
    return list(dict.fromkeys([*tags, *material.spec.card.tags]))


def _pipeline(architecture: str) -> str:
    conditional = architecture.endswith("ForConditionalGeneration")
    return "image-text-to-text" if conditional else "text-generation"


def _one(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _model_index(material: CardMaterial) -> list[dict[str, Any]]:
    report = material.reports.get("gsm8k")
    accuracy = report.measured.get("accuracy") if report else None
    if report is None or accuracy is None:
        return []
    data_type, data_name = dataset_of(material.spec)
    result: dict[str, Any] = {
        "task": {"type": "text-generation", "name": "Text generation"},
        "dataset": {"type": data_type, "name": data_name},
        "metrics": [{"type": "accuracy", "name": "accuracy (%)", "value": 100 * accuracy}],
    }
    if data_type == GSM8K:
        result["dataset"] |= {"config": "main", "split": "test"}
    return [{"name": material.spec.publish.repo.partition("/")[2], "results": [result]}]


def dataset_of(spec: ReleaseSpec) -> tuple[str, str]:
    """(id, name) of the data that the GSM8K gate ran on."""
    data = spec.gates.gsm8k.data
    if data is None:
        return GSM8K, "GSM8K"
    return LOCAL, f"Math problems ({data.name})"


def eval_results(material: CardMaterial) -> dict[str, str]:
    """`.eval_results/` files by path: benchmarks that are data sets of the Hub, none else.

    Raises:
        BadInputError: the Hub's own class refuses an entry.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub._eval_results import parse_eval_result_entries

    report = material.reports.get("gsm8k")
    if (
        report is None
        or report.measured.get("accuracy") is None
        or dataset_of(material.spec)[0] != GSM8K
    ):
        return {}
    entry = EvalResultEntry(
        dataset_id=GSM8K,
        task_id="gsm8k",
        value=100 * report.measured["accuracy"],
        date=material.generated.date().isoformat(),
        notes=_notes(report),
    )
    data = eval_result_entries_to_yaml([entry])
    if parse_eval_result_entries(data) != [entry]:
        raise BadInputError(
            "card-metadata", "card: the eval result does not survive the Hub's reader.", ""
        )
    return {".eval_results/gsm8k.yaml": dump(data)}


def _notes(report: GateReport) -> str:
    engine = " ".join(
        str(report.engine[key]) for key in ("name", "version") if key in report.engine
    )
    return f"{report.counts.correct} of {report.counts.asked} right; zero-shot chat; {engine}"


def validated(data: dict[str, Any]) -> dict[str, Any]:
    """The metadata after a round trip through `huggingface_hub.ModelCardData`.

    Raises:
        BadInputError: that class refuses it, or loses a part of it.
    """
    from huggingface_hub import ModelCardData
    from huggingface_hub.repocard_data import model_index_to_eval_results

    try:
        card: Any = ModelCardData(**data)
        back: dict[str, Any] = card.to_dict()
        if "model-index" in back:
            model_index_to_eval_results(back["model-index"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInputError(
            "card-metadata", f"card: the Hub refuses its metadata: {error}.", "Correct the spec."
        ) from error
    lost = [key for key, value in data.items() if back.get(key) != value]
    if lost:
        raise BadInputError(
            "card-metadata", f"card: the Hub would change {', '.join(lost)}.", "Correct the spec."
        )
    return {key: back[key] for key in data}


def dump(data: Any) -> str:
    """YAML that is plain ASCII, so that no letter of it can be taken for a line end."""
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=1000))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(visible(value).split())
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    return value
