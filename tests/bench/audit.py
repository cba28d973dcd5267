"""How fast a checkpoint is audited, and in how much memory, at the real size of a layer.

    python -m tests.bench.audit [--experts 256] [--folder DIR] [--json]

Makes one full-attention layer of the released model's sizes (256 experts, hidden 2048, intermediate
512: 1.6 GB of BF16, 0.45 GB of NVFP4), right in every byte, then audits it alone and beside its
source: seconds, GB/s of the files read, and the peak of anonymous memory (mapped files are not
counted). A sum over the same bytes, on one core, is the yardstick.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tasks.artifacts import Verdict
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.write import write_json, write_shard
from tasks.gates.audit import audit
from tasks.gates.audit.nvfp4 import (
    bf16_bits_to_f32,
    block_amax_bits,
    encode,
    scale_2_of,
    scales_of,
    step_of,
)

Array = np.ndarray[Any, Any]
HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 512, 16, 2, 256, 1024
LAYER = "model.language_model.layers.0"
FP8, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16


def config(experts: int) -> dict[str, Any]:
    """config.json of a model of one layer."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "text_config": {
            "num_hidden_layers": 1,
            "layer_types": ["full_attention"],
            "num_experts": experts,
            "hidden_size": HIDDEN,
            "moe_intermediate_size": INTER,
            "shared_expert_intermediate_size": INTER,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCAB,
        },
    }


def groups(experts: int) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """(parent, linears that share one amax) of all that is quantized."""
    attention, mlp = f"{LAYER}.self_attn", f"{LAYER}.mlp"
    wide = (2 * HEADS * HEAD_DIM, HIDDEN)
    narrow = (KV_HEADS * HEAD_DIM, HIDDEN)
    yield attention, {"q_proj": wide, "k_proj": narrow, "v_proj": narrow}
    yield attention, {"o_proj": (HIDDEN, HEADS * HEAD_DIM)}
    for parent in [f"{mlp}.shared_expert", *(f"{mlp}.experts.{e}" for e in range(experts))]:
        yield parent, {"gate_proj": (INTER, HIDDEN), "up_proj": (INTER, HIDDEN)}
        yield parent, {"down_proj": (HIDDEN, INTER)}


def plain(experts: int) -> dict[str, tuple[int, ...]]:
    """All that stays BF16."""
    return {
        "model.language_model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.language_model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
        f"{LAYER}.input_layernorm.weight": (HIDDEN,),
        f"{LAYER}.post_attention_layernorm.weight": (HIDDEN,),
        f"{LAYER}.self_attn.q_norm.weight": (HEAD_DIM,),
        f"{LAYER}.self_attn.k_norm.weight": (HEAD_DIM,),
        f"{LAYER}.mlp.gate.weight": (experts, HIDDEN),
        f"{LAYER}.mlp.shared_expert_gate.weight": (1, HIDDEN),
    }


class Weights:
    """Random BF16 weights, each the same whenever it is asked for."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).standard_normal(2**22, dtype=np.float32)
        self.pool = (values * 0.02).astype(BF16)

    def of(self, name: str, shape: tuple[int, ...]) -> Array:
        start = zlib.crc32(name.encode()) % (self.pool.size // 2)
        size = int(np.prod(shape))
        return np.resize(self.pool[start:], size).reshape(shape)


def write_pair(folder: Path, experts: int) -> tuple[Path, Path]:
    """The source and its right checkpoint, below `folder`."""
    source, checkpoint = folder / "source", folder / "checkpoint"
    weights = Weights()
    kept = plain(experts)
    linears = {
        f"{parent}.{leaf}": shape
        for parent, leaves in groups(experts)
        for leaf, shape in leaves.items()
    }
    for root in (source, checkpoint):
        root.mkdir(parents=True)
        write_json(root / "config.json", config(experts))
    shapes = kept | {f"{name}.weight": shape for name, shape in linears.items()}
    write_shard(
        source / "model.safetensors",
        [(name, "BF16", shape) for name, shape in shapes.items()],
        ((name, weights.of(name, shape)) for name, shape in shapes.items()),
    )
    plan: list[tuple[str, str, tuple[int, ...]]] = [(n, "BF16", s) for n, s in kept.items()]
    for name, (rows, columns) in linears.items():
        plan += [
            (f"{name}.weight", "U8", (rows, columns // 2)),
            (f"{name}.weight_scale", "F8_E4M3", (rows, columns // 16)),
            (f"{name}.weight_scale_2", "F32", ()),
            (f"{name}.input_scale", "F32", ()),
        ]
    write_shard(checkpoint / "model.safetensors", plan, _packed(weights, kept, experts))
    _write_quantization(checkpoint)
    return source, checkpoint


def _packed(
    weights: Weights, kept: dict[str, tuple[int, ...]], experts: int
) -> Iterator[tuple[str, Array]]:
    for name, shape in kept.items():
        yield name, weights.of(name, shape)
    for parent, leaves in groups(experts):
        bits = {
            f"{parent}.{leaf}": weights.of(f"{parent}.{leaf}.weight", shape).view(np.uint16)
            for leaf, shape in leaves.items()
        }
        blocks = {name: bf16_bits_to_f32(block_amax_bits(held)) for name, held in bits.items()}
        scale_2 = scale_2_of(max(float(block.max()) for block in blocks.values()))
        for name, held in bits.items():
            scale = scales_of(blocks[name], scale_2)
            yield f"{name}.weight", encode(held, step_of(scale, scale_2))
            yield f"{name}.weight_scale", scale.view(FP8)
            yield f"{name}.weight_scale_2", np.asarray(scale_2)
            yield f"{name}.input_scale", np.asarray(np.float32(0.002))


def _write_quantization(checkpoint: Path) -> None:
    files = CheckpointFiles.open(checkpoint)
    linear = {"lm_head", f"{LAYER}.mlp.gate", f"{LAYER}.mlp.shared_expert_gate"}
    section = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16}
    producer = {"name": "modelopt", "version": "0"}
    write_json(
        checkpoint / "hf_quant_config.json",
        {"producer": producer, "quantization": section | {"exclude_modules": sorted(linear)}},
    )
    ours = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": sorted(linear)}
    write_json(checkpoint / "config.json", files.config | {"quantization_config": ours})


class AnonymousMemory:
    """The peak of this process's anonymous memory above what it had at the start, in bytes."""

    def __enter__(self) -> AnonymousMemory:
        self.start = self.peak = _anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def grown(self) -> int:
        return self.peak - self.start

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.peak = max(self.peak, _anonymous())


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(experts: int, folder: Path) -> dict[str, Any]:
    """Build the pair below `folder` and audit it twice."""
    source, checkpoint = write_pair(folder, experts)
    found: dict[str, Any] = {"experts": experts}
    for name, against in (("alone", None), ("beside the source", source)):
        with AnonymousMemory() as memory:
            began = time.process_time()
            result = audit(checkpoint, against)
            busy = time.process_time() - began
        assert result.verdict is Verdict.PASS, result.faults[:3]
        found[name] = {
            "bytes": result.summary["bytes_read"],
            "seconds": result.summary["seconds"],
            "cpu_seconds": round(busy, 3),
            "gigabytes_per_second": result.summary["gigabytes_per_second"],
            "peak_anonymous": memory.grown,
        }
    files = CheckpointFiles.open(checkpoint)
    began = time.monotonic()
    size = 0
    for name in files.tensors:
        values = files.array(name).reshape(-1).view(np.uint8)
        values[: values.size // 8 * 8].view(np.uint64).sum()
        size += values.size
    found["sum"] = {"gigabytes_per_second": round(size / 1e9 / (time.monotonic() - began), 3)}
    return found


def report(found: dict[str, Any]) -> str:
    """The figures, as text."""
    lines = []
    for name in ("alone", "beside the source"):
        row = found[name]
        lines.append(
            f"{name:18} {row['bytes'] / 1e9:6.2f} GB {row['seconds']:7.2f} s"
            f" {row['gigabytes_per_second']:6.2f} GB/s; {row['cpu_seconds']:.2f} s of CPU,"
            f" {row['bytes'] / 1e9 / row['cpu_seconds']:.2f} GB/s a core;"
            f" anonymous memory +{row['peak_anonymous'] / 2**20:.0f} MiB"
        )
    lines.append(f"{'sum of the bytes':18} {found['sum']['gigabytes_per_second']:24.2f} GB/s")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Audit one layer of the real size.")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        found = measure(asked.experts, Path(folder))
    print(json.dumps(found) if asked.json else report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
