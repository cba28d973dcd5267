"""Quantize with real ModelOpt: recipes, record, side files, determinism, and its own checks."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.architectures import ARCHITECTURES, architecture_of, expected_modules
from tasks.artifacts import Checkpoint
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError, QuantgateError
from tasks.quantize.export import is_stale, strip_stale_experts, verify_export
from tasks.quantize.packages import cpu_name
from tasks.quantize.quantize import load_model, pick_device
from tests import exports
from tests.tiny import write_tiny_source

MOE = ARCHITECTURES["Qwen3_5MoeForConditionalGeneration"]
CASES = [
    ("fused", "nvfp4", "fp8"),
    ("fused", "nvfp4_mlp_only", "fp8"),
    ("fused", "nvfp4_experts_only", "none"),
    ("dense", "nvfp4", "fp8"),
]
CARRIED = (
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[Checkpoint, Path, str, str]:
    layout, qformat, kv_cache = request.param
    return exports.exported(*request.param), exports.source(layout), qformat, kv_cache


def test_every_module_is_as_the_recipe_says(case: tuple[Checkpoint, Path, str, str]) -> None:
    made, _, qformat, kv_cache = case
    files = CheckpointFiles.open(made.path)
    architecture = architecture_of(files.config, "test")
    quantized = 0
    for name, item in expected_modules(architecture, files.config, draft=False):
        info = files.tensors[name if item.bare else f"{name}.weight"]
        assert info.dtype == ("U8" if qformat in item.quantized_in else "BF16"), name
        quantized += info.dtype == "U8"
        for leaf in ("weight_scale", "weight_scale_2", "input_scale"):
            assert (f"{name}.{leaf}" in files.tensors) == (info.dtype == "U8"), name
    assert quantized > 0
    kv = {name for name in files.tensors if name.endswith(("k_scale", "v_scale"))}
    attention = "model.language_model.layers.3.self_attn"
    wanted = {f"{attention}.k_proj.k_scale", f"{attention}.v_proj.v_scale"}
    assert kv == (wanted if kv_cache == "fp8" else set())
    for name in kv:
        assert 0 < float(files.array(name)) < 1
    quant = files.quant_config["quantization"]  # type: ignore[index]
    assert quant["quant_algo"] == "NVFP4"
    assert (quant["kv_cache_quant_algo"] == "FP8") == (kv_cache == "fp8")
    assert "kv_cache_scheme" in files.config["quantization_config"] or kv_cache == "none"


def test_side_files_are_the_source_s_own(case: tuple[Checkpoint, Path, str, str]) -> None:
    made, source, *_ = case
    for name in CARRIED:
        assert (made.path / name).read_bytes() == (source / name).read_bytes(), name


def test_config_is_the_source_s_with_bf16_pinned(case: tuple[Checkpoint, Path, str, str]) -> None:
    made, source, *_ = case
    config = json.loads((made.path / "config.json").read_text())
    original = json.loads((source / "config.json").read_text())
    assert config.pop("quantization_config")["quant_method"] == "modelopt"
    assert config.pop("dtype") == config["text_config"].pop("dtype") == "bfloat16"
    original.pop("dtype", None)
    original["text_config"].pop("dtype", None)
    assert config == original


def test_vision_and_other_bf16_weights_are_untouched(
    case: tuple[Checkpoint, Path, str, str],
) -> None:
    made, source, *_ = case
    export = CheckpointFiles.open(made.path)
    original = CheckpointFiles.open(source, as_source=True)
    kept = [name for name in original.tensors if name.startswith("model.visual.")]
    kept += ["lm_head.weight", "model.language_model.layers.0.linear_attn.A_log"]
    assert len(kept) > 10
    for name in kept:
        assert np.array_equal(
            export.array(name).view(np.uint16), original.array(name).view(np.uint16)
        ), name
    assert not any(name.startswith("mtp.") for name in export.tensors)


def test_record_says_what_was_run(case: tuple[Checkpoint, Path, str, str]) -> None:
    made, _, qformat, kv_cache = case
    record = made.quantization
    calibration = record.calibration
    assert calibration is not None
    assert (record.qformat, record.kv_cache, record.source_repo) == (
        qformat,
        kv_cache,
        "someone/tiny",
    )
    lines = exports.calibration().read_bytes().splitlines(keepends=True)
    drawn = sorted(random.Random(0).sample(range(len(lines)), 8))
    digest = hashlib.sha256(b"".join(lines[index] for index in drawn)).hexdigest()
    assert calibration.rows == 8 and calibration.sha256 == digest
    assert 8 * 20 < calibration.tokens <= 8 * 64
    assert calibration.dataset == "calibration.jsonl"
    assert calibration.started < calibration.ended and calibration.started.utcoffset() is not None
    assert {"nvidia-modelopt", "torch", "transformers"} <= set(calibration.packages)
    assert calibration.device == cpu_name() and calibration.processes == 1


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    one = exports.exported()
    again = exports.quantize_into(tmp_path / "again", exports.source())
    assert again.digest == one.digest


def test_excluded_modules_stay_bf16(tmp_path: Path) -> None:
    patterns = ("*layers.3.self_attn.*", "*layers.1.mlp.experts.*")
    made = exports.quantize_into(tmp_path / "out", exports.source(), exclude=patterns)
    files = CheckpointFiles.open(made.path)
    layers = "model.language_model.layers"
    assert files.tensors[f"{layers}.3.self_attn.o_proj.weight"].dtype == "BF16"
    assert files.tensors[f"{layers}.1.mlp.experts.5.up_proj.weight"].dtype == "BF16"
    assert files.tensors[f"{layers}.0.mlp.experts.5.up_proj.weight"].dtype == "U8"
    assert f"{layers}.3.self_attn.k_proj.k_scale" in files.tensors


def test_a_weight_that_the_model_needs_is_missed(tmp_path: Path) -> None:
    source = write_tiny_source(tmp_path / "source", shards=1)
    tensors = load_file(source / "model.safetensors")
    name = next(name for name in tensors if name.startswith("model.visual.blocks"))
    del tensors[name]
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInputError) as error:
        load_model(source, torch.device("cpu"), small=True)
    assert error.value.code == "source-incomplete" and name in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_no_gpu_is_one_line() -> None:
    assert pick_device("auto").type == "cpu"
    with pytest.raises(BadInputError) as error:
        pick_device("cuda")
    assert error.value.code == "no-device"


def _damaged(tmp_path: Path, change: dict[str, torch.Tensor | None]) -> Path:
    """A copy of the export with tensors added, replaced or (None) removed."""
    out = Path(shutil.copytree(exports.exported().path, tmp_path / "damaged"))
    tensors = load_file(out / "model.safetensors")
    for name, value in change.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_stale_fused_experts_are_stripped(tmp_path: Path) -> None:
    stem = "model.language_model.layers.0.mlp.experts"
    stale = {f"{stem}.gate_up_proj": torch.ones(8, 256, 256), f"{stem}.down_proj": torch.ones(8, 2)}
    out = _damaged(tmp_path, dict(stale))
    with pytest.raises(QuantgateError, match=r"experts\.(gate_up|down)_proj"):
        verify_export(CheckpointFiles.open(out), MOE, "nvfp4", ())
    assert set(strip_stale_experts(out, MOE)) == set(stale)
    verify_export(CheckpointFiles.open(out), MOE, "nvfp4", ())
    before = CheckpointFiles.open(exports.exported().path)
    after = CheckpointFiles.open(out)
    assert before.tensors.keys() == after.tensors.keys()
    assert all(before.array(n).tobytes() == after.array(n).tobytes() for n in before.tensors)
    assert strip_stale_experts(out, MOE) == ()
    assert not is_stale(MOE, f"{stem}.3.down_proj.weight")


@pytest.mark.parametrize("leaf", ["weight", "weight_scale", "weight_scale_2", "input_scale"])
def test_an_export_that_lacks_a_tensor_is_caught(tmp_path: Path, leaf: str) -> None:
    name = f"model.language_model.layers.2.mlp.experts.7.up_proj.{leaf}"
    out = _damaged(tmp_path, {name: None})
    with pytest.raises(QuantgateError) as error:
        verify_export(CheckpointFiles.open(out), MOE, "nvfp4", ())
    assert error.value.code == "export-wrong" and name in str(error.value)


def test_an_export_of_another_recipe_is_caught() -> None:
    files = CheckpointFiles.open(exports.exported().path)
    verify_export(files, MOE, "nvfp4", ())
    with pytest.raises(QuantgateError):
        verify_export(files, MOE, "nvfp4_experts_only", ())
    with pytest.raises(QuantgateError):
        verify_export(files, MOE, "nvfp4", {"model.language_model.layers.3.self_attn.o_proj"})
