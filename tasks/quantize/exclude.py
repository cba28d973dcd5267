"""Which modules a recipe quantizes, and which of them a spec takes out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from tasks.architectures import Architecture, amax_group, classify, expected_modules
from tasks.errors import BadInputError
from tasks.spec import QFormat


def recipe_modules(
    architecture: Architecture, config: Mapping[str, Any], qformat: QFormat
) -> tuple[str, ...]:
    """Every module of the main model that `qformat` makes NVFP4."""
    return tuple(
        name
        for name, item in expected_modules(architecture, config, draft=False)
        if qformat in item.quantized_in
    )


def excluded_modules(
    architecture: Architecture,
    config: Mapping[str, Any],
    qformat: QFormat,
    patterns: Sequence[str],
) -> frozenset[str]:
    """The modules that a spec's `exclude` patterns take out of the recipe.

    Serving engines fuse q, k and v, gate and up, and all experts of a layer: such a group stays
    whole or goes whole.

    Raises:
        BadInputError: `exclude-unmatched`, a pattern that matches nothing; `exclude-splits`, one
            that takes a part of a group.
    """
    modules = recipe_modules(architecture, config, qformat)
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in modules if fnmatchcase(name, pattern)}
        if not matched:
            raise BadInputError(
                "exclude-unmatched",
                f"quantize.exclude: `{pattern}` matches no module that {qformat} quantizes.",
                f"Write it over names such as {modules[0] if modules else 'the model has'}.",
            )
        found |= matched
    for name in sorted(found):
        rest = [other for other in _together(architecture, name, modules) if other not in found]
        if rest:
            raise BadInputError(
                "exclude-splits",
                f"quantize.exclude: takes {name} but leaves {rest[0]}, and engines fuse them.",
                "Widen the pattern to take both.",
            )
    return frozenset(found)


def experts_prefix(architecture: Architecture, name: str) -> str | None:
    """`...layers.3.mlp.experts` for a routed expert's module, None for any other."""
    match = classify(architecture, name)
    if match is None or match.expert is None:
        return None
    return name.rsplit(f".{match.expert}.", 1)[0]


def _together(architecture: Architecture, name: str, modules: Sequence[str]) -> Sequence[str]:
    prefix = experts_prefix(architecture, name)
    if prefix is None:
        return amax_group(architecture, name)
    return [other for other in modules if other.startswith(f"{prefix}.")]
