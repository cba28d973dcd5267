"""config.json and hf_quant_config.json: of one mind, and the source's apart from quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.architectures import text_config
from tasks.checkpoint.survey import Survey
from tasks.gates.audit.excludes import ExcludeList
from tasks.gates.audit.result import Findings, Promise

OURS = {"quantization_config", "transformers_version", "torch_dtype", "dtype", "_name_or_path"}
"""Keys of config.json that a release sets itself, at any depth."""
ROPE = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "mrope_section"}
NOTHING: tuple[Any, ...] = (None, False, [], {}, "")
"""Values that a writer may leave out or put in."""


def check_quantization_config(
    found: Survey, lists: Mapping[str, ExcludeList], findings: Findings
) -> None:
    """Both quantization sections say the same, and what they say is what is stored."""
    theirs = (found.quant_config or {}).get("quantization")
    ours = found.config.get("quantization_config")
    for section, file in ((theirs, "hf_quant_config.json"), (ours, "config.json")):
        if isinstance(section, dict) and section.get("quant_algo") != "NVFP4":
            what = f"{file}: quant_algo is {section.get('quant_algo')!r}, not NVFP4."
            findings.add("quant-algo", file, what)
    if isinstance(theirs, dict):
        _check_theirs(theirs, findings)
    if isinstance(ours, dict):
        _check_ours(ours, findings)
    if isinstance(theirs, dict) and isinstance(ours, dict):
        _check_agreement(found, lists, theirs, ours, findings)


def _check_theirs(section: Mapping[str, Any], findings: Findings) -> None:
    file = "hf_quant_config.json"
    if section.get("group_size") != 16:
        what = f"group_size is {section.get('group_size')!r}; NVFP4's blocks have 16 elements."
        findings.add("quant-algo", file, what)
    if section.get("kv_cache_quant_algo") not in (None, "FP8"):
        what = f"kv_cache_quant_algo is {section.get('kv_cache_quant_algo')!r}, not FP8 or null."
        findings.add("quant-algo", file, what)


def _check_ours(section: Mapping[str, Any], findings: Findings) -> None:
    if section.get("quant_method") not in ("modelopt", "modelopt_fp4"):
        what = f"quant_method is {section.get('quant_method')!r}, not modelopt."
        findings.add("quant-algo", "config.json", what)
    for path, value in _walk(section.get("config_groups")):
        leaf = path.rpartition(".")[2]
        wanted = {"num_bits": 4, "group_size": 16, "type": "float"}.get(leaf)
        if wanted is not None and value != wanted:
            what = f"config_groups{path}: is {value!r}, NVFP4 has {wanted!r}."
            findings.add("quant-algo", "config.json", what)


def _check_agreement(
    found: Survey,
    lists: Mapping[str, ExcludeList],
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
    findings: Findings,
) -> None:
    def differ(what: str) -> None:
        findings.add("quant-config-mismatch", "config.json", what)

    if len(lists) == 2:
        one, other = (set(entries.entries) for entries in lists.values())
        for entry in sorted(one ^ other)[:20]:
            file = tuple(lists)[0 if entry in one else 1]
            what = f"`{entry}` is on the exclude list of {file} alone."
            findings.add("quant-config-mismatch", entry, what)
    if theirs.get("quant_algo") != ours.get("quant_algo"):
        differ(f"quant_algo: {theirs.get('quant_algo')!r} against {ours.get('quant_algo')!r}.")
    scheme = ours.get("kv_cache_scheme")
    fp8 = isinstance(scheme, dict) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    if fp8 != (theirs.get("kv_cache_quant_algo") == "FP8") or (scheme and not fp8):
        differ(f"KV cache: {theirs.get('kv_cache_quant_algo')!r} against {scheme!r}.")
    if "producer" in ours and ours["producer"] != (found.quant_config or {}).get("producer"):
        differ("They name different producers.")


def check_config(config: Mapping[str, Any], findings: Findings) -> None:
    """What config.json must say whatever the source: dtype bfloat16, at both levels."""
    if not config:
        return
    text = text_config(config)
    for section, where in ((config, ""), (text, "text_config.")):
        for key in ("dtype", "torch_dtype"):
            value = section.get(key)
            if value is not None and value != "bfloat16":
                what = f"{where}{key} is {value!r}, not bfloat16."
                findings.add("config-dtype", "config.json", what)
    if not any(s.get(k) for s in (config, text) for k in ("dtype", "torch_dtype")):
        findings.add("config-dtype", "config.json", "It names no dtype.")


def compare_config(
    config: Mapping[str, Any], source: Mapping[str, Any], promise: Promise, findings: Findings
) -> None:
    """Report every key of the source's config.json that has another value in the checkpoint's."""
    for key, before, after in _changes(source, config, ""):
        if promise.allows(f"config.json:{key}"):
            continue
        what = f"Is {_short(after)}, in the source {_short(before)}."
        findings.add("metadata-changed", f"config.json:{key}", what)


def _changes(
    source: Mapping[str, Any], config: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(set(source) | set(config)):
        if key in OURS or key in ROPE:
            continue
        before, after = source.get(key), config.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changes(before, after, f"{prefix}{key}.")
        elif before != after and not _equal_enough(key, before, after, source):
            yield prefix + key, before, after
    before, after = _rope(source), _rope(config)
    for key in sorted(set(before) | set(after)):
        if before.get(key) != after.get(key) and (key in before or key not in ROPE_DEFAULTS):
            yield f"{prefix}{key}", before.get(key), after.get(key)


ROPE_DEFAULTS = {"rope_type": "default", "type": "default"}
"""What a writer may add that the source left unsaid."""
DERIVED = {"layer_types", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}
"""Keys that a writer may add, worked out from others or without effect on serving."""


def _equal_enough(key: str, before: Any, after: Any, source: Mapping[str, Any]) -> bool:
    if before in NOTHING and after in NOTHING:
        return True
    return key not in source and key in DERIVED


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings, however they are spelt: newer configs gather them in one section."""
    flat: dict[str, Any] = {}
    for section in ("rope_scaling", "rope_parameters"):
        inner = config.get(section)
        if isinstance(inner, dict):
            flat |= inner
    for key in ("rope_theta", "partial_rotary_factor", "mrope_section"):
        if config.get(key) is not None and not isinstance(config[key], dict):
            flat.setdefault(key, config[key])
    if "type" in flat:
        flat.setdefault("rope_type", flat.pop("type"))
    return {key: value for key, value in flat.items() if value is not None}


def _walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _walk(value, f"{path}.{key}")
    else:
        yield path, tree


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
