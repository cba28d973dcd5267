"""How the spec's parts and fields look in the Prefect form."""

from __future__ import annotations

from typing import Any

_SUFFIXES = ("Spec", "Gate", "Start", "Source")
_AS_WRITTEN = {
    "at": "Kind",
    "how": "Kind",
    "kv": "KV",
    "gsm8k": "GSM8K",
    "url": "URL",
    "gpus": "GPUs",
    "gib": "GiB",
    "shm": "Shared memory",
    "num": "Number of",
    "env": "Environment",
    "topk": "Top k",
}


def part_title(part: type[Any]) -> str:
    """`ContainerStart` -> `Container`: boxes and tabs of the form."""
    name = part.__name__
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return field_title(name.lower())


def field_title(name: str, info: Any = None) -> str:
    """`kv_cache` -> `KV cache`."""
    words = [_AS_WRITTEN.get(word, word) for word in name.split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def without_part_defaults(schema: dict[str, Any]) -> None:
    """Drop the defaults of whole parts: their fields have their own.

    When a union's tab is changed, the form falls back to such a default, and so to the old tab.
    """
    for field in schema.get("properties", {}).values():
        if isinstance(field.get("default"), dict):
            del field["default"]


def allow_other_keys(schema: dict[str, Any]) -> None:
    """Let the form send what another tab left behind; the model itself says what is wrong."""
    without_part_defaults(schema)
    schema.pop("additionalProperties", None)
