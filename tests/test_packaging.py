from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.store import PROJECT

CORE = """
import sys
import flows.cli, flows.release, flows.preflight, tasks.spec, tasks.store
print(sorted(set(sys.modules) & {"torch", "transformers", "modelopt"}))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("extra", "must_hold"),
    [
        ("quantize", {"nvidia-modelopt": "0.47", "transformers": "5.14"}),
        ("sglang", {"sglang": "0.5"}),
    ],
)
def test_an_extra_resolves(tmp_path: Path, extra: str, must_hold: dict[str, str]) -> None:
    """The two live in environments of their own: SGLang pins another transformers."""
    report = tmp_path / "report.json"
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run(
        [*pip, "--report", str(report), f"{PROJECT}[{extra}]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"]
        for item in json.loads(report.read_text())["install"]
    }
    for name, version in must_hold.items():
        assert found[name].startswith(version)


def test_the_core_imports_neither_torch_nor_transformers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CORE], capture_output=True, text=True, check=True, cwd=PROJECT
    )
    assert done.stdout.strip() == "[]"
