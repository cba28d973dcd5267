"""The audit's parts by themselves: the packer's arithmetic, lists, laws, hostile input, reports."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tasks.artifacts import Verdict
from tasks.card.weights import measure_weights
from tasks.errors import BadInputError
from tasks.gates.audit import AuditResult, Fault, audit, audit_report
from tasks.gates.audit.excludes import ExcludeList
from tasks.gates.audit.nvfp4 import (
    bf16_bits_to_f32,
    block_amax_bits,
    decode,
    encode,
    scale_2_of,
    scales_of,
    step_of,
    wrong_blocks,
)
from tasks.gates.audit.page import faults_page
from tasks.gates.audit.result import MOST, Findings, printable
from tasks.spec import AuditGate
from tests.faults.inject import Copy


def pack(weight: np.ndarray[Any, Any]) -> tuple[Any, Any, np.float32]:
    """Codes, scale bits and scale_2 of BF16 bits, with an amax of its own."""
    blocks = bf16_bits_to_f32(block_amax_bits(weight))
    scale_2 = scale_2_of(float(blocks.max()))
    scale = scales_of(blocks, scale_2)
    return encode(weight, step_of(scale, scale_2)), scale, scale_2


def awkward(seed: int) -> np.ndarray[Any, Any]:
    """BF16 bits with zero blocks, huge and tiny ones, both zeros, and values on the ties."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((64, 256)) * 10.0 ** rng.uniform(-6, 1, (64, 16)).repeat(16, 1)
    values[3, 32:64] = 0
    values[5] = -0.0
    values[7] = np.tile(
        [6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -6, -5, -3.5, -2.5, 0, -0.0, 4, 1], 16
    )
    bits: np.ndarray[Any, Any] = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    return bits


class TestPacker:
    @pytest.mark.parametrize("seed", range(4))
    def test_equals_modelopt_bit_for_bit(self, seed: int) -> None:
        import torch
        from modelopt.torch.quantization.qtensor import NVFP4QTensor

        bits = awkward(seed)
        weight = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
        theirs, scale, scale_2 = NVFP4QTensor.quantize(weight.clone(), 16)
        codes, our_scale, our_scale_2 = pack(bits)
        np.testing.assert_array_equal(scale.view(torch.uint8).numpy(), our_scale)
        assert float(scale_2) == our_scale_2
        np.testing.assert_array_equal(theirs._quantized_data.numpy(), codes)
        step = step_of(our_scale, our_scale_2)
        stored = {"scale": scale, "double_scale": scale_2, "block_sizes": {-1: 16}}
        right = theirs.dequantize(torch.float32, **stored).numpy()
        np.testing.assert_array_equal(right, decode(codes, step))

    @pytest.mark.parametrize("seed", range(4))
    def test_right_blocks_are_never_called_wrong(self, seed: int) -> None:
        codes, scale, _ = pack(awkward(seed))
        assert not wrong_blocks(codes, scale).any()

    def test_damaged_blocks_are(self) -> None:
        codes, scale, _ = pack(awkward(0))
        normal = np.argwhere(scale >= 8)[5]
        row, block = (int(n) for n in normal)
        part = slice(8 * block, 8 * block + 8)
        for damage in (codes[row, part] & 0x33, codes[row, part] * 0):
            damaged = codes.copy()
            damaged[row, part] = damage
            assert np.argwhere(wrong_blocks(damaged, scale)).tolist() == [[row, block]]


class TestExcludeLists:
    def test_what_engines_match(self) -> None:
        entries = ExcludeList(
            ["lm_head", "model.visual*", "a.b.self_attn*", "mtp.layers.0.mlp.gate"]
        )
        for name in ("lm_head", "model.visual.blocks.0.x", "a.b.self_attn.q_proj"):
            assert entries.covers(name)
        for name in ("mtp.layers.0.mlp.gate_proj", "model.lm_head2", "a.b.mlp", "x.model.visual"):
            assert not entries.covers(name)
        assert ExcludeList(["mtp*"]).covers("model.mtp_block.fc")
        assert ExcludeList(["mtp.layers.0"]).covers("mtp.layers.0.self_attn.q_proj")

    def test_entries_that_match_nothing(self) -> None:
        entries = ExcludeList(["a", "b.*", "c*"])
        assert entries.unmatched(["a.x", "b.y"]) == ["c*"]
        assert set(entries.unmatched(["z"])) == {"a", "b.*", "c*"}

    def test_special_characters_are_plain_and_many_stars_are_fast(self) -> None:
        assert not ExcludeList(["a.[b]+*"]).covers("a.bb")
        began = time.monotonic()
        assert not ExcludeList(["*".join("a" * 40) + "*b"]).covers("a" * 4000)
        assert time.monotonic() - began < 2


def test_findings_of_one_code_are_cut_short_and_counted() -> None:
    findings = Findings()
    for index in range(MOST + 7):
        findings.add("coverage", f"t{index}", "x")
        findings.add("coverage", f"t{index}", "told once")
    faults = findings.faults()
    assert len(faults) == MOST + 1
    assert faults[-1].detail == "And 7 more of this kind."
    assert findings.counts() == {"coverage": MOST + 7}
    assert printable("a\ud800\n\x1b[31m") == "a\\ud800\\x0a\\x1b[31m"


def test_the_page_of_faults_is_what_the_codes_say() -> None:
    said = Path("docs/faults.md").read_text(encoding="utf-8")
    assert said == faults_page(), "run: python -m tasks.gates.audit.page > docs/faults.md"


def test_only_what_is_no_folder_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, tmp_path / "nowhere"):
        with pytest.raises(BadInputError):
            audit(path)
    with pytest.raises(BadInputError):
        audit(tmp_path, tmp_path / "nowhere")
    result = audit(tmp_path)
    assert result.verdict is Verdict.FAIL
    assert {fault.code for fault in result.faults} >= {"config-missing", "shard-missing"}


def _mutate(tree: Any, rng: random.Random) -> Any:
    """`tree` with one value somewhere replaced by something of another type."""
    strange = [None, True, -1, 10**30, 1.5, "", "\ud800", "x" * 5000, [], {}, [None], {"a": [1]}]
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(sorted(tree))
        return {**tree, key: _mutate(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        at = rng.randrange(len(tree))
        return [*tree[:at], _mutate(tree[at], rng), *tree[at + 1 :]]
    return rng.choice(strange)


@pytest.mark.parametrize("seed", range(24))
def test_strange_json_never_ends_in_a_traceback(
    seed: int, demo_release: Path, demo_source: Path, scratch: Path
) -> None:
    rng = random.Random(seed)
    names = ["config.json", "hf_quant_config.json", "tokenizer.json", "tokenizer_config.json"]
    names += ["generation_config.json", "model.safetensors.index.json"]
    copy = Copy(demo_release, scratch / f"strange-{seed}")
    present = [name for name in names if (copy.root / name).exists()]
    for name in rng.sample(present, 2):
        text = json.dumps(_mutate(copy.json(name), rng))
        copy.replace(name, text.encode())
    result = audit(copy.root, demo_source if seed % 4 == 0 else None)
    json.dumps(result.model_dump(mode="json"), ensure_ascii=False).encode()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_byte_anywhere_in_a_shard_is_found(
    seed: int, demo_release: Path, demo_source: Path, scratch: Path
) -> None:
    rng = random.Random(seed)
    copy = Copy(demo_release, scratch / f"byte-{seed}")
    shard = rng.choice(copy.files.shards)
    raw = bytearray((copy.root / shard).read_bytes())
    spot = rng.randrange(len(raw) if seed % 3 else 4000)
    raw[spot] ^= 1 << rng.randrange(8)
    copy.replace(shard, bytes(raw))
    assert audit(copy.root, demo_source).verdict is Verdict.FAIL, spot


class TestReport:
    def result(self, *codes: str, **summary: Any) -> AuditResult:
        faults = tuple(Fault(code=c, tensor=str(i), detail="d") for i, c in enumerate(codes))
        verdict = Verdict.FAIL if codes else Verdict.PASS
        return AuditResult(verdict=verdict, faults=faults, summary={"seconds": 1.5, **summary})

    def test_pass_needs_the_comparison_that_was_asked_for(self) -> None:
        compared = self.result(source_bytes=1)
        assert audit_report(compared, AuditGate()).verdict is Verdict.PASS
        alone = self.result()
        assert audit_report(alone, AuditGate()).verdict is Verdict.INVALID
        report = audit_report(alone, AuditGate(against_source=False), seconds=2.0)
        assert (report.verdict, report.seconds) == (Verdict.PASS, 2.0)

    def test_faults_become_reasons(self) -> None:
        report = audit_report(self.result(*["coverage"] * 60), AuditGate())
        assert report.verdict is Verdict.FAIL
        assert report.reasons[0].code == "coverage"
        assert report.reasons[-1].detail == "Not listed here: coverage 10."


def test_the_audit_and_the_card_count_the_same_weights(
    demo_release: Path, demo_source: Path
) -> None:
    summary = audit(demo_release, demo_source).summary
    counted = measure_weights(demo_release, demo_source)
    assert summary["weights"] == counted.parameters
    assert summary["quantized_weights"] == counted.quantized_parameters
    assert sum(row["weights"] for row in summary["classes"]) == counted.parameters
    assert summary["bits_per_weight"] == pytest.approx(counted.bits_per_weight, abs=1e-4)
