"""Small checkpoints for the engine's tests, and the engine's parts run without HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.serve.reference.batch import Batch
from tasks.serve.reference.load import Loaded, load
from tasks.serve.reference.options import Options
from tasks.serve.reference.request import Request, Sampling
from tests.tiny import write_tiny_source

SMALL = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
MIXING = ("out_proj.weight", "o_proj.weight", "down_proj", "down_proj.weight")
QUANTIZED = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj"),
    *("gate_proj", "up_proj", "down_proj"),
)
K_SCALE, V_SCALE = 0.0125, 0.00625
DRAFT_K_SCALE, DRAFT_V_SCALE = 0.025, 0.01
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def write_guessable(folder: Path, mix: float = 0.15) -> Path:
    """A random source whose draft head is right about half of the time.

    The main model's layers are turned down, so that the next token depends mostly on the last one;
    the draft head passes its embedding through, so it mostly finds the same.
    """
    write_tiny_source(folder, shards=1, **SMALL)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, value in tensors.items():
        if name.endswith(MIXING) and "visual" not in name:
            tensors[name] = value * mix
    hidden = tensors["mtp.fc.weight"].shape[0]
    tensors["mtp.fc.weight"] = torch.eye(hidden, 2 * hidden, dtype=torch.bfloat16)
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


def write_packed(source: Path, folder: Path, *, kv_scales: bool = True) -> Path:
    """`source` as an NVFP4 checkpoint with an FP8 cache, packed here value by value."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    packed: dict[str, Tensor] = {}
    for name, value in _per_expert(load_file(source / "model.safetensors")).items():
        module = name.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] in QUANTIZED and "visual" not in name:
            packed |= pack(module, value.float())
        else:
            packed[name] = value
        if kv_scales and module.endswith("k_proj"):
            scale = DRAFT_K_SCALE if module.startswith("mtp.") else K_SCALE
            packed[f"{module}.k_scale"] = torch.tensor(scale)
        if kv_scales and module.endswith("v_proj"):
            scale = DRAFT_V_SCALE if module.startswith("mtp.") else V_SCALE
            packed[f"{module}.v_scale"] = torch.tensor(scale)
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    config = {"producer": {"name": "modelopt", "version": "0"}, "quantization": quantization}
    (folder / "hf_quant_config.json").write_text(json.dumps(config))
    return folder


def pack(module: str, weight: Tensor) -> dict[str, Tensor]:
    """One linear as NVFP4: the nearest code of each value under its block's scale."""
    overall = weight.abs().max() / (6 * 448)
    blocks = weight.unflatten(-1, (-1, 16))
    scale = (blocks.abs().amax(-1) / (6 * overall)).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    levels = torch.tensor(E2M1)
    scaled = blocks / (scale.float() * overall).unsqueeze(-1)
    codes = (scaled.abs().unsqueeze(-1) - levels).abs().argmin(-1) + 8 * (scaled < 0)
    flat = codes.flatten(-2).to(torch.uint8)
    return {
        f"{module}.weight": flat[..., 0::2] | (flat[..., 1::2] << 4),
        f"{module}.weight_scale": scale,
        f"{module}.weight_scale_2": overall,
        f"{module}.input_scale": torch.tensor(0.01),
    }


def unpack(tensors: dict[str, Tensor], module: str, rows: int) -> Tensor:
    """The first rows of a packed linear, one nibble at a time."""
    packed = tensors[f"{module}.weight"][:rows]
    out = torch.empty(packed.shape[0], packed.shape[1] * 2)
    for row, codes in enumerate(packed.tolist()):
        for place, code in enumerate(codes):
            for half, nibble in enumerate((code & 15, code >> 4)):
                sign = -1 if nibble & 8 else 1
                out[row, 2 * place + half] = sign * E2M1[nibble & 7]
    scale = tensors[f"{module}.weight_scale"].float() * tensors[f"{module}.weight_scale_2"]
    return out * scale[:rows].repeat_interleave(16, dim=1)


def _per_expert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, value in tensors.items():
        if name.endswith(".experts.gate_up_proj"):
            for number, both in enumerate(value):
                prefix = f"{name.removesuffix('gate_up_proj')}{number}."
                gate, up = both.chunk(2)
                out[prefix + "gate_proj.weight"] = gate.contiguous()
                out[prefix + "up_proj.weight"] = up.contiguous()
        elif name.endswith(".experts.down_proj"):
            for number, one in enumerate(value):
                out[f"{name.removesuffix('down_proj')}{number}.down_proj.weight"] = one.contiguous()
        else:
            out[name] = value
    return out


def load_model(folder: Path, **options: Any) -> Loaded:
    """Load as the engine's thread does."""
    return load(Options(**({"checkpoint": folder, "port": 1, "max_batch": 64} | options)))


def prompts(count: int, seed: int = 0, longest: int = 70) -> list[list[int]]:
    """Random ids, of lengths 1 to `longest`."""
    draw = random.Random(seed)
    return [[draw.randrange(7, 512) for _ in range(draw.randint(1, longest))] for _ in range(count)]


def answer(
    loaded: Loaded,
    questions: Sequence[list[int]],
    tokens: int,
    *,
    speculate: bool = True,
    steps: int = 2,
    rows: int = 64,
    turns: int = 0,
    seed: int = 0,
    **sampling: Any,
) -> list[Request]:
    """Answers of exactly `tokens` tokens; rows are filled again as requests leave, by turns."""
    draw = random.Random(turns)
    requests = [
        Request(str(number), ids, Sampling(max_tokens=tokens, seed=seed + number, **sampling))
        for number, ids in enumerate(questions)
    ]
    batch = Batch(loaded.main, loaded.draft if speculate else None, steps)
    waiting = list(requests)
    while waiting or batch.requests:
        count = min(len(waiting), rows - len(batch), draw.randint(1, 24))
        if count > 0:
            group, waiting = waiting[:count], waiting[count:]
            first = len(batch)
            _take(batch, first, batch.admit(group))
        if batch.requests:
            _take(batch, 0, batch.step())
    return requests


def _take(batch: Batch, first: int, gained: list[list[int]]) -> None:
    for row in reversed(range(first, first + len(gained))):
        request = batch.requests[row]
        request.output += gained[row - first]
        if len(request.output) >= request.sampling.max_tokens:
            request.cut = request.output[request.sampling.max_tokens :]
            del request.output[request.sampling.max_tokens :]
            batch.leave(row)
