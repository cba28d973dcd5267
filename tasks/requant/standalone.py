"""Requantize outside of a release: two folders in, one new folder out, all of it or nothing."""

from __future__ import annotations

import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from tasks.artifacts import DraftRecord
from tasks.errors import BadInputError
from tasks.progress import Progress, silent
from tasks.quantize.calibration import check_file
from tasks.requant.requant import requant
from tasks.spec import CalibrationSpec, DraftSpec

ROWS = 512


def shipped_text() -> Path:
    """The calibration text that comes with the program, for when none is given."""
    return Path(str(files("tasks.requant") / "calibration.jsonl"))


def requant_folder(
    source: Path,
    quantized: Path,
    out: Path,
    precision: str = "nvfp4",
    scales: str = "heuristic",
    calibration: Path | None = None,
    progress: Progress = silent,
) -> DraftRecord:
    """Write the export `quantized` with the draft head of `source` into the new folder `out`.

    Built beside `out` and renamed into place, so that nothing half-written is ever found there.

    Args:
        source: the BF16 (or block-128 FP8) source.
        quantized: its ModelOpt NVFP4 export.
        out: must not exist, or be empty.
        precision: `nvfp4` or `bf16`.
        scales: `heuristic` or `calibrated`.
        calibration: JSONL text for `calibrated`; unset: the text that comes with the program.
        progress: told how far it is.

    Raises:
        BadInputError: an unknown choice, or folders that do not fit.
    """
    try:
        spec = DraftSpec.model_validate({"precision": precision, "scales": scales})
    except ValidationError as error:
        first = error.errors()[0]
        option = first["loc"][0]
        raise BadInputError(
            "bad-option", f"--{option} {first['input']}: {first['msg']}.", "Give one of these."
        ) from error
    text = None
    if spec.precision == "nvfp4" and spec.scales == "calibrated":
        file = calibration or shipped_text()
        check_file(file)
        text = CalibrationSpec(file=file, rows=ROWS)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInputError("out-not-empty", f"{out}: not an empty folder.", "Give a new folder.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise BadInputError(
            "out-unwritable", f"{out}: {error.strerror}.", "Give a folder that can be written."
        ) from error
    try:
        beside.chmod(0o755)
        record = requant(source, quantized, spec, text, beside, progress)
        beside.replace(out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return record
