"""The patches as the command line calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.errors import BadInputError
from tasks.image.patches import runner


def patches(sglang: Path, check: bool = False) -> dict[str, Any]:
    """Apply the source patches to the SGLang under `sglang` (a site-packages folder).

    All or nothing: when one has drifted, nothing is written.

    Args:
        sglang: the folder that holds `sglang/` (and `nvidia_cutlass_dsl/`, `flashinfer/`).
        check: write nothing, say what would be done (`needed`).

    Returns:
        {"sglang_version", "patches": [{"name", "state", "reason", "sites"}]}, state one of applied,
        upstream, needed, drifted, not-applicable.

    Raises:
        BadInputError: no such folder, or no SGLang in it.
    """
    if not sglang.is_dir():
        raise BadInputError(
            "sglang-folder",
            f"--sglang: {sglang} is no folder.",
            "Give the site-packages folder that holds sglang/.",
        )
    try:
        report, _ = runner.apply([sglang], check)
    except runner.NoSGLangError as error:
        raise BadInputError(
            "sglang-missing",
            f"--sglang: {error}.",
            "Give the site-packages folder that holds sglang/.",
        ) from error
    return report


def has_drifted(report: dict[str, Any]) -> bool:
    """Whether any patch has drifted: the command line's exit code is 3 then."""
    return any(patch["state"] == "drifted" for patch in report["patches"])
