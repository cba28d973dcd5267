"""Shapes: what config.json implies for a module, and how its scales must follow its weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tasks.architectures import text_config
from tasks.gates.audit.model import KV_SCALES, Model, Module
from tasks.gates.audit.result import Findings

BLOCK = 16
Sizes = Mapping[str, int]
Rule = Callable[[Sizes], tuple[int, ...]]

FIELDS = {
    "hidden": "hidden_size",
    "vocab": "vocab_size",
    "heads": "num_attention_heads",
    "kv": "num_key_value_heads",
    "head": "head_dim",
    "experts": "num_experts",
    "expert": "moe_intermediate_size",
    "shared": "shared_expert_intermediate_size",
    "mlp": "intermediate_size",
    "keys": "linear_num_key_heads",
    "values": "linear_num_value_heads",
    "key": "linear_key_head_dim",
    "value": "linear_value_head_dim",
    "conv": "linear_conv_kernel_dim",
}
"""Short name -> field of the text config."""


def _queries(s: Sizes) -> int:
    return s["gated"] * s["heads"] * s["head"]


def _mixed(s: Sizes) -> int:
    return 2 * s["keys"] * s["key"] + s["values"] * s["value"]


RULES: Mapping[tuple[str, str], Rule] = {
    ("attention", "q_proj"): lambda s: (_queries(s), s["hidden"]),
    ("attention", "k_proj"): lambda s: (s["kv"] * s["head"], s["hidden"]),
    ("attention", "v_proj"): lambda s: (s["kv"] * s["head"], s["hidden"]),
    ("attention", "o_proj"): lambda s: (s["hidden"], s["heads"] * s["head"]),
    ("attention-norms", "q_norm"): lambda s: (s["head"],),
    ("attention-norms", "k_norm"): lambda s: (s["head"],),
    ("deltanet", "in_proj_qkv"): lambda s: (_mixed(s), s["hidden"]),
    ("deltanet", "in_proj_z"): lambda s: (s["values"] * s["value"], s["hidden"]),
    ("deltanet", "out_proj"): lambda s: (s["hidden"], s["values"] * s["value"]),
    ("deltanet-gates", "in_proj_a"): lambda s: (s["values"], s["hidden"]),
    ("deltanet-gates", "in_proj_b"): lambda s: (s["values"], s["hidden"]),
    ("deltanet-conv", "conv1d"): lambda s: (_mixed(s), 1, s["conv"]),
    ("deltanet-norm", "norm"): lambda s: (s["value"],),
    ("deltanet-decay", "A_log"): lambda s: (s["values"],),
    ("deltanet-decay", "dt_bias"): lambda s: (s["values"],),
    ("layer-norms", "input_layernorm"): lambda s: (s["hidden"],),
    ("layer-norms", "post_attention_layernorm"): lambda s: (s["hidden"],),
    ("routed-experts", "gate_proj"): lambda s: (s["expert"], s["hidden"]),
    ("routed-experts", "up_proj"): lambda s: (s["expert"], s["hidden"]),
    ("routed-experts", "down_proj"): lambda s: (s["hidden"], s["expert"]),
    ("shared-expert", "gate_proj"): lambda s: (s["shared"], s["hidden"]),
    ("shared-expert", "up_proj"): lambda s: (s["shared"], s["hidden"]),
    ("shared-expert", "down_proj"): lambda s: (s["hidden"], s["shared"]),
    ("mlp", "gate_proj"): lambda s: (s["mlp"], s["hidden"]),
    ("mlp", "up_proj"): lambda s: (s["mlp"], s["hidden"]),
    ("mlp", "down_proj"): lambda s: (s["hidden"], s["mlp"]),
    ("router", "gate"): lambda s: (s["experts"], s["hidden"]),
    ("shared-expert-gate", "shared_expert_gate"): lambda s: (1, s["hidden"]),
    ("embeddings", "embed_tokens"): lambda s: (s["vocab"], s["hidden"]),
    ("lm-head", "lm_head"): lambda s: (s["vocab"], s["hidden"]),
    ("final-norm", "norm"): lambda s: (s["hidden"],),
    ("draft-fc", "fc"): lambda s: (s["hidden"], 2 * s["hidden"]),
    ("draft-norms", "norm"): lambda s: (s["hidden"],),
    ("draft-norms", "pre_fc_norm_embedding"): lambda s: (s["hidden"],),
    ("draft-norms", "pre_fc_norm_hidden"): lambda s: (s["hidden"],),
}
"""(module class, leaf name) -> shape of the unpacked weight, [out, in] for linears."""


def check_shapes(model: Model, findings: Findings) -> None:
    """Every weight has the shape that config.json implies, every scale that of its weight."""
    sizes = _sizes(model.config)
    for module in model.modules.values():
        _check_weight(module, sizes, findings)
        _check_scales(module, findings)


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    text = text_config(config)
    sizes = {short: text[field] for short, field in FIELDS.items() if type(text.get(field)) is int}
    sizes["gated"] = 1 if text.get("attn_output_gate") is False else 2
    return sizes


def _check_weight(module: Module, sizes: Sizes, findings: Findings) -> None:
    weight, rule = module.weight, RULES.get((module.kind.name, module.leaf))
    if weight is None or rule is None:
        return
    try:
        wanted = rule(sizes)
    except KeyError:
        return
    shape = weight.shape
    if module.packed and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    if shape != wanted:
        what = f"Is {list(shape)}, config.json implies {list(wanted)}."
        findings.add("shape-mismatch", weight.name, what)


def _check_scales(module: Module, findings: Findings) -> None:
    weight = module.weight
    for suffix, info in module.tensors.items():
        if suffix in (".weight_scale_2", ".input_scale", *KV_SCALES):
            if info.shape not in ((), (1,)):
                findings.add("shape-mismatch", info.name, f"Is {list(info.shape)}, not a scalar.")
        elif suffix == ".weight_scale" and module.packed and weight is not None:
            wanted = (*weight.shape[:-1], weight.shape[-1] * 2 // BLOCK) if weight.shape else ()
            if info.shape != wanted or len(weight.shape) != 2 or weight.shape[1] % (BLOCK // 2):
                what = f"Is {list(info.shape)}, the packed weight {list(weight.shape)}."
                findings.add("shape-mismatch", info.name, what)
