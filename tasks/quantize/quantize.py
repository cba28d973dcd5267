"""Calibrate the source with ModelOpt and write its NVFP4 checkpoint."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from modelopt.torch.utils.distributed import fsdp2_wrap

from tasks.architectures import Architecture, architecture_of
from tasks.artifacts import CalibrationRecord, Checkpoint, QuantizationRecord, Source
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.manifest import take_manifest
from tasks.errors import BadInputError
from tasks.progress import Progress, silent
from tasks.quantize.calibration import Rows, batches, read_rows, tokenize
from tasks.quantize.exclude import excluded_modules
from tasks.quantize.export import carry_over, pin_config, strip_stale_experts, verify_export
from tasks.quantize.packages import device_name, versions
from tasks.quantize.preflight import check_model
from tasks.quantize.ranks import Ranks, joined
from tasks.spec import CalibrationSpec, QuantizeSpec

SHARD = "4GB"
SMALL = 256 * 2**20
"""Bytes of weights under which one thread computes fastest."""


class Order(NamedTuple):
    """What is to be quantized, how, and where to."""

    source: Source
    spec: QuantizeSpec
    out: Path


def quantize(
    source: Source, spec: QuantizeSpec, out: Path, progress: Progress = silent
) -> Checkpoint | None:
    """Quantize `source` as `spec` says into `out`, an existing empty folder.

    Started by torchrun, all its processes calibrate together.

    Args:
        source: the BF16 model.
        spec: recipe, KV cache, calibration text and device.
        out: takes the shards, hf_quant_config.json, config.json and the source's side files.
        progress: told how far it is.

    Returns:
        The checkpoint with what was really run; its draft head is still missing. None on all
        ranks but the first.

    Raises:
        BadInputError: no such device, calibration text or model; before any weight is loaded.
        QuantgateError: the export does not hold what the recipe promises.
    """
    with joined() as ranks:
        order = ranks.share(Order(source, spec, out))
        return quantize_together(ranks, order, progress if ranks.leads else silent)


def quantize_together(ranks: Ranks, order: Order, progress: Progress = silent) -> Checkpoint | None:
    """One process's share of `quantize`."""
    source, spec, out = order
    files = CheckpointFiles.open(source.path, as_source=True)
    architecture = architecture_of(files.config, str(source.path / "config.json"))
    check_model(files, architecture)
    excluded = excluded_modules(architecture, files.config, spec.qformat, spec.exclude)
    device = ranks.device(pick_device(spec.device))
    rows = read_rows(spec.calibration)
    progress(0.0, "loading the source")
    sharded = ranks.size > 1 and spec.launch.shard == "fsdp2"
    tokenizer, model = load_model(
        source.path, torch.device("cpu") if sharded else device, small(files)
    )
    with redirect_stdout(sys.stderr):
        if sharded:
            fsdp2_wrap(model)
        calibration = _calibrate(
            model, tokenizer, rows, spec, architecture, excluded, ranks, device, progress
        )
        progress(0.8, "exporting")
        if sharded or ranks.leads:
            _export(model, out)
        ranks.wait()
    del model
    if not ranks.leads:
        return None
    carry_over(files, out)
    pin_config(files.config, out)
    strip_stale_experts(out, architecture)
    verify_export(CheckpointFiles.open(out), architecture, spec.qformat, excluded)
    digest = take_manifest(out, lambda done, words: progress(0.9 + 0.1 * done, words)).digest
    return Checkpoint(
        path=out,
        digest=digest,
        quantization=QuantizationRecord(
            qformat=spec.qformat,
            kv_cache=spec.kv_cache,
            source_repo=source.repo,
            source_revision=source.revision,
            source_digest=source.digest,
            calibration=calibration,
        ),
    )


def pick_device(wanted: str) -> torch.device:
    """`auto`: the first CUDA device if there is one, else the CPU.

    Raises:
        BadInputError: `cuda` is wanted and there is none.
    """
    if wanted != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    if wanted == "cuda":
        raise BadInputError(
            "no-device",
            "quantize.device: no CUDA device is visible.",
            "Set it to `auto` or `cpu`, or run on a machine with a GPU.",
        )
    return torch.device("cpu")


def load_model(path: Path, device: torch.device, small: bool) -> tuple[Any, Any]:
    """The tokenizer and the BF16 model of the folder `path`, in eval mode on `device`.

    Several GPUs share a model that needs them. No code from the folder is run.

    Raises:
        BadInputError: weights that the model needs are missing or of another shape.
    """
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    if device.type == "cpu":
        torch.set_num_threads(1 if small else os.cpu_count() or 1)
    several = device == torch.device("cuda") and torch.cuda.device_count() > 1
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    model, info = AutoModelForImageTextToText.from_pretrained(
        path,
        dtype=torch.bfloat16,
        device_map="auto" if several else {"": device},
        experts_implementation="eager",
        trust_remote_code=False,
        output_loading_info=True,
    )
    wrong = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if wrong:
        raise BadInputError(
            "source-incomplete",
            f"{path}: {len(wrong)} weights are missing or misshapen, e.g. {wrong[0]}.",
            "Fetch the source again, or correct its config.json.",
        )
    model.eval()
    return tokenizer, model


def calibration_record(
    rows: Rows,
    spec: CalibrationSpec,
    ids: list[list[list[int]]],
    device: torch.device,
    started: datetime,
    processes: int = 1,
) -> CalibrationRecord:
    """What was run through the model, now that it was."""
    flat = [row for batch in ids for row in batch]
    return CalibrationRecord(
        dataset=rows.dataset,
        sha256=rows.sha256,
        rows=len(flat),
        tokens=sum(len(row) for row in flat),
        sequence_length=spec.sequence_length,
        batch_size=spec.batch_size,
        seed=spec.seed,
        device=device_name(device),
        processes=processes,
        started=started,
        ended=datetime.now(UTC),
        packages=versions(),
    )


def small(files: CheckpointFiles) -> bool:
    """Whether a model computes fastest on one thread."""
    return sum(info.nbytes for info in files.tensors.values()) < SMALL


def _calibrate(
    model: Any,
    tokenizer: Any,
    rows: Rows,
    spec: QuantizeSpec,
    architecture: Architecture,
    excluded: frozenset[str],
    ranks: Ranks,
    device: torch.device,
    progress: Progress,
) -> CalibrationRecord:
    import modelopt.torch.quantization as mtq

    from tasks.quantize.recipe import quant_config

    text = spec.calibration
    ids = batches(tokenize(rows.rows, tokenizer, text.sequence_length), text.batch_size)
    mine = ranks.part(ids)
    started = datetime.now(UTC)

    def run(calibrated: Any) -> None:
        with torch.no_grad():
            for number, batch in enumerate(mine):
                progress(0.2 + 0.6 * number / len(mine), f"calibrating, batch {number + 1}")
                calibrated(input_ids=torch.tensor(batch, device=device), use_cache=False)

    config = quant_config(architecture, spec.qformat, spec.kv_cache, excluded)
    torch.manual_seed(text.seed)
    mtq.quantize(model, config, run)
    return calibration_record(rows, text, ids, device, started, ranks.size)


def _export(model: Any, out: Path) -> None:
    from modelopt.torch.export import export_hf_checkpoint

    with torch.no_grad():
        export_hf_checkpoint(model, export_dir=out, max_shard_size=SHARD)
