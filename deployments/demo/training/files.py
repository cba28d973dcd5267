"""The files of a model's repository."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from training.network import Network
from training.tokenizer import END, STOP

DRAFT_NAMES = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "post_norm": "norm",
    "mtp_block": "layers.0",
}
PIXELS = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def draft_tensors(network: Network) -> dict[str, Tensor]:
    """Name the draft head's tensors as a Qwen3.6 checkpoint does."""
    tensors = {}
    for name, tensor in network.draft.state_dict().items():
        first, rest = name.split(".", 1)
        tensors[f"mtp.{DRAFT_NAMES[first]}.{rest}"] = tensor
    return tensors


def save_weights(network: Network, out: Path, shards: int = 2) -> None:
    """Write the tensors in shards of about equal size, with the index that ties them together."""
    tensors = {**network.main.state_dict(), **draft_tensors(network)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    written = 0
    for name, tensor in tensors.items():
        parts[min(shards - 1, written * shards // total)][name] = tensor
        written += tensor.nbytes
    where = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file(part, out / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))},
    )


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_texts(network: Network, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the configuration, tokenizer, chat template and processor files."""
    config = copy.deepcopy(network.main.config)
    config.architectures = [type(network.main).__name__]
    for part in (config, config.text_config, config.vision_config):
        part.dtype = torch.bfloat16
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    stop, end = tokenizer.convert_tokens_to_ids([STOP, END])
    write_json(
        out / "generation_config.json",
        {"do_sample": False, "eos_token_id": [stop, end], "pad_token_id": end},
    )
    sizes = {"shortest_edge": 4096, "longest_edge": 65536}
    image = {**PIXELS, "size": sizes, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**PIXELS, "size": sizes, "video_processor_type": "Qwen3VLVideoProcessor"}
    processor = {"processor_class": "Qwen3VLProcessor"}
    write_json(out / "preprocessor_config.json", {**image, **processor})
    write_json(out / "video_preprocessor_config.json", {**video, **processor})
