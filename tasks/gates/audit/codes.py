"""Every fault that the audit can find: a stable code, what is wrong, what it does when serving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of fault."""

    group: str
    wrong: str
    serving: str


_LOADS = "The engine stops while loading."
_DROPPED = "Engines drop it without a line in the log."
_GARBAGE = "The module computes garbage."
_LAYOUT = "The engine expects packed bytes where there are none, or the reverse."

CODES: Mapping[str, Kind] = {
    "config-missing": Kind("structure", "there is no config.json", "No engine can load it."),
    "config-unreadable": Kind("structure", "config.json is no JSON object", _LOADS),
    "config-invalid": Kind(
        "structure", "config.json lacks or garbles a value that the architecture needs", _LOADS
    ),
    "architecture-unsupported": Kind(
        "structure", "config.json names no architecture that is known here", _LOADS
    ),
    "quant-config-missing": Kind(
        "structure",
        "hf_quant_config.json or config.json's quantization_config is missing",
        "The weights are read as if they were not quantized.",
    ),
    "quant-config-unreadable": Kind(
        "structure", "a quantization config is not of the form that ModelOpt writes", _LOADS
    ),
    "index-unreadable": Kind("structure", "the index is no JSON with a weight_map", _LOADS),
    "index-missing": Kind(
        "structure",
        "weights in several files, or under another name than model.safetensors, with no index",
        "Only model.safetensors is found by most loaders.",
    ),
    "index-mismatch": Kind(
        "structure",
        "the index and the shards do not name the same tensors in the same files",
        "Tensors are not found, or are never read.",
    ),
    "total-size": Kind(
        "structure",
        "the index's total_size is not the sum of the tensors",
        "Loaders misplan memory.",
    ),
    "shard-name": Kind(
        "structure",
        "a shard's name leads out of the folder, or is no plain file name",
        "Other files than the published ones are read.",
    ),
    "shard-missing": Kind("structure", "a shard that the index names is not there", _LOADS),
    "shard-truncated": Kind("structure", "a shard ends before its tensors do", _LOADS),
    "shard-trailing": Kind(
        "structure", "a shard has bytes that no tensor owns", "The safetensors library refuses it."
    ),
    "shard-unreadable": Kind("structure", "a shard is no sound safetensors file", _LOADS),
    "tensor-twice": Kind(
        "structure", "a tensor is stored twice", "Which of the two is used is a matter of luck."
    ),
    "stray-file": Kind(
        "structure",
        "unfinished or foreign weight files, or links out of the folder",
        "It would be published, and some loaders would read it.",
    ),
    "unknown-tensor": Kind(
        "coverage", "a tensor name that the architecture does not have", _DROPPED
    ),
    "tensor-missing": Kind(
        "coverage", "a tensor that the model needs is not there", "It stays uninitialised."
    ),
    "shape-mismatch": Kind(
        "coverage", "a tensor's shape is not what config.json or its partner implies", _LOADS
    ),
    "dtype-mismatch": Kind(
        "coverage", "a tensor is stored in another dtype than is declared for it", _LAYOUT
    ),
    "coverage": Kind(
        "coverage",
        "the modules that are quantized are not those that the recipe promises",
        "Memory and speed are not those of the recipe, or fused modules do not load.",
    ),
    "bits-per-weight": Kind(
        "coverage",
        "bits per weight are out of the band that NVFP4 implies",
        "The checkpoint needs more memory than promised.",
    ),
    "scale-missing": Kind(
        "coverage", "a packed weight lacks one of its scales", "The engine's initial value is used."
    ),
    "scale-orphan": Kind("coverage", "scales stand beside a weight that is not packed", _LAYOUT),
    "stale-fused-expert": Kind(
        "coverage",
        "a tensor that holds all experts in one is left beside the per-expert ones",
        "Gigabytes of dead weight, or the wrong experts are loaded.",
    ),
    "must-be-bf16": Kind(
        "coverage",
        "a module that must stay BF16 is quantized",
        "Quality breaks, or it cannot load.",
    ),
    "exclude-mismatch": Kind(
        "coverage", "the exclude lists do not say what the tensors say", _LAYOUT
    ),
    "exclude-unmatched": Kind(
        "coverage", "an exclude entry matches no module", "What it was to protect is not protected."
    ),
    "draft-missing": Kind(
        "draft",
        "there is no draft head where one is declared",
        "Speculation runs on uninitialised weights.",
    ),
    "draft-partial": Kind(
        "draft", "a part of the draft head is missing", "Every draft is rejected: slower than none."
    ),
    "draft-mixed": Kind(
        "draft",
        "the draft head is not quantized like the layer that it mirrors, or not as promised",
        _LAYOUT,
    ),
    "kv-scale-missing": Kind(
        "draft",
        "an FP8 cache is declared and a K or V scale is not there",
        "It becomes 1.0 without a line in the log.",
    ),
    "kv-scale-unexpected": Kind(
        "draft", "K or V scales without an FP8 cache, or beside another module", _DROPPED
    ),
    "kv-scale-default": Kind(
        "values",
        "a K or V scale is exactly 1.0 where calibration is claimed",
        "The cache keeps K and V in a corner of FP8's range.",
    ),
    "scale-nonfinite": Kind("values", "NaN or infinity in a scale", "Everything becomes NaN."),
    "scale-zero": Kind("values", "a scale is zero", "The weights or activations vanish."),
    "scale-negative": Kind("values", "a scale is negative", _GARBAGE),
    "scale-outlier": Kind(
        "values",
        "a scale is orders of magnitude off its neighbours, or off what the norms allow",
        "Activations or weights saturate or vanish.",
    ),
    "scale-not-shared": Kind(
        "values",
        "modules that engines fuse have different scales",
        "The engine keeps one of them: the others are off by the ratio.",
    ),
    "scale-range": Kind(
        "values",
        "the largest block scale of a group that shares weight_scale_2 is not 448",
        "Block scales and weight_scale_2 do not belong together.",
    ),
    "codes-mismatch": Kind(
        "values",
        "packed codes that no packer gives for the block scale beside them",
        _GARBAGE,
    ),
    "scales-misaligned": Kind(
        "values",
        "block scales stand beside other blocks than their own",
        "Every block is too loud or too quiet; a small model still answers almost as well.",
    ),
    "signs-lost": Kind(
        "values", "all elements of a weight, or every second one, have one sign", _GARBAGE
    ),
    "zero-weights": Kind("values", "a whole weight is zero", "The module or expert is dead."),
    "duplicate-weights": Kind(
        "values", "two modules have the same bytes", "One of them computes the other's function."
    ),
    "weight-nonfinite": Kind(
        "values", "NaN or infinity in a BF16 tensor", "Everything becomes NaN."
    ),
    "source-mismatch": Kind(
        "values", "a tensor is not what the source gives", "The model is not the one on the card."
    ),
    "config-dtype": Kind(
        "metadata", "config.json's dtype is not bfloat16", "Activations run in another dtype."
    ),
    "quant-config-mismatch": Kind(
        "metadata",
        "hf_quant_config.json and config.json disagree",
        "Engines read one or the other, and load differently.",
    ),
    "quant-algo": Kind(
        "metadata",
        "the declared algorithm, group size or cache format is not what is stored",
        "The engine chooses wrong kernels.",
    ),
    "metadata-changed": Kind(
        "metadata",
        "config, tokenizer, template or generation settings differ from the source",
        "The model is prompted, cut off or stopped differently.",
    ),
    "sidecar-missing": Kind(
        "metadata", "a file of the source is not in the checkpoint", "Prompts cannot be built."
    ),
    "sidecar-unreadable": Kind(
        "metadata", "a tokenizer, template or settings file cannot be parsed", _LOADS
    ),
    "template-loses": Kind(
        "metadata",
        "the chat template loses what is said, or who says it",
        "The model reads another conversation than it is sent.",
    ),
    "token-ids": Kind(
        "metadata",
        "token ids disagree between configs and tokenizer, or exceed the vocabulary",
        "Answers never stop, or lookups are out of range.",
    ),
    "audit-stopped": Kind(
        "structure",
        "a part of the audit could not run on what the files hold",
        "Unknown: nothing is assumed to be right.",
    ),
}
