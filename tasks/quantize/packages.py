"""What a measurement was made with: package versions, and the device by its own name."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("nvidia-modelopt", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Package -> version, of those that decide a quantization's values, and Python's own."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def device_name(device: Any) -> str:
    """`NVIDIA H200`, or the CPU's model as the kernel names it."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return cpu_name()


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model name; its architecture where the kernel gives none."""
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
