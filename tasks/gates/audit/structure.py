"""The folder itself: shards, index, configs that can be read, and nothing that does not belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.architectures import Architecture, architecture_of, layer_types, text_config
from tasks.checkpoint.survey import SINGLE, Survey, leads_out, walk_files
from tasks.errors import BadInputError
from tasks.gates.audit.excludes import ExcludeList, entries_of
from tasks.gates.audit.result import Findings

HIDES_TENSORS = {
    "config-missing",
    "config-unreadable",
    "index-unreadable",
    "shard-missing",
    "shard-name",
    "shard-truncated",
    "shard-trailing",
    "shard-unreadable",
}
FOREIGN = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt", ".pkl")
UNFINISHED = (".part", ".tmp", ".incomplete", ".lock", ".partial")
MOST_LAYERS, MOST_EXPERTS = 4096, 16384


def check_structure(found: Survey, findings: Findings) -> bool:
    """Report what the survey found and what does not belong; True when every shard was read."""
    for problem in found.problems:
        findings.add(problem.code, problem.where, problem.detail)
    _check_strays(found.root, findings)
    return not any(problem.code in HIDES_TENSORS for problem in found.problems)


def find_architecture(found: Survey, findings: Findings) -> Architecture | None:
    """The architecture that config.json names, when its sizes can be used."""
    if not found.config:
        return None
    try:
        architecture = architecture_of(found.config, "config.json")
    except BadInputError as error:
        findings.add("architecture-unsupported", "config.json", error.message)
        return None
    wrong = _wrong_sizes(found.config)
    if wrong:
        findings.add("config-invalid", "config.json", f"{wrong}.")
        return None
    if found.config.get("model_type") != architecture.model_type:
        findings.add(
            "architecture-unsupported",
            "config.json",
            f"model_type is {found.config.get('model_type')!r}; {architecture.name} goes with"
            f" {architecture.model_type!r}.",
        )
    activation = text_config(found.config).get("hidden_act")
    if activation not in (None, architecture.activation):
        what = f"hidden_act is {activation!r}; {architecture.name} has {architecture.activation!r}."
        findings.add("config-invalid", "config.json", what)
    return architecture


def exclude_lists(found: Survey, findings: Findings) -> dict[str, ExcludeList]:
    """The exclude lists of both configs, by file; reports configs that are missing or garbled."""
    lists: dict[str, ExcludeList] = {}
    quantization = (found.quant_config or {}).get("quantization")
    places: tuple[tuple[str, bool, Any, str], ...] = (
        ("hf_quant_config.json", found.quant_config is not None, quantization, "exclude_modules"),
        (
            "config.json",
            "quantization_config" in found.config,
            found.config.get("quantization_config"),
            "ignore",
        ),
    )
    broken = {problem.where for problem in found.problems}
    for file, present, section, key in places:
        if not present:
            if file not in broken:
                findings.add("quant-config-missing", file, "It has no quantization section.")
            continue
        entries = entries_of(section.get(key)) if isinstance(section, dict) else None
        if entries is None:
            what = (
                f"`{key}` is no list of module names."
                if isinstance(section, dict)
                else ("Its quantization section is no mapping.")
            )
            findings.add("quant-config-unreadable", file, what)
            continue
        lists[file] = ExcludeList(entries)
    return lists


def _wrong_sizes(config: dict[str, Any]) -> str | None:
    text = text_config(config)
    limits = {"num_hidden_layers": MOST_LAYERS, "num_experts": MOST_EXPERTS}
    for key, most in limits.items():
        value = text.get(key)
        if key == "num_experts" and value is None:
            continue
        if type(value) is not int or not 0 < value <= most:
            return f"`{key}` is {value!r}, not a number from 1 to {most}"
    drafts = text.get("mtp_num_hidden_layers")
    if drafts is not None and (type(drafts) is not int or not 0 <= drafts <= MOST_LAYERS):
        return f"`mtp_num_hidden_layers` is {drafts!r}"
    return _wrong_layer_types(config, text["num_hidden_layers"])


def _wrong_layer_types(config: dict[str, Any], layers: int) -> str | None:
    try:
        kinds = layer_types(config)
    except (TypeError, ValueError, ZeroDivisionError):
        return "`full_attention_interval` is no number"
    if len(kinds) != layers:
        return f"`layer_types` has {len(kinds)} entries for {layers} layers"
    strange = set(kinds) - {"full_attention", "linear_attention"}
    return f"`layer_types` names {min(strange)!r}" if strange else None


def _check_strays(root: Path, findings: Findings) -> None:
    for name in walk_files(root):
        path = root / name
        if path.is_symlink() and (path.is_dir() or not path.exists() or leads_out(root, path)):
            findings.add("stray-file", name, "A link that leads out of the folder, or nowhere.")
        elif name.endswith(UNFINISHED):
            findings.add("stray-file", name, "Left over from an unfinished write.")
        elif name.endswith(FOREIGN):
            findings.add("stray-file", name, "Weights of another format.")
        elif name.endswith(".safetensors") and "/" in name:
            findings.add("stray-file", name, "A safetensors file in a subfolder.")
        elif name.endswith(".safetensors.index.json") and name != f"{SINGLE}.index.json":
            findings.add("stray-file", name, "A second index.")
