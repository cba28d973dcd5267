"""Put the draft head back into a ModelOpt export: NVFP4 like the layer it mirrors, or BF16."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.architectures import Architecture, architecture_of
from tasks.artifacts import Checkpoint, DraftRecord
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.write import link_or_copy, write_index, write_json, write_shard
from tasks.errors import BadInputError
from tasks.progress import Progress, silent
from tasks.requant.excludes import corrected
from tasks.requant.head import DraftSource
from tasks.requant.heuristic import borrowed_scales
from tasks.requant.pack import Array
from tasks.requant.parallel import packed_groups
from tasks.requant.plan import HeadPlan, PlannedTensor, mirror
from tasks.requant.scales import HeadScales
from tasks.spec import CalibrationSpec, DraftSpec

SHARD = "model-mtp.safetensors"
REWRITTEN = {"config.json", "hf_quant_config.json"}


def requant(
    source: Path,
    quantized: Checkpoint | Path,
    spec: DraftSpec,
    calibration: CalibrationSpec | None,
    out: Path,
    progress: Progress = silent,
) -> DraftRecord:
    """Write the export `quantized` with the draft head of `source` into `out`.

    The export's shards are linked (or copied) unchanged; the head becomes one more shard; index
    and both quantization configs are made to fit.

    Args:
        source: folder of the BF16 (or block-128 FP8) model that has `mtp.*`.
        quantized: a ModelOpt NVFP4 export of it, without a draft head.
        spec: precision of the head, and where its scales come from.
        calibration: the text for `calibrated` scales; else not used.
        out: an empty folder, made when it is not there.
        progress: told how far it is.

    Returns:
        How the head was made.

    Raises:
        BadInputError: the source, the export or the two together do not fit; nothing is written.
    """
    folder = quantized if isinstance(quantized, Path) else quantized.path
    files = CheckpointFiles.open(source, as_source=True)
    export = CheckpointFiles.open(folder, as_source=True)
    architecture = _same_model(files, export)
    if spec.precision == "none":
        raise BadInputError("draft-none", "draft.precision: none.", "There is nothing to do.")
    _check_out(out)
    _check_export(export)
    head = DraftSource(files, architecture)
    plan = mirror(head, export, architecture)
    if spec.precision == "bf16":
        return _carry(head, plan, export, out, progress)
    scales = _scales(spec, calibration, head, plan, export, progress)
    out.mkdir(parents=True, exist_ok=True)
    planned = list(plan.tensors())
    size = write_shard(out / SHARD, planned, _quantized(head, plan, scales, progress))
    _write_index(export, out, planned, size)
    _carry_files(export, out)
    _write_configs(export, out, plan.kept, tuple(plan.analogues))
    return DraftRecord(
        precision="nvfp4",
        scales=spec.scales,
        layout=head.layout.name,
        borrowed_from=scales.borrowed_from,
        k_scale=None if scales.k is None else float(scales.k),
        v_scale=None if scales.v is None else float(scales.v),
        quantized_modules=len(plan.analogues),
        unseen_experts=scales.unseen_experts,
        rule=scales.rule,
        calibration=scales.calibration,
    )


def _same_model(files: CheckpointFiles, export: CheckpointFiles) -> Architecture:
    architecture = architecture_of(files.config, str(files.root / "config.json"))
    other = architecture_of(export.config, str(export.root / "config.json"))
    if architecture is not other:
        raise BadInputError(
            "source-mismatch",
            f"{files.root} is {architecture.name}, {export.root} is {other.name}.",
            "Give an export of this very source.",
        )
    return architecture


def _check_out(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInputError("out-not-empty", f"{out}: not an empty folder.", "Give a new folder.")


def _check_export(export: CheckpointFiles) -> None:
    algorithm = ((export.quant_config or {}).get("quantization") or {}).get("quant_algo")
    if algorithm != "NVFP4" or "quantization_config" not in export.config:
        raise BadInputError(
            "not-nvfp4",
            f"{export.root}: hf_quant_config.json: quant_algo is {algorithm}, not NVFP4.",
            "Give a ModelOpt NVFP4 export.",
        )
    present = [name for name in export.tensors if name.startswith("mtp.")]
    if present:
        raise BadInputError(
            "draft-present",
            f"{export.root}: has a draft head already ({present[0]}).",
            "Give the export as ModelOpt wrote it.",
        )


def _scales(
    spec: DraftSpec,
    calibration: CalibrationSpec | None,
    head: DraftSource,
    plan: HeadPlan,
    export: CheckpointFiles,
    progress: Progress,
) -> HeadScales:
    if spec.scales == "heuristic":
        return borrowed_scales(plan, export)
    if calibration is None:
        raise BadInputError(
            "calibration-missing",
            "draft.scales is `calibrated`, and no calibration text is given.",
            "Give a calibration file, or use heuristic scales.",
        )
    from tasks.requant.calibrated import measured_scales

    return measured_scales(head, plan, calibration, lambda f, w: progress(0.7 * f, w))


def _quantized(
    head: DraftSource, plan: HeadPlan, scales: HeadScales, progress: Progress
) -> Iterator[tuple[str, Array]]:
    """All tensors of the NVFP4 head; at most a few groups are in memory at once."""
    for name in plan.kept:
        yield f"{name}.weight", head.weight(name)
    for done, group in enumerate(packed_groups(head, plan.groups)):
        for name, packed in group:
            yield f"{name}.weight", packed.weight
            yield f"{name}.weight_scale", packed.weight_scale
            yield f"{name}.weight_scale_2", packed.weight_scale_2
            yield f"{name}.input_scale", np.array(scales.inputs[name], np.float32)
        progress(0.7 + 0.3 * (done + 1) / len(plan.groups), "packing the draft head")
    if scales.k is not None and scales.v is not None:
        yield f"{plan.draft_attention}.k_proj.k_scale", np.array(scales.k, np.float32)
        yield f"{plan.draft_attention}.v_proj.v_scale", np.array(scales.v, np.float32)


def _carry(
    head: DraftSource, plan: HeadPlan, export: CheckpointFiles, out: Path, progress: Progress
) -> DraftRecord:
    """The head in BF16, under the source's own names."""
    out.mkdir(parents=True, exist_ok=True)
    planned = list(head.raw_tensors())
    size = write_shard(out / SHARD, planned, head.raw())
    _write_index(export, out, planned, size)
    _carry_files(export, out)
    _write_configs(export, out, tuple(plan.modules), ())
    progress(1.0, "draft head carried through")
    return DraftRecord(precision="bf16", scales="none", layout=head.layout.name)


def _carry_files(export: CheckpointFiles, out: Path) -> None:
    for name in (*export.shards, *export.sidecars()):
        if name not in REWRITTEN:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(export.root / name, out / name)


def _write_index(
    export: CheckpointFiles, out: Path, planned: Iterable[PlannedTensor], size: int
) -> None:
    weight_map = {name: info.file for name, info in export.tensors.items()}
    weight_map |= {name: SHARD for name, _, _ in planned}
    total = sum(info.nbytes for info in export.tensors.values())
    write_index(out, weight_map, total + size)


def _write_configs(
    export: CheckpointFiles, out: Path, kept: tuple[str, ...], quantized: tuple[str, ...]
) -> None:
    quant: dict[str, Any] = dict(export.quant_config or {})
    inner = dict(quant["quantization"])
    inner["exclude_modules"] = corrected(inner.get("exclude_modules") or (), kept, quantized)
    write_json(out / "hf_quant_config.json", quant | {"quantization": inner})
    config = dict(export.config)
    section = dict(config["quantization_config"])
    section["ignore"] = corrected(section.get("ignore") or (), kept, quantized)
    write_json(out / "config.json", config | {"quantization_config": section})
