"""All that can be wrong with a source, found from names, headers and text, before any model loads.

Neither torch nor transformers is imported here: a second is enough, at any size.
"""

from __future__ import annotations

from pathlib import Path

from tasks.architectures import (
    Architecture,
    architecture_of,
    classify,
    draft_layout,
    expected_modules,
    last_full_attention,
)
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError
from tasks.quantize.calibration import check_file
from tasks.quantize.exclude import excluded_modules
from tasks.quantize.sizes import estimate_bytes, require_space
from tasks.spec import ReleaseSpec

BLOCK = 16
"""Values of one NVFP4 block: a quantized linear's inputs must be a multiple of it."""


def check_source(spec: ReleaseSpec, path: Path, out_parent: Path | None = None) -> None:
    """Check that the source at `path` can be released as `spec` says.

    Args:
        spec: the release.
        path: the source's folder.
        out_parent: where the output will lie; unset: its disk space is not looked at.

    Raises:
        BadInputError: one line that names the file, what is wrong and what to do.
    """
    files = CheckpointFiles.open(path, as_source=True)
    architecture = architecture_of(files.config, str(path / "config.json"))
    check_model(files, architecture)
    if spec.draft.precision != "none":
        last_full_attention(files.config)
        draft_layout(architecture, files.config, files.tensors.keys(), str(path))
    quantize = spec.quantize
    excluded_modules(architecture, files.config, quantize.qformat, quantize.exclude)
    if quantize.calibration.file is not None:
        check_file(quantize.calibration.file)
    if out_parent is not None:
        needed = estimate_bytes(files, architecture, quantize.qformat, spec.draft)
        require_space(out_parent, needed)


def check_model(files: CheckpointFiles, architecture: Architecture) -> None:
    """Check that the main model is whole, unquantized, and of sizes that NVFP4 can block.

    Raises:
        BadInputError: `source-quantized`, `source-incomplete`, `source-shape`.
    """
    origin = files.root
    if "quantization_config" in files.config or files.quant_config is not None:
        raise BadInputError(
            "source-quantized",
            f"{origin}/config.json: quantization_config: the source is quantized already.",
            "Give the BF16 model that it was made from.",
        )
    absent = [
        name
        for name, item in expected_modules(architecture, files.config, draft=False)
        if not _present(files, architecture, name, bare=item.bare)
    ]
    if absent:
        raise BadInputError(
            "source-incomplete",
            f"{origin}: {len(absent)} modules of the model have no tensor, e.g. {absent[0]}.",
            "Fetch the source again, or correct its config.json.",
        )
    for name, info in files.tensors.items():
        match = classify(architecture, name)
        fused = name.rpartition(".")[2] in architecture.fused_experts
        quantized = fused or (match is not None and not match.module_class.must_be_bf16)
        inverse = name.endswith(".weight_scale_inv")  # of a block-128 FP8 draft head
        if quantized and not inverse and info.shape and info.shape[-1] % BLOCK:
            raise BadInputError(
                "source-shape",
                f"{origin}: {name}: {info.shape[-1]} inputs are no multiple of {BLOCK}.",
                "NVFP4 needs whole blocks; this model cannot be quantized.",
            )


def _present(
    files: CheckpointFiles, architecture: Architecture, module: str, *, bare: bool
) -> bool:
    if (module if bare else f"{module}.weight") in files.tensors:
        return True
    match = classify(architecture, module)
    if match is None or match.expert is None:
        return False
    parent, leaf = module.rsplit(f".{match.expert}.", 1)
    fused = "down_proj" if leaf == "down_proj" else "gate_up_proj"
    return f"{parent}.{fused}" in files.tensors
