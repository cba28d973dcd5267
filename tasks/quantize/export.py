"""Make ModelOpt's export a release's folder: the source's side files, a pinned config, checks."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.architectures import Architecture, classify, expected_modules
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.write import write_index, write_json, write_shard
from tasks.errors import QuantgateError
from tasks.spec import QFormat

NOT_CARRIED = {"README.md", ".gitattributes", "config.json", "hf_quant_config.json"}
NOT_CARRIED_SUFFIXES = (".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".msgpack", ".py")
DTYPE = "bfloat16"


def carried(files: CheckpointFiles) -> tuple[str, ...]:
    """The source's files that go along unchanged: tokenizer, template, processor, licence, ...

    Left behind: its card, its configs (rewritten), weights of other formats, code, hidden files.
    """
    return tuple(
        name
        for name in files.sidecars()
        if name not in NOT_CARRIED
        and not name.endswith(NOT_CARRIED_SUFFIXES)
        and not name.endswith(".index.json")
        and not any(part.startswith(".") for part in name.split("/"))
    )


def carry_over(source: CheckpointFiles, out: Path) -> tuple[str, ...]:
    """Copy the side files byte for byte; what the exporter wrote in their place goes."""
    names = carried(source)
    for name in names:
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(source.root / name, target)
    if "generation_config.json" not in names:
        (out / "generation_config.json").unlink(missing_ok=True)
    for shard in out.glob("*.safetensors"):
        shard.chmod(0o644)  # the exporter's temporary files are for their owner alone
    return names


def pin_config(source: dict[str, Any], out: Path) -> None:
    """Write the source's own config.json with the export's quantization_config and BF16 pinned.

    Engines read `dtype`, older ones `torch_dtype`: the first is always set, the second where the
    source has it; in the text config too.
    """
    exported = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config = dict(source)
    sections = [config]
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = dict(config["text_config"])
        sections.append(config["text_config"])
    for section in sections:
        section["dtype"] = DTYPE
        if "torch_dtype" in section:
            section["torch_dtype"] = DTYPE
    config["quantization_config"] = exported["quantization_config"]
    write_json(out / "config.json", config)


def strip_stale_experts(out: Path, architecture: Architecture) -> tuple[str, ...]:
    """Remove fused expert tensors that an exporter left beside the per-expert ones.

    Returns:
        Their names; the shards that held them, and the index, are written again without them.
    """
    files = CheckpointFiles.open(out)
    stale = tuple(name for name in files.tensors if is_stale(architecture, name))
    if not stale:
        return ()
    by_shard: dict[str, list[str]] = defaultdict(list)
    for name, info in files.tensors.items():
        if name not in stale:
            by_shard[info.file].append(name)
    for shard in {files.tensors[name].file for name in stale}:
        kept = by_shard[shard]
        if kept:
            plan = [(n, files.tensors[n].dtype, files.tensors[n].shape) for n in kept]
            write_shard(out / shard, plan, _arrays(files, kept))
        else:
            (out / shard).unlink()
    if len(files.shards) > 1:
        weight_map = {name: shard for shard, names in by_shard.items() for name in names}
        total = sum(files.tensors[name].nbytes for name in weight_map)
        write_index(out, weight_map, total)
    return stale


def is_stale(architecture: Architecture, name: str) -> bool:
    """Whether a tensor holds all experts of a layer in one, as no exported checkpoint should."""
    parent, _, leaf = name.rpartition(".")
    return leaf in architecture.fused_experts and parent.endswith(".experts")


def verify_export(
    files: CheckpointFiles,
    architecture: Architecture,
    qformat: QFormat,
    excluded: Collection[str],
) -> None:
    """Check from the headers that every module came out as the recipe promises.

    Raises:
        QuantgateError: `export-wrong`, naming the first module.
    """
    for name, item in expected_modules(architecture, files.config, draft=False):
        tensor = name if item.bare else f"{name}.weight"
        info = files.tensors.get(tensor)
        quantized = qformat in item.quantized_in and name not in excluded
        if info is None:
            raise _wrong(files, tensor, "is missing")
        if (info.dtype == "U8") != quantized:
            raise _wrong(files, tensor, f"is {info.dtype}, which {qformat} does not want")
        scales = (f"{name}.{leaf}" for leaf in ("weight_scale", "weight_scale_2", "input_scale"))
        absent = [scale for scale in scales if quantized and scale not in files.tensors]
        if absent:
            raise _wrong(files, absent[0], "is missing")
    for name in files.tensors:
        if classify(architecture, name) is None:
            raise _wrong(files, name, f"is no tensor of {architecture.name}")


def _wrong(files: CheckpointFiles, name: str, what: str) -> QuantgateError:
    return QuantgateError(
        "export-wrong",
        f"{files.root}: ModelOpt's export: {name} {what}.",
        "This is a fault of the installed ModelOpt or transformers: use the versions in"
        " pyproject.toml.",
    )


def _arrays(files: CheckpointFiles, names: list[str]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    return ((name, files.array(name)) for name in names)
