"""Tiny sources and their ModelOpt exports, each made once a test session."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.tiny import Layout, write_calibration, write_tiny_source


@cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="quantgate-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def source(layout: Layout = "fused", **how: Any) -> Path:
    """A tiny source; never change it, copy it."""
    return _source(layout, **how)


@cache
def _source(layout: Layout, **how: Any) -> Path:
    name = "-".join([layout, *(f"{key}={value}" for key, value in sorted(how.items()))])
    return write_tiny_source(_scratch() / "source" / name, layout, **how)


@cache
def calibration() -> Path:
    """16 rows, question and answer."""
    return write_calibration(_scratch() / "calibration.jsonl")


def exported(layout: Layout = "fused", qformat: str = "nvfp4", kv_cache: str = "fp8") -> Any:
    """The Checkpoint that quantize makes of `source(layout)`; never change it, copy it."""
    return _exported(layout, qformat, kv_cache)


@cache
def _exported(layout: Layout, qformat: str, kv_cache: str) -> Any:
    folder = _scratch() / "export" / f"{layout}-{qformat}-{kv_cache}"
    return quantize_into(folder, source(layout), qformat=qformat, kv_cache=kv_cache)


def quantize_into(folder: Path, origin: Path, **spec: Any) -> Any:
    """Quantize `origin` into the new folder `folder` with a short calibration."""
    from tasks.artifacts import Source
    from tasks.quantize.quantize import quantize
    from tasks.spec import CalibrationSpec, QuantizeSpec

    folder.mkdir(parents=True)
    text = CalibrationSpec(file=calibration(), rows=8, sequence_length=64, batch_size=4)
    recipe = QuantizeSpec(calibration=text, device="cpu", **spec)
    record = Source(
        path=origin,
        repo="someone/tiny",
        revision=None,
        digest="0" * 64,
        architecture="Qwen3_5MoeForConditionalGeneration",
    )
    return quantize(record, recipe, folder)
