"""The build step of deployments/prefect.yaml: it fills in the releases by name, and the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tasks.spec import load_spec
from tasks.store import PROJECT

PROCESS_POOL = "quantgate"
FOLDERS = ("deployments/demo", "deployments/releases")


def recipes() -> dict[str, Path]:
    """Every shipped release spec by its name."""
    files = [file for folder in FOLDERS for file in sorted((PROJECT / folder).glob("*.yaml"))]
    return {load_spec(file).name: file for file in files}


def fill_in() -> dict[str, Any]:
    """What `{{ quantgate.NAME }}` stands for in deployments/prefect.yaml.

    Returns:
        `directory`: where the project lies for the worker (QUANTGATE_PROJECT, else here);
        `release`: name (`-` for `.`) -> spec, all defaults written out, as the form shows it.
    """
    return {
        "directory": os.environ.get("QUANTGATE_PROJECT") or str(PROJECT),
        "release": {
            name.replace(".", "-"): load_spec(file).model_dump(mode="json")
            for name, file in recipes().items()
        },
    }
