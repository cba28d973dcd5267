"""How fast the draft head is requantized, and in how much memory, at the real size.

    python -m tests.bench.requant [--experts 256] [--folder DIR] [--json]

Makes a synthetic source whose head has the released model's sizes (256 experts, hidden 2048,
intermediate 512: 1.6 GB of BF16), then measures:

- the whole of `requant`, heuristic scales, in a process of its own: seconds, GB/s of BF16, and the
  peak of its anonymous memory (mapped files are not counted, they are the page cache's);
- its packer against a plain loop over ModelOpt's NVFP4QTensor.quantize, on a subset of the experts
  (the plain loop takes minutes on all), same thread count, bytes compared;
- a copy of the same bytes in memory, as the yardstick.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.architectures import architecture_of, expert_count
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.write import write_json, write_shard
from tasks.requant.head import DraftSource
from tasks.requant.pack import BF16, E4M3
from tasks.requant.parallel import packed_groups

HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM = 2048, 512, 16, 2, 256
LAYER, LAST = "mtp.layers.0", "model.language_model.layers.3"
SUBSET = 16
GIB = 2**30
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def config(experts: int) -> dict[str, Any]:
    """config.json of a model whose last layer has the real sizes."""
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": {
            "num_hidden_layers": 4,
            "num_experts": experts,
            "mtp_num_hidden_layers": 1,
            "hidden_size": HIDDEN,
        },
    }


def linears(experts: int) -> dict[str, tuple[int, int]]:
    """Linears of one layer -> shape."""
    query, value = 2 * HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (query, HIDDEN),
        "self_attn.k_proj": (value, HIDDEN),
        "self_attn.v_proj": (value, HIDDEN),
        "self_attn.o_proj": (HIDDEN, query // 2),
    }
    mlp = {"gate_proj": (INTER, HIDDEN), "up_proj": (INTER, HIDDEN), "down_proj": (HIDDEN, INTER)}
    parents = ["mlp.shared_expert", *(f"mlp.experts.{number}" for number in range(experts))]
    return shapes | {f"{parent}.{leaf}": s for parent in parents for leaf, s in mlp.items()}


def write_source(folder: Path, experts: int) -> int:
    """A source that has a draft head and nothing else; returns the head's bytes."""
    folder.mkdir()
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        f"{LAYER}.mlp.gate.weight": (experts, HIDDEN),
        f"{LAYER}.mlp.shared_expert_gate.weight": (1, HIDDEN),
        f"{LAYER}.mlp.experts.gate_up_proj": (experts, 2 * INTER, HIDDEN),
        f"{LAYER}.mlp.experts.down_proj": (experts, HIDDEN, INTER),
    }
    norms = ("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
    norms += (f"{LAYER}.input_layernorm", f"{LAYER}.post_attention_layernorm")
    shapes |= {f"{name}.weight": (HIDDEN,) for name in norms}
    shapes |= {f"{LAYER}.self_attn.{leaf}_norm.weight": (HEAD_DIM,) for leaf in "qk"}
    shapes |= {f"{LAYER}.{name}.weight": shape for name, shape in linears(0).items()}
    plan = [(name, "BF16", shape) for name, shape in shapes.items()]
    write_json(folder / "config.json", config(experts))
    return write_shard(folder / "model.safetensors", plan, _random(shapes))


def _random(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    """Normal values of the usual size; a large tensor repeats 16 Mi of them, shifted."""
    generator = np.random.default_rng(0)
    pool = (generator.standard_normal(2**24, np.float32) * 0.02).astype(BF16)
    for name, shape in shapes.items():
        count = math.prod(shape)
        shift = int(generator.integers(len(pool)))
        yield name, np.resize(np.roll(pool, shift), count).reshape(shape)


def write_export(folder: Path, experts: int) -> None:
    """An export with the layer that the head mirrors; its codes, which nobody reads, are zeros."""
    folder.mkdir()
    plan: list[tuple[str, str, tuple[int, ...]]] = []
    for leaf in ("mlp.gate", "mlp.shared_expert_gate"):
        rows = experts if leaf == "mlp.gate" else 1
        plan.append((f"{LAST}.{leaf}.weight", "BF16", (rows, HIDDEN)))
    for name, (rows, columns) in linears(experts).items():
        plan += [
            (f"{LAST}.{name}.weight", "U8", (rows, columns // 2)),
            (f"{LAST}.{name}.weight_scale", "F8_E4M3", (rows, columns // 16)),
            (f"{LAST}.{name}.weight_scale_2", "F32", ()),
            (f"{LAST}.{name}.input_scale", "F32", ()),
        ]
    plan += [(f"{LAST}.self_attn.{leaf}_proj.{leaf}_scale", "F32", ()) for leaf in "kv"]
    kinds = {"U8": np.uint8, "F8_E4M3": E4M3, "F32": np.float32, "BF16": BF16}
    arrays = ((n, np.full(shape, 0.01 if d == "F32" else 0, kinds[d])) for n, d, shape in plan)
    write_shard(folder / "model.safetensors", plan, arrays)
    quant = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write_json(folder / "hf_quant_config.json", {"quantization": quant})
    ignore = {"quantization_config": {"quant_method": "modelopt", "ignore": ["lm_head"]}}
    write_json(folder / "config.json", config(experts) | ignore)


def in_child(task: str, *arguments: Path) -> dict[str, Any]:
    """What `TASKS[task]` returns in a process of its own, and the peak of its anonymous memory.

    Sampled every 10 ms over the process and its children; pages that a fork shares count in each.
    """
    command = [sys.executable, "-m", "tests.bench.requant", "--child", task, *map(str, arguments)]
    child, peak = subprocess.Popen(command, stdout=subprocess.PIPE, text=True), 0
    while child.poll() is None:
        peak = max(peak, sum(_anonymous(pid) for pid in _family(child.pid)))
        time.sleep(0.01)
    assert child.stdout is not None
    if child.returncode:
        raise SystemExit(f"{task} failed")
    result: dict[str, Any] = json.loads(child.stdout.read())
    return result | {"peak_anonymous": peak}


def _family(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for other in found for one in _family(int(other)))]


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def whole(source: Path, export: Path, out: Path) -> dict[str, Any]:
    """Seconds of one `requant`."""
    from tasks.requant.requant import requant
    from tasks.spec import DraftSpec

    started = time.perf_counter()
    requant(source, export, DraftSpec(), None, out)
    return {"seconds": time.perf_counter() - started}


def _subset(source: Path) -> tuple[DraftSource, list[tuple[str, ...]]]:
    files = CheckpointFiles.open(source, as_source=True)
    head = DraftSource(files, architecture_of(files.config, "bench"))
    groups: list[tuple[str, ...]] = []
    for number in range(min(SUBSET, expert_count(files.config))):
        stem = f"{LAYER}.mlp.experts.{number}"
        groups += [(f"{stem}.gate_proj", f"{stem}.up_proj"), (f"{stem}.down_proj",)]
    return head, groups


def packer(source: Path) -> dict[str, Any]:
    """Seconds of the product's packer on the subset, its workers' start included; a digest."""
    head, groups = _subset(source)
    copied = [np.array(head.weight(name)) for group in groups for name in group]
    memcpy, _ = _best(lambda: [weight.copy() for weight in copied])
    seconds, made = _best(lambda: list(packed_groups(head, groups)))
    digest = hashlib.sha256()
    for group in made:
        for _, packed in group:
            for part in packed:
                digest.update(part.tobytes())
    size = sum(weight.nbytes for weight in copied)
    return {"seconds": seconds, "digest": digest.hexdigest(), "memcpy": memcpy, "bytes": size}


def plain(source: Path) -> dict[str, Any]:
    """Seconds of a plain loop over NVFP4QTensor.quantize on the subset; a digest."""
    import torch
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    head, groups = _subset(source)
    tensors = [
        [torch.from_numpy(head.weight(name).view(np.int16).copy()) for name in group]
        for group in groups
    ]

    def loop() -> list[Any]:
        made = []
        for group in tensors:
            weights = [bits.view(torch.bfloat16) for bits in group]
            amax = torch.stack([w.abs().amax() for w in weights]).max().float()
            made += [
                NVFP4QTensor.quantize(w, 16, weights_scaling_factor_2=amax / (6.0 * 448.0))
                for w in weights
            ]
        return made

    seconds, made = _best(loop)
    digest = hashlib.sha256()
    for weight, scale, scale_2 in made:
        for part in (weight._quantized_data, scale.view(torch.uint8), scale_2):
            digest.update(part.numpy().tobytes())
    return {"seconds": seconds, "digest": digest.hexdigest()}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "whole": whole,
    "packer": packer,
    "plain": plain,
}


def _best(work: Callable[[], Any], times: int = 4) -> tuple[float, Any]:
    best, value = math.inf, None
    for _ in range(times):
        started = time.perf_counter()
        value = work()
        best = min(best, time.perf_counter() - started)
    return best, value


def measure(experts: int, folder: Path) -> dict[str, Any]:
    """All figures for a head of so many experts; `folder` takes about 1.5 times its bytes."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="quantgate-bench-") as scratch:
        root = Path(scratch)
        size = write_source(root / "source", experts)
        write_export(root / "export", experts)
        done = in_child("whole", root / "source", root / "export", root / "out")
        slow, fast = in_child("plain", root / "source"), in_child("packer", root / "source")
    return {
        "experts": experts,
        "head_bytes": size,
        "threads": len(os.sched_getaffinity(0)),
        "whole": done,
        "experts_timed": min(SUBSET, experts),
        "bytes": fast["bytes"],
        "plain_seconds": slow["seconds"],
        "packer_seconds": fast["seconds"],
        "memcpy_seconds": fast["memcpy"],
        "times_faster": slow["seconds"] / fast["seconds"],
        "bytes_equal": slow["digest"] == fast["digest"],
    }


def report(found: dict[str, Any]) -> str:
    """The figures for a person."""
    whole, size = found["whole"], found["head_bytes"]
    timed = found["bytes"]

    def rate(seconds: float, count: int) -> str:
        return f"{seconds:8.2f} s  {count / seconds / 1e9:7.3f} GB/s of BF16"

    return "\n".join(
        [
            f"draft head: {found['experts']} experts, {size / 1e9:.2f} GB of BF16,"
            f" {found['threads']} cores",
            f"requant, all of it      {rate(whole['seconds'], size)}"
            f"   peak anonymous memory {whole['peak_anonymous'] / GIB:.2f} GiB",
            f"on {found['experts_timed']} experts ({timed / 1e6:.0f} MB), best of 4:",
            f"  NVFP4QTensor, a loop  {rate(found['plain_seconds'], timed)}",
            f"  packer                {rate(found['packer_seconds'], timed)}"
            f"   {found['times_faster']:.1f} times faster,"
            f" bytes {'equal' if found['bytes_equal'] else 'DIFFER'}",
            f"  memcpy                {rate(found['memcpy_seconds'], timed)}",
        ]
    )


def main() -> None:
    """Measure, print, and fail when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        task, *paths = options.child
        print(json.dumps(TASKS[task](*map(Path, paths))))
        return
    found = measure(options.experts, options.folder)
    print(json.dumps(found) if options.json else report(found))
    good = found["bytes_equal"] and found["times_faster"] >= 5
    if not good or found["whole"]["peak_anonymous"] >= GIB:
        sys.exit("missed: equal bytes, 5 times faster, under 1 GiB of anonymous memory")


if __name__ == "__main__":
    main()
