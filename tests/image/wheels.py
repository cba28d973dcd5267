"""Real SGLang sources of several versions, fetched from the package registry once.

Only the few Python files that patches and their tests read are kept, under `.cache/wheels` of the
project (ignored by git); each wheel is deleted as soon as it is unpacked. What a version pins
(CUTLASS DSL, flashinfer) is read from its own metadata.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tasks.locks import locked

CACHE = Path(__file__).parents[2] / ".cache" / "wheels"
VERSIONS = ("0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.21", "0.5.23")
_KEPT = re.compile(
    r"sglang/_version\.py"
    r"|sglang/srt/(server_args\.py|arg_groups/.*\.py|layers/radix_attention\.py"
    r"|models/qwen3_5(_mtp)?\.py|layers/quantization/(kv_cache|modelopt_quant)\.py)"
    r"|.*/CuTeDSL/cutlass/cute/nvgpu/(tcgen05|warp)/mma\.py"
    r"|nvidia_cutlass_dsl/.*/cutlass/cute/nvgpu/(tcgen05|warp)/mma\.py"
    r"|[^/]+\.dist-info/METADATA"
)
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "any")


class UnreachableError(Exception):
    """The registry did not answer, or has no such wheel."""


def site_packages(version: str, into: Path) -> Path:
    """A folder that holds SGLang `version` and what it pins, as far as patches look at it."""
    shutil.copytree(fetched("sglang", version), into, dirs_exist_ok=True)
    wanted = _requirements(into, "sglang")
    for name in ("flashinfer-python", "nvidia-cutlass-dsl"):
        shutil.copytree(fetched(name, wanted[name]), into, dirs_exist_ok=True)
    dsl = wanted["nvidia-cutlass-dsl"]
    for name in _dsl_parts(into, dsl):
        shutil.copytree(fetched(name, dsl), into, dirs_exist_ok=True)
    return into


def _dsl_parts(into: Path, version: str) -> list[str]:
    """The DSL's packages with Python sources, in the order in which they are installed."""
    base = fetched("nvidia-cutlass-dsl-libs-base", version)
    if "nvidia-cutlass-dsl-libs-core" in _requirements(base, "nvidia_cutlass_dsl_libs_base"):
        return ["nvidia-cutlass-dsl-libs-core"]
    # SGLang asks for the extra `cu13`, whose package lays its own copy over that of the base.
    return ["nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"]


def fetched(name: str, version: str) -> Path:
    """The unpacked part of one wheel, from the cache or the registry."""
    folder = CACHE / f"{name}-{version}"
    with locked(CACHE / f".{name}-{version}.lock", "tests"):
        if not folder.is_dir():
            _fetch(name, version, folder)
    return folder


def _fetch(name: str, version: str, folder: Path) -> None:
    draft = CACHE / f".{name}-{version}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    (draft / "wheel").mkdir(parents=True)
    try:
        with zipfile.ZipFile(_download(name, version, draft / "wheel")) as wheel:
            for member in wheel.namelist():
                if _KEPT.fullmatch(member):
                    wheel.extract(member, draft / "tree")
        (draft / "tree").rename(folder)
    finally:
        shutil.rmtree(draft)


def _download(name: str, version: str, into: Path) -> Path:
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", *platforms, "-d", str(into), f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = sorted(into.glob("*.whl"))
    if done.returncode or not found:
        lines = done.stderr.strip().splitlines() or ["no wheel"]
        raise UnreachableError(f"{name}=={version}: {lines[-1]}")
    return found[0]


def _requirements(folder: Path, package: str) -> dict[str, str]:
    """Exact pins in a package's metadata: normalised name -> version."""
    (metadata,) = folder.glob(f"{package}-*.dist-info/METADATA")
    pins = re.findall(
        r"^Requires-Dist: ([\w.-]+)(?:\[[^\]]*\])? ?\(?==([\w.]+)",
        metadata.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}
