"""A small release with everything that a card needs, made without torch."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tasks.artifacts import (
    CalibrationRecord,
    Checkpoint,
    Counts,
    DraftRecord,
    GateReport,
    Image,
    Interval,
    PatchState,
    QuantizationRecord,
    Source,
    Verdict,
)
from tasks.card.material import CardMaterial, Sample, SampleRun
from tasks.checkpoint.manifest import take_manifest
from tasks.spec import ReleaseSpec

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CONFIG = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "dtype": "bfloat16",
    "text_config": {
        "num_hidden_layers": 4,
        "num_experts": 2,
        "mtp_num_hidden_layers": 1,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    },
}
LAYER = "model.language_model.layers.3"
LINEARS = (
    f"{LAYER}.self_attn.q_proj",
    f"{LAYER}.self_attn.k_proj",
    f"{LAYER}.mlp.experts.0.up_proj",
    f"{LAYER}.mlp.experts.1.up_proj",
    "mtp.layers.0.self_attn.q_proj",
)
PLAIN = (
    "model.language_model.embed_tokens.weight",
    f"{LAYER}.mlp.gate.weight",
    "model.visual.blocks.0.attn.qkv.weight",
    "mtp.fc.weight",
)
CARD = (
    "---\nlicense: apache-2.0\nlanguage:\n- en\npipeline_tag: image-text-to-text\n---\n# Source\n"
)


def write_source(folder: Path) -> Path:
    folder.mkdir(parents=True)
    weight = np.ones((32, 64), ml_dtypes.bfloat16)
    names = [*(f"{name}.weight" for name in LINEARS), *PLAIN]
    save_file(dict.fromkeys(names, weight), str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "README.md").write_text(CARD)
    return folder


def write_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    tensors: dict[str, Any] = {name: np.ones((32, 64), ml_dtypes.bfloat16) for name in PLAIN}
    for name in LINEARS:
        tensors[f"{name}.weight"] = np.ones((32, 32), np.uint8)
        tensors[f"{name}.weight_scale"] = np.ones((32, 4), ml_dtypes.float8_e4m3fn)
        tensors[f"{name}.weight_scale_2"] = np.array(0.01, np.float32)
        tensors[f"{name}.input_scale"] = np.array(0.02, np.float32)
    tensors[f"{LAYER}.self_attn.k_proj.k_scale"] = np.array(0.0398000017, np.float32)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def calibration(**changed: Any) -> CalibrationRecord:
    given: dict[str, Any] = {
        "dataset": "deployments/demo/data/calibration.jsonl",
        "sha256": "5a" * 32,
        "rows": 256,
        "tokens": 24117,
        "sequence_length": 256,
        "batch_size": 16,
        "seed": 0,
        "device": "AMD EPYC 9J14",
        "started": NOON,
        "ended": NOON,
        "packages": {"nvidia-modelopt": "0.47.0", "torch": "2.13.0", "transformers": "5.14.1"},
    }
    return CalibrationRecord(**(given | changed))


def make_reports() -> dict[str, GateReport]:
    served = {
        "engine": {"name": "sglang", "version": "0.5.17", "model": "release"},
        "hardware": {"device": "cuda", "gpus": ["NVIDIA H200"], "machine": "x86_64"},
        "verdict": Verdict.PASS,
    }
    return {
        "audit": GateReport(
            gate="audit",
            verdict=Verdict.PASS,
            measured={"tensors": 31, "bytes": 22192, "gigabytes_per_second": 1.913},
            threshold={"faults": 0},
            seconds=0.31,
        ),
        "smoke": GateReport(
            gate="smoke",
            measured={"known_right": 0.9375, "speculation_active": True},
            threshold={"min_known": 0.75},
            counts=Counts(asked=24, scored=24, correct=15),
            seconds=12.5,
            **served,
        ),
        "gsm8k": GateReport(
            gate="gsm8k",
            measured={
                "accuracy": 1273 / 1319,
                "problems": 1319,
                "sampling": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 16384},
                "extraction_rules": {"boxed": 1310, "hashes": 0, "last-number": 9, "none": 0},
                "latency_seconds": {"p50": 4.1, "p99": 19.875},
            },
            threshold={"min_accuracy": 0.94, "rule": "wilson"},
            interval=Interval(low=0.9554, high=0.9725, confidence=0.95, method="wilson-one-sided"),
            counts=Counts(asked=1319, scored=1318, correct=1273, lost=1, cut_off=0),
            seconds=812.0,
            **served,
        ),
        "acceptance": GateReport(
            gate="acceptance",
            measured={
                "accept_length": 2.7134,
                "verifications": 18230,
                "histogram": [1204, 2810, 14216],
            },
            threshold={"min_accept": 2.5, "max_accept": 2.97},
            interval=Interval(
                low=2.701, high=2.726, confidence=0.95, method="bootstrap-over-requests"
            ),
            counts=Counts(asked=240, scored=240, correct=240),
            seconds=96.0,
            **served,
        ),
    }


def make_spec(**changed: Any) -> ReleaseSpec:
    tree: dict[str, Any] = {
        "name": "tiny",
        "source": {"at": "folder", "path": "source", "repo": "Qwen/Tiny-MoE"},
        "quantize": {"calibration": {"file": "deployments/demo/data/calibration.jsonl"}},
        "serve": {"engine": "sglang"},
        "publish": {"repo": "org/Tiny-MoE-NVFP4-MTP"},
    }
    return ReleaseSpec.model_validate(tree | changed)


def make_material(root: Path, spec: dict[str, Any] | None = None, **changed: Any) -> CardMaterial:
    """A complete material; `spec` and `changed` replace parts of it."""
    source, checkpoint = root / "source", root / "checkpoint"
    if not source.exists():
        write_source(source)
        write_checkpoint(checkpoint)
    given: dict[str, Any] = {
        "spec": make_spec(**(spec or {})),
        "source": Source(
            path=source,
            repo="Qwen/Tiny-MoE",
            revision="0f" * 20,
            digest="ab" * 32,
            architecture="Qwen3_5MoeForConditionalGeneration",
            license="apache-2.0",
        ),
        "checkpoint": Checkpoint(
            path=checkpoint,
            digest=take_manifest(checkpoint).digest,
            quantization=QuantizationRecord(
                qformat="nvfp4",
                kv_cache="fp8",
                source_repo="Qwen/Tiny-MoE",
                source_revision="0f" * 20,
                source_digest="ab" * 32,
                calibration=calibration(),
            ),
            draft=DraftRecord(
                precision="nvfp4",
                scales="heuristic",
                layout="qwen3.6-fused",
                borrowed_from=f"{LAYER}.self_attn",
                k_scale=0.0398000017,
                v_scale=0.0512,
                quantized_modules=1,
                rule="input_scale = 4 times the analogue's",
            ),
        ),
        "release_id": "20261130-120000-beef",
        "generated": NOON,
        "reports": make_reports(),
        "audit_summary": {"tensors": 31},
        "image": Image(
            reference="registry/sglang:0.5.17-sm121",
            id="sha256:" + "12" * 32,
            digest="registry/sglang@sha256:" + "34" * 32,
            base="lmsysorg/sglang@sha256:" + "56" * 32,
            architecture="linux/arm64",
            engine_version="0.5.17",
            patches=(
                PatchState(name="mtp-quant", state="applied", reason="one site", sites=1),
                PatchState(name="kv-scales", state="upstream", reason="PR 31220", sites=0),
            ),
        ),
        "endpoint_command": (
            "/opt/venv/bin/python",
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(checkpoint),
            "--port",
            "30123",
            "--trust-remote-code",
        ),
        "samples": (Sample(prompt="How many?\nSay it.", before="It is 7.", after="It's **7**."),),
        "sample_run": SampleRun(engine="reference 0.1.0, CPU", sampling={"temperature": 0}),
        "environment": {"python": "3.11.2", "quantgate": "0.1.0"},
        "hardware": {"cpu": "AMD EPYC 9J14", "gpus": ["NVIDIA H200"]},
    }
    return CardMaterial(**(given | changed))
