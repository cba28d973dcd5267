"""No good checkpoint is refused: every qformat, cache, draft head, layout and origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import Source, Verdict
from tasks.gates.audit import Promise, audit
from tasks.quantize.quantize import quantize
from tasks.requant.requant import requant
from tasks.spec import CalibrationSpec, DraftSpec, QuantizeSpec
from tests.faults.files import split
from tests.faults.inject import LAYER, Copy
from tests.tiny import write_calibration, write_tiny_source

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("good")


@pytest.fixture(scope="session")
def text(room: Path) -> CalibrationSpec:
    file = write_calibration(room / "text.jsonl", rows=8)
    return CalibrationSpec(file=file, rows=8, sequence_length=48, batch_size=8)


@pytest.fixture(scope="session")
def source(room: Path) -> Path:
    return write_tiny_source(room / "source")


@pytest.fixture(scope="session")
def export(room: Path, text: CalibrationSpec) -> Build:
    """Quantize a source once a recipe."""

    def build(source: Path, name: str, **recipe: Any) -> Path:
        out = room / f"{source.name}-{name}"
        if not out.exists():
            out.mkdir()
            record = Source(path=source, repo=None, revision=None, digest="-", architecture="-")
            quantize(record, QuantizeSpec(calibration=text, **recipe), out)
        return out

    return build


def with_draft(source: Path, quantized: Path, text: CalibrationSpec, **draft: Any) -> Path:
    out = quantized.with_name(f"{quantized.name}-{'-'.join(draft.values())}")
    if not out.exists():
        out.mkdir()
        requant(source, quantized, DraftSpec(**draft), text, out)
    return out


def assert_good(checkpoint: Path, source: Path, **promise: Any) -> dict[str, Any]:
    alone = audit(checkpoint)
    assert alone.faults == ()
    beside = audit(checkpoint, source, promise=Promise(**promise))
    assert beside.faults == ()
    assert beside.verdict is Verdict.PASS
    return beside.summary


@pytest.mark.parametrize(
    ("qformat", "kv_cache"),
    [
        ("nvfp4", "fp8"),
        ("nvfp4", "none"),
        ("nvfp4_mlp_only", "fp8"),
        ("nvfp4_experts_only", "fp8"),
    ],
)
def test_every_recipe(
    source: Path, export: Build, text: CalibrationSpec, qformat: str, kv_cache: str
) -> None:
    quantized = export(source, f"{qformat}-{kv_cache}", qformat=qformat, kv_cache=kv_cache)
    summary = assert_good(quantized, source, qformat=qformat, kv_cache=kv_cache, draft="none")
    assert (summary["qformat"], summary["draft"]) == (qformat, "none")
    for precision in ("nvfp4", "bf16"):
        made = with_draft(source, quantized, text, precision=precision)
        summary = assert_good(made, source, qformat=qformat, kv_cache=kv_cache, draft=precision)
        assert summary["draft"] == precision
        assert summary["kv_cache"] == kv_cache


def test_calibrated_scales(source: Path, export: Build, text: CalibrationSpec) -> None:
    quantized = export(source, "nvfp4-fp8", qformat="nvfp4", kv_cache="fp8")
    made = with_draft(source, quantized, text, precision="nvfp4", scales="calibrated")
    scales = assert_good(made, source)["kv_scales"]
    assert scales["draft_k_scale"] != scales["main_k_scale"]


def test_dense(room: Path, export: Build, text: CalibrationSpec) -> None:
    source = write_tiny_source(room / "dense", layout="dense", shards=1)
    quantized = export(source, "nvfp4", qformat="nvfp4")
    assert_good(quantized, source)
    assert_good(with_draft(source, quantized, text, precision="nvfp4"), source)


def test_per_expert_fp8_head_in_a_file_of_its_own(
    room: Path, export: Build, text: CalibrationSpec
) -> None:
    bare = write_tiny_source(room / "per-expert-bare", layout="per-expert", mtp="none")
    quantized = export(bare, "mlp", qformat="nvfp4_mlp_only")
    source = write_tiny_source(
        room / "per-expert", layout="per-expert", mtp="apart", mtp_dtype="fp8"
    )
    for precision in ("nvfp4", "bf16"):
        assert_good(with_draft(source, quantized, text, precision=precision), source)


def test_sharded(source: Path, export: Build, room: Path) -> None:
    quantized = export(source, "nvfp4-fp8", qformat="nvfp4", kv_cache="fp8")
    copy = Copy(quantized, room / "sharded")
    split(copy)
    assert_good(copy.root, source)


def test_modules_left_out_on_request(source: Path, export: Build) -> None:
    exclude = (f"{LAYER}.0.*",)
    quantized = export(source, "partly", qformat="nvfp4", exclude=exclude)
    assert_good(quantized, source, qformat="nvfp4", exclude=exclude)
    codes = {fault.code for fault in audit(quantized, promise=Promise(qformat="nvfp4")).faults}
    assert codes == {"coverage"}


def test_a_whole_class_left_out_needs_the_promise(source: Path, export: Build) -> None:
    exclude = ("*linear_attn*",)
    quantized = export(source, "no-deltanet", qformat="nvfp4", exclude=exclude)
    promised = audit(quantized, source, promise=Promise(qformat="nvfp4", exclude=exclude))
    assert promised.faults == ()
    assert {fault.code for fault in audit(quantized).faults} == {"coverage"}


def test_a_stock_export_without_a_draft_head(source: Path, room: Path) -> None:
    """ModelOpt's own calls and transformers' own tokenizer files, nothing of this project."""
    import copy

    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    model = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.bfloat16)
    ids = torch.arange(128).reshape(2, 64)
    mtq.quantize(model, copy.deepcopy(mtq.NVFP4_DEFAULT_CFG), lambda m: m(input_ids=ids))
    out = room / "stock"
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=out)
    assert_good(out, source, draft="none")
    AutoTokenizer.from_pretrained(source).save_pretrained(out)
    for name in ("preprocessor_config.json", "generation_config.json"):
        (out / name).write_bytes((source / name).read_bytes())
    assert_good(out, source)


def test_promises_are_held_against_the_files(
    source: Path, export: Build, text: CalibrationSpec
) -> None:
    quantized = export(source, "nvfp4-fp8", qformat="nvfp4", kv_cache="fp8")
    for promise, code in (
        (Promise(draft="nvfp4"), "draft-missing"),
        (Promise(kv_cache="none"), "quant-algo"),
        (Promise(qformat="nvfp4_experts_only"), "coverage"),
    ):
        assert code in {fault.code for fault in audit(quantized, promise=promise).faults}
    made = with_draft(source, quantized, text, precision="bf16")
    found = audit(made, promise=Promise(draft="nvfp4")).faults
    assert {fault.code for fault in found} == {"draft-mixed"}


def test_changes_that_were_announced(source: Path, export: Build, room: Path) -> None:
    quantized = export(source, "nvfp4-fp8", qformat="nvfp4", kv_cache="fp8")
    copy = Copy(quantized, room / "announced")
    copy.edit_json("config.json", lambda t: t["text_config"].update(max_position_embeddings=9999))
    copy.replace("generation_config.json", b'{"eos_token_id": [2, 0], "temperature": 0.7}')
    keys = ("config.json:text_config.max_position_embeddings", "generation_config.json")
    assert_good(copy.root, source, may_change=keys)
    found = {fault.tensor for fault in audit(copy.root, source).faults}
    assert keys[0] in found
    assert "generation_config.json:temperature" in found
