"""Tokenizer, chat template, generation and processor settings: readable, and the source's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.architectures import text_config
from tasks.checkpoint.survey import read_json
from tasks.gates.audit.result import Findings, Promise
from tasks.gates.audit.template import TEMPLATE, check_template

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
JSON_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
)
COMPARED = (*JSON_FILES, "merges.txt", "vocab.txt", "tokenizer.model")
REWRITTEN: Mapping[str, frozenset[str]] = {
    "tokenizer.json": frozenset({"truncation", "padding", "version"}),
    "tokenizer_config.json": frozenset(
        {
            "tokenizer_class",
            "transformers_version",
            "processor_class",
            "is_local",
            "backend",
            "chat_template",
            "extra_special_tokens",
            "auto_map",
            "local_files_only",
            "added_tokens_decoder",
        }
    ),
    "generation_config.json": frozenset(
        {"transformers_version", "_from_model_config", "do_sample", "use_cache"}
    ),
}
"""Keys that transformers writes anew each time; the chat template is compared by itself."""
MOST_TEXT = 2**24


def check_sidecars(root: Path, config: Mapping[str, Any], findings: Findings) -> None:
    """Every settings file can be parsed, and token ids agree and lie inside the vocabulary."""
    trees = {name: _tree(root, name, findings) for name in JSON_FILES if (root / name).exists()}
    template = _template(root, trees.get("tokenizer_config.json"))
    if template is not None:
        check_template(template, trees.get("tokenizer_config.json"), findings)
    _check_tokens(config, trees, findings)
    if trees.get("tokenizer_config.json") and not _has_vocabulary(root):
        findings.add("sidecar-missing", "tokenizer.json", "There are settings without it.")


def compare_sidecars(root: Path, source: Path, promise: Promise, findings: Findings) -> None:
    """Report what differs from the source's files, or is left out.

    An export without any tokenizer file is taken as one that never had them: they are served from
    elsewhere.
    """
    bare = not any((root / name).exists() for name in TOKENIZER)
    for name in COMPARED:
        if promise.allows(name) or not (source / name).is_file():
            continue
        if not (root / name).is_file():
            if not bare and not _moved(root, name):
                findings.add("sidecar-missing", name, "The source has it.")
            continue
        _compare_file(root / name, source / name, name, promise, findings)
    if bare or promise.allows(TEMPLATE):
        return
    before, after = (_template(folder, _quiet(folder)) for folder in (source, root))
    if (before or "").rstrip("\n") != (after or "").rstrip("\n"):
        findings.add("metadata-changed", TEMPLATE, "The chat template is not the source's.")


def _tree(root: Path, name: str, findings: Findings) -> dict[str, Any] | None:
    try:
        return read_json(root / name)
    except (OSError, ValueError) as error:
        findings.add("sidecar-unreadable", name, f"{' '.join(str(error).split())[:160]}.")
        return None


def _quiet(root: Path) -> dict[str, Any] | None:
    try:
        return read_json(root / "tokenizer_config.json")
    except (OSError, ValueError):
        return None


def _moved(root: Path, name: str) -> bool:
    """Whether a file's content may be in tokenizer.json or chat_template.jinja instead."""
    inside = {"vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"}
    if name == "chat_template.json":
        return (root / TEMPLATE).is_file()
    return name in inside and (root / "tokenizer.json").is_file()


def _has_vocabulary(root: Path) -> bool:
    names = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")
    return any((root / name).is_file() for name in names)


def _template(root: Path, tokenizer: Mapping[str, Any] | None) -> str | None:
    path = root / TEMPLATE
    if path.is_file() and path.stat().st_size <= MOST_TEXT:
        return path.read_text(encoding="utf-8", errors="replace")
    try:
        inner = read_json(root / "chat_template.json").get("chat_template")
    except (OSError, ValueError):
        inner = None
    held = inner or (tokenizer or {}).get("chat_template")
    return held if isinstance(held, str) or held is None else json.dumps(held, sort_keys=True)


def _check_tokens(
    config: Mapping[str, Any], trees: Mapping[str, dict[str, Any] | None], findings: Findings
) -> None:
    vocabulary = text_config(config).get("vocab_size")
    if type(vocabulary) is not int:
        return
    generation = trees.get("generation_config.json") or {}
    for origin, tree in (("config.json", config), ("generation_config.json", generation)):
        sections = (tree, text_config(tree)) if origin == "config.json" else (tree,)
        for section in sections:
            _check_ids(origin, section, vocabulary, findings)
    tokenizer = trees.get("tokenizer.json") or {}
    largest = _largest_id(tokenizer)
    if largest >= vocabulary:
        what = f"Its largest id is {largest}, config.json's vocab_size {vocabulary}."
        findings.add("token-ids", "tokenizer.json", what)
    _check_end(generation, tokenizer, trees, findings)


def _check_ids(
    origin: str, section: Mapping[str, Any], vocabulary: int, findings: Findings
) -> None:
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        for value in _ids(section.get(key)):
            if type(value) is not int or not 0 <= value < vocabulary:
                what = f"{key} is {value!r}; the vocabulary has {vocabulary} ids."
                findings.add("token-ids", f"{origin}:{key}", what)


def _check_end(
    generation: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    trees: Mapping[str, dict[str, Any] | None],
    findings: Findings,
) -> None:
    """The token that ends a turn for the tokenizer must end generation too."""
    end = (trees.get("tokenizer_config.json") or {}).get("eos_token")
    name = end.get("content") if isinstance(end, dict) else end
    added = tokenizer.get("added_tokens")
    known = {
        item.get("content"): item.get("id")
        for item in (added if isinstance(added, list) else ())
        if isinstance(item, dict) and isinstance(item.get("content"), str)
    }
    stops = _ids(generation.get("eos_token_id"))
    if isinstance(name, str) and name in known and stops and known[name] not in stops:
        what = f"Stops at {stops}; the tokenizer's eos_token {name} is {known[name]}."
        findings.add("token-ids", "generation_config.json:eos_token_id", what)


def _ids(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _largest_id(tokenizer: Mapping[str, Any]) -> int:
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids = [v for v in vocab.values() if type(v) is int] if isinstance(vocab, dict) else []
    added = tokenizer.get("added_tokens")
    if isinstance(added, list):
        ids += [a["id"] for a in added if isinstance(a, dict) and type(a.get("id")) is int]
    return max(ids, default=-1)


def _compare_file(
    path: Path, source: Path, name: str, promise: Promise, findings: Findings
) -> None:
    if path.read_bytes() == source.read_bytes():
        return
    if not name.endswith(".json"):
        findings.add("metadata-changed", name, "Its bytes are not the source's.")
        return
    try:
        before, after = read_json(source), read_json(path)
    except (OSError, ValueError):
        findings.add("metadata-changed", name, "Its bytes are not the source's.")
        return
    for key in sorted(set(before) | set(after)):
        if before.get(key) == after.get(key) or _is_writers(name, key, before, after):
            continue
        if not promise.allows(f"{name}:{key}"):
            findings.add("metadata-changed", f"{name}:{key}", "Differs from the source.")


def _is_writers(name: str, key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a difference comes from who wrote the file and not from what it says."""
    if key in REWRITTEN.get(name, ()):
        return True
    if key not in before:
        return after[key] is None or after[key] is False
    return key not in after and name == "tokenizer_config.json"
