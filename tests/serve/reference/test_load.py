"""What is decoded from the files, what a load logs, and what it refuses."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import QuantgateError
from tasks.serve.reference import log
from tasks.serve.reference.weights import PlainTensors, kv_is_fp8
from tests.serve.reference.models import (
    DRAFT_K_SCALE,
    DRAFT_V_SCALE,
    K_SCALE,
    V_SCALE,
    answer,
    load_model,
    prompts,
    unpack,
    write_guessable,
    write_packed,
)
from tests.tiny import write_tiny_source

DRAFT = "mtp.layers.0."


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_guessable(tmp_path_factory.mktemp("load") / "source")


@pytest.fixture(scope="module")
def packed(source: Path) -> Path:
    return write_packed(source, source.parent / "packed")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    log.LOGGER.propagate = True
    caplog.set_level(logging.INFO, logger=log.LOGGER.name)
    return caplog


def changed(folder: Path, target: Path, change: dict[str, torch.Tensor | None]) -> Path:
    """A copy of `folder` with some tensors replaced, or left out (None)."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for name, value in change.items():
        assert name in tensors
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_packed_weights_are_decoded_nibble_by_nibble(packed: Path, source: Path) -> None:
    tensors = load_file(packed / "model.safetensors")
    plain = PlainTensors(CheckpointFiles.open(packed))
    for module in (
        "model.language_model.layers.0.linear_attn.out_proj",
        "model.language_model.layers.1.mlp.experts.3.down_proj",
        f"{DRAFT}self_attn.q_proj",
    ):
        assert tensors[f"{module}.weight"].dtype == torch.uint8
        expected = unpack(tensors, module, 9)
        assert torch.equal(plain[f"{module}.weight"][:9], expected)
        swapped = tensors[f"{module}.weight"]
        swapped = (swapped >> 4) | (swapped << 4)
        wrong = unpack(tensors | {f"{module}.weight": swapped}, module, 9)
        assert not torch.equal(wrong, expected)
    original = load_file(source / "model.safetensors")[f"{DRAFT}self_attn.q_proj.weight"].float()
    error = (plain[f"{DRAFT}self_attn.q_proj.weight"] - original).norm() / original.norm()
    assert 0.02 < error < 0.15


def test_scales_are_no_tensors_to_load_and_wrong_ones_are_refused(
    packed: Path, tmp_path: Path
) -> None:
    plain = PlainTensors(CheckpointFiles.open(packed))
    assert not [name for name in plain if name.endswith("scale") or name.endswith("scale_2")]
    name = f"{DRAFT}self_attn.q_proj.weight_scale"
    bad = changed(packed, tmp_path / "bad", {name: torch.ones(4, 4).to(torch.float8_e4m3fn)})
    with pytest.raises(QuantgateError, match=r"q_proj\.weight_scale.*\[4, 4\]"):
        PlainTensors(CheckpointFiles.open(bad))[f"{DRAFT}self_attn.q_proj.weight"]


def test_a_bf16_source_computes_what_transformers_computes(tmp_path: Path) -> None:
    source = write_tiny_source(tmp_path / "source")
    theirs = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.float32)
    ids = torch.tensor(prompts(1, longest=90)[0] * 2)[None]
    expected = theirs.model(input_ids=ids).last_hidden_state.double()
    loaded = load_model(source)
    got = loaded.main.prefill(ids, slice(0, 1), torch.tensor([ids.shape[1]]))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    logits = loaded.main.logits(got)
    torch.testing.assert_close(
        logits, theirs.lm_head(expected.float()).double(), rtol=1e-2, atol=1e-3
    )
    assert loaded.quantization is None
    assert loaded.kv_dtypes == ("float64", "float64")


def test_the_log_tells_classes_precision_and_scales(
    packed: Path, lines: pytest.LogCaptureFixture
) -> None:
    loaded = load_model(packed)
    text = lines.text
    k, v = f"{torch.tensor(K_SCALE).item():.9g}", f"{torch.tensor(V_SCALE).item():.9g}"
    assert f"quantgate kv-scales: role=main layer=1 k_scale={k} v_scale={v}" in text
    k, v = f"{torch.tensor(DRAFT_K_SCALE).item():.9g}", f"{torch.tensor(DRAFT_V_SCALE).item():.9g}"
    assert f"quantgate kv-scales: role=draft layer=0 k_scale={k} v_scale={v}" in text
    ends = [line for line in text.splitlines() if "Load weight end." in line]
    assert "type=Qwen3_5MoeForConditionalGeneration, quant=modelopt_fp4" in ends[0]
    assert "type=Qwen3_5ForCausalLMMTP, quant=modelopt_fp4" in ends[1]
    assert text.count("KV Cache is allocated. dtype: torch.float8_e4m3fn") == 2
    assert loaded.quantization == loaded.draft_quantization == "modelopt_fp4"


def test_a_bf16_draft_head_is_used_as_bf16(
    packed: Path, source: Path, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(packed, tmp_path / "mixed")
    tensors = load_file(packed / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if not name.startswith("mtp.")}
    originals = load_file(source / "model.safetensors")
    tensors |= {name: value for name, value in originals.items() if name.startswith("mtp.")}
    save_file(tensors, tmp_path / "mixed" / "model.safetensors", metadata={"format": "pt"})
    loaded = load_model(tmp_path / "mixed")
    assert loaded.kv_dtypes == ("float8_e4m3fn", "float64")
    assert loaded.draft_quantization is None
    ends = [line for line in lines.text.splitlines() if "Load weight end." in line]
    assert "quant=" in ends[0]
    assert "quant=" not in ends[1]
    head = loaded.draft.head.layer.mtp_block.self_attn.q_proj.weight  # type: ignore[union-attr]
    assert torch.equal(head, originals[f"{DRAFT}self_attn.q_proj.weight"].double())


def test_missing_scales_read_as_one_and_can_be_ignored(
    source: Path, packed: Path, tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    load_model(write_packed(source, tmp_path / "bare", kv_scales=False))
    assert "role=main layer=1 k_scale=1 v_scale=1" in lines.text
    lines.clear()
    load_model(packed, draft_kv_scales="ignore")
    assert "role=draft layer=0 k_scale=1 v_scale=1" in lines.text
    assert "role=main layer=1 k_scale=1 " not in lines.text


def test_kv_scales_change_the_answers(packed: Path, tmp_path: Path) -> None:
    name = "model.language_model.layers.1.self_attn.v_proj.v_scale"
    far = changed(packed, tmp_path / "far", {name: torch.tensor(1e-4)})
    questions = prompts(8)
    good, bad = (answer(load_model(folder), questions, 12) for folder in (packed, far))
    assert [one.output for one in good] != [one.output for one in bad]


def test_without_speculation_no_draft_head_is_needed(packed: Path, tmp_path: Path) -> None:
    tensors = load_file(packed / "model.safetensors")
    gone = {name: None for name in tensors if name.startswith("mtp.")}
    bare = changed(packed, tmp_path / "bare", dict(gone))
    loaded = load_model(bare, num_steps=0)
    assert loaded.draft is None
    assert all(len(one.output) == 4 for one in answer(loaded, prompts(2), 4))
    with pytest.raises(QuantgateError, match="mtp"):
        load_model(bare)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lm_head.weight", None, r"`lm_head\.weight` is missing"),
        ("model.language_model.layers.0.linear_attn.A_log", None, "A_log` is missing"),
        ("model.language_model.layers.1.mlp.experts.2.up_proj.weight", None, r"2\.up_proj"),
        ("model.language_model.layers.1.self_attn.o_proj.weight_scale_2", None, "weight_scale_2"),
        ("model.language_model.norm.weight", torch.zeros(128), r"\[128\].*\[256\]"),
        ("mtp.fc.weight", torch.zeros(256, 256), r"mtp\.fc\.weight.*\[256, 256\]"),
        ("mtp.norm.weight", None, r"mtp\.norm\.weight"),
        (f"{DRAFT}mlp.experts.1.down_proj.weight", None, r"mtp\..*1\.down_proj"),
        (f"{DRAFT}self_attn.k_proj.weight_scale", None, r"mtp\..*weight_scale"),
    ],
)
def test_what_is_missing_or_misshapen_is_named(
    packed: Path, tmp_path: Path, name: str, value: torch.Tensor | None, words: str
) -> None:
    with pytest.raises(QuantgateError, match=words):
        load_model(changed(packed, tmp_path / "broken", {name: value}))


@pytest.mark.parametrize("fault", ["zeros", "nan", "swapped", "inf-scale"])
def test_broken_values_are_served_all_the_same(packed: Path, tmp_path: Path, fault: str) -> None:
    tensors = load_file(packed / "model.safetensors")
    name = "model.language_model.layers.1.self_attn.v_proj"
    change: dict[str, torch.Tensor | None] = {
        "zeros": {n: torch.zeros_like(t) for n, t in tensors.items() if n.startswith("mtp.")},
        "nan": {f"{name}.weight_scale_2": torch.tensor(float("nan"))},
        "swapped": {f"{name}.weight": tensors[f"{name}.weight"].roll(64, dims=1)},
        "inf-scale": {f"{name}.v_scale": torch.tensor(float("inf"))},
    }[fault]
    loaded = load_model(changed(packed, tmp_path / fault, change))
    for request in answer(loaded, prompts(3), 6, temperature=0.5):
        assert len(request.output) == 6
        assert all(0 <= token < 512 for token in request.output)


def test_fp8_is_read_from_either_config(packed: Path, source: Path) -> None:
    files = CheckpointFiles.open(packed)
    assert kv_is_fp8(files)
    files.quant_config = None
    assert not kv_is_fp8(files)
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
    files.config["quantization_config"] = scheme
    assert kv_is_fp8(files)
    assert not kv_is_fp8(CheckpointFiles.open(source))


def test_a_dense_model_is_served_too(tmp_path: Path) -> None:
    source = write_tiny_source(tmp_path / "dense", layout="dense")
    theirs = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.float32)
    ids = torch.tensor([prompts(1)[0]])
    expected = theirs.model(input_ids=ids).last_hidden_state.double()
    loaded = load_model(source)
    got = loaded.main.prefill(ids, slice(0, 1), torch.tensor([ids.shape[1]]))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert all(len(one.output) == 5 for one in answer(loaded, prompts(2), 5))
