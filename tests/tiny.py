"""Tiny source models with random weights, for tests that need the form and not the sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

Layout = Literal["fused", "per-expert", "dense"]

HIDDEN, LAYERS, EXPERTS, INTER, HEADS, KV_HEADS, HEAD_DIM = 256, 4, 8, 128, 4, 2, 64
FP8_BLOCK = 128
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_source(
    folder: Path,
    layout: Layout = "fused",
    *,
    seed: int = 0,
    shards: int = 2,
    mtp: Literal["tail", "apart", "none"] = "tail",
    mtp_dtype: Literal["bf16", "fp8"] = "bf16",
    **text: Any,
) -> Path:
    """Write a random model of the released family (3 linear, 1 full attention) to `folder`.

    Args:
        folder: created; returned.
        layout: naming of the draft head; `dense` is the architecture without experts.
        seed: of the weights.
        shards: files of the main model; 1: a single model.safetensors without an index.
        mtp: draft head in the last shard, in an mtp.safetensors of its own, or left out.
        mtp_dtype: `fp8` stores the head's linears in blocks of 128x128 with `weight_scale_inv`.
        text: overrides of the text config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    main = _main_tensors(folder, layout == "dense", generator, text)
    head = {} if mtp == "none" else _head_tensors(layout, generator, text)
    if mtp_dtype == "fp8":
        head = _as_fp8(head)
    _write_weights(folder, main, head, shards, apart=mtp == "apart")
    _write_sidecars(folder)
    return folder


def write_calibration(path: Path, rows: int = 16) -> Path:
    """GSM8K-like rows, `question` and `answer`, one JSON object a line."""
    lines = []
    for index in range(rows):
        a, b = 13 * index + 7, 5 * index + 3
        question = f"Tom has {a} apples and buys {b} more. How many apples does Tom have?"
        lines.append(
            {"question": question, "answer": f"Tom has {a} + {b} = {a + b}.\n#### {a + b}"}
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tiny_config(dense: bool = False, **text: Any) -> Any:
    """The transformers config of the tiny model."""
    from transformers import Qwen3_5Config, Qwen3_5MoeConfig

    common: dict[str, Any] = {
        "vocab_size": 512,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "max_position_embeddings": 4096,
        "mtp_num_hidden_layers": 1,
        "dtype": "bfloat16",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    moe = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": INTER,
        "shared_expert_intermediate_size": INTER,
    }
    common |= {"intermediate_size": INTER} if dense else moe
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
    }
    build = Qwen3_5Config if dense else Qwen3_5MoeConfig
    config = build(
        text_config=common | text,
        vision_config=vision,
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=3,
        vision_end_token_id=4,
        tie_word_embeddings=False,
    )
    config.architectures = [f"Qwen3_5{'' if dense else 'Moe'}ForConditionalGeneration"]
    config.dtype = "bfloat16"
    return config


def _main_tensors(
    folder: Path, dense: bool, generator: torch.Generator, text: dict[str, Any]
) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForImageTextToText

    config = tiny_config(dense, **text)
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    return {
        name: _random(name, tuple(value.shape), generator)
        for name, value in model.state_dict().items()
    }


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "A_log":
        values = values.abs() + 0.5
    elif "norm" in name and "visual" not in name:
        # Gated norms multiply by the weight, plain ones by 1 + weight.
        values = values * 0.1 + ("linear_attn" in name)
    elif name.endswith("embed_tokens.weight"):
        values = values * 0.5
    elif len(shape) > 1:
        values = values * shape[-1] ** -0.5
    else:
        values = values * 0.05
    return values.to(torch.bfloat16)


def _head_tensors(
    layout: Layout, generator: torch.Generator, text: dict[str, Any]
) -> dict[str, torch.Tensor]:
    hidden, experts = text.get("hidden_size", HIDDEN), text.get("num_experts", EXPERTS)
    inter = text.get("moe_intermediate_size", INTER)
    query = 2 * HEADS * HEAD_DIM  # queries and their output gates
    value = KV_HEADS * HEAD_DIM
    layer = "mtp.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "mtp.fc.weight": (hidden, 2 * hidden),
        "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,),
        "mtp.pre_fc_norm_hidden.weight": (hidden,),
        f"{layer}.input_layernorm.weight": (hidden,),
        f"{layer}.post_attention_layernorm.weight": (hidden,),
        f"{layer}.self_attn.q_proj.weight": (query, hidden),
        f"{layer}.self_attn.k_proj.weight": (value, hidden),
        f"{layer}.self_attn.v_proj.weight": (value, hidden),
        f"{layer}.self_attn.o_proj.weight": (hidden, query // 2),
        f"{layer}.self_attn.q_norm.weight": (HEAD_DIM,),
        f"{layer}.self_attn.k_norm.weight": (HEAD_DIM,),
    }
    mlp = {"gate_proj": (inter, hidden), "up_proj": (inter, hidden), "down_proj": (hidden, inter)}
    if layout == "dense":
        shapes |= {f"{layer}.mlp.{leaf}.weight": shape for leaf, shape in mlp.items()}
    else:
        shapes |= {f"{layer}.mlp.shared_expert.{leaf}.weight": s for leaf, s in mlp.items()}
        shapes[f"{layer}.mlp.gate.weight"] = (experts, hidden)
        shapes[f"{layer}.mlp.shared_expert_gate.weight"] = (1, hidden)
    if layout == "fused":
        shapes[f"{layer}.mlp.experts.gate_up_proj"] = (experts, 2 * inter, hidden)
        shapes[f"{layer}.mlp.experts.down_proj"] = (experts, hidden, inter)
    if layout == "per-expert":
        for index in range(experts):
            prefix = f"{layer}.mlp.experts.{index}"
            shapes |= {f"{prefix}.{leaf}.weight": shape for leaf, shape in mlp.items()}
    return {name: _random(name, shape, generator) for name, shape in shapes.items()}


def _as_fp8(head: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Block-128 FP8 of all linears but fc, router and shared-expert gate (W = fp8 * scale_inv)."""
    out: dict[str, torch.Tensor] = {}
    keep = ("mtp.fc.weight", ".mlp.gate.weight", "shared_expert_gate.weight")
    for name, value in head.items():
        if value.ndim < 2 or name.endswith(keep):
            out[name] = value
            continue
        *lead, rows, columns = value.shape
        blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        padded = torch.zeros(*lead, blocks[0] * FP8_BLOCK, blocks[1] * FP8_BLOCK)
        padded[..., :rows, :columns] = value.float()
        tiles = padded.unflatten(-1, (blocks[1], FP8_BLOCK)).unflatten(-3, (blocks[0], FP8_BLOCK))
        scale = tiles.abs().amax(dim=(-3, -1), keepdim=True).clamp(min=1e-12) / 448
        coded = (tiles / scale).flatten(-4, -3).flatten(-2, -1)[..., :rows, :columns]
        out[name] = coded.to(torch.float8_e4m3fn).contiguous()
        out[f"{name}_scale_inv"] = scale.squeeze(-1).squeeze(-2).to(torch.float32).contiguous()
    return out


def _write_weights(
    folder: Path,
    main: dict[str, torch.Tensor],
    head: dict[str, torch.Tensor],
    shards: int,
    *,
    apart: bool,
) -> None:
    names = list(main)
    size = -(-len(names) // shards)
    groups = [{n: main[n] for n in names[i : i + size]} for i in range(0, len(names), size)]
    if not apart:
        groups[-1] |= head
    files = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    if len(groups) == 1:
        files = ["model.safetensors"]
    if apart and head:
        groups.append(head)
        files.append("mtp.safetensors")
    for file, group in zip(files, groups, strict=True):
        save_file(group, folder / file, metadata={"format": "pt"})
    if len(files) == 1:
        return
    weight_map = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    total = sum(t.numel() * t.element_size() for group in groups for t in group.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _write_sidecars(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(
        ["Tom has apples and buys more. How many apples does Tom have? #### user assistant"] * 4,
        trainer,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    generation = {"eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 1.0, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    processor = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2))
