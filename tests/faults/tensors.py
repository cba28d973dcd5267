"""Faults of names, dtypes, coverage and the draft head."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tasks.gates.audit.nvfp4 import bf16_bits_to_f32, decode, encode, scales_of, step_of
from tests.faults.inject import LAYER, MTP, Array, Copy, fault

BF16 = ml_dtypes.bfloat16
FP8 = ml_dtypes.float8_e4m3fn
SCALES = ("weight_scale", "weight_scale_2", "input_scale")


def scales_beside(c: Copy, module: str) -> list[str]:
    return [f"{module}.{leaf}" for leaf in SCALES if f"{module}.{leaf}" in c.files.tensors]


def unpacked(c: Copy, module: str) -> Array:
    """The BF16 weight that a packed module stands for."""
    scale_2 = np.float32(c.files.array(f"{module}.weight_scale_2"))
    step = step_of(c.files.array(f"{module}.weight_scale").view(np.uint8), scale_2)
    return decode(c.files.array(f"{module}.weight"), step).astype(BF16)


def dequantize(c: Copy, modules: list[str]) -> None:
    """Store packed modules as BF16, without scales."""
    c.rewrite(
        {f"{module}.weight": unpacked(c, module) for module in modules},
        dropped=[scale for module in modules for scale in scales_beside(c, module)],
    )


def quantize(c: Copy, module: str) -> None:
    """Store a BF16 module as a right NVFP4 one."""
    weight = c.files.array(f"{module}.weight")
    values = bf16_bits_to_f32(weight.view(np.uint16))
    scale_2 = np.float32(np.abs(values).max() / 2688)
    blocks = np.abs(values.reshape(len(values), -1, 16)).max(-1)
    scale = scales_of(blocks, scale_2)
    c.rewrite(
        {f"{module}.weight": encode(weight.view(np.uint16), step_of(scale, scale_2))},
        added={
            f"{module}.weight_scale": scale.view(FP8),
            f"{module}.weight_scale_2": np.asarray(scale_2),
            f"{module}.input_scale": np.asarray(np.float32(0.002)),
        },
    )


def packed_modules(c: Copy, within: str = "") -> list[str]:
    return [n.removesuffix(".weight_scale") for n in c.names(".weight_scale", within)]


def rename(c: Copy, old: str, new: str) -> None:
    c.rewrite(dropped=[old], added={new: c.files.array(old).copy()})


@fault("unknown-tensor")
def scale_under_another_name(c: Copy) -> None:
    name = c.find("experts.0.gate_proj.input_scale")
    rename(c, name, name.replace("input_scale", "act_scale"))


@fault("unknown-tensor")
def layer_beyond_the_last(c: Copy) -> None:
    name = c.find("0.input_layernorm.weight", LAYER)
    c.rewrite(added={name.replace("layers.0", "layers.99"): c.files.array(name).copy()})


@fault("unknown-tensor")
def expert_beyond_the_last(c: Copy) -> None:
    name = c.find("experts.0.up_proj.weight", LAYER)
    c.rewrite(added={name.replace("experts.0", "experts.9999"): c.files.array(name).copy()})


@fault("unknown-tensor")
def calibration_state_left_in(c: Copy) -> None:
    name = c.find("experts.0.gate_proj.input_scale")
    value = c.files.array(name).copy()
    c.rewrite(added={name.replace("input_scale", "input_quantizer._amax"): value})


@fault("tensor-missing")
def norm_missing(c: Copy) -> None:
    c.rewrite(dropped=[c.find("post_attention_layernorm.weight", LAYER)])


@fault("tensor-missing")
def expert_missing(c: Copy) -> None:
    c.rewrite(dropped=c.names(within=f"{LAYER}.1.mlp.experts.3."))


@fault("tensor-missing")
def vision_tower_missing(c: Copy) -> None:
    c.rewrite(dropped=c.names(within="model.visual."))


@fault("tensor-missing", needs_source=True)
def vision_weight_missing(c: Copy) -> None:
    c.rewrite(dropped=[c.find(".weight", "model.visual.merger")])


@fault("tensor-missing")
def head_missing(c: Copy) -> None:
    c.rewrite(dropped=["lm_head.weight"])


@fault("shape-mismatch")
def block_scales_of_another_shape(c: Copy) -> None:
    c.edit(c.find("down_proj.weight_scale"), lambda a: a.reshape(a.shape[0] // 2, -1))


@fault("shape-mismatch")
def weight_transposed(c: Copy) -> None:
    c.edit(c.find("in_proj_a.weight"), lambda a: np.ascontiguousarray(a.T))


@fault("shape-mismatch")
def scalar_scale_for_each_row(c: Copy) -> None:
    c.edit(c.find("o_proj.weight_scale_2"), lambda a: np.full(4, a, np.float32))


@fault("dtype-mismatch")
def declared_module_in_bf16(c: Copy) -> None:
    dequantize(c, [f"{LAYER}.0.linear_attn.out_proj"])


@fault("dtype-mismatch")
def packed_weight_as_int8(c: Copy) -> None:
    c.edit(c.find("out_proj.weight"), lambda a: a.view(np.int8))


@fault("dtype-mismatch")
def block_scales_as_uint8(c: Copy) -> None:
    c.edit(c.find("down_proj.weight_scale"), lambda a: a.view(np.uint8))


@fault("dtype-mismatch")
def scale_2_in_bf16(c: Copy) -> None:
    c.edit(c.find("down_proj.weight_scale_2"), lambda a: a.astype(BF16))


@fault("dtype-mismatch")
def embeddings_in_float32(c: Copy) -> None:
    c.edit(c.find("embed_tokens.weight"), lambda a: a.astype(np.float32))


@fault("coverage")
def nothing_quantized(c: Copy) -> None:
    dequantize(c, packed_modules(c))


@fault("coverage")
def a_class_dequantized(c: Copy) -> None:
    modules = packed_modules(c, "shared_expert.")
    dequantize(c, modules)
    c.exclude(add=modules)


@fault("coverage")
def one_expert_dequantized(c: Copy) -> None:
    modules = packed_modules(c, f"{LAYER}.2.mlp.experts.5.")
    dequantize(c, modules)
    c.exclude(add=modules)


@fault("coverage")
def only_gate_of_gate_and_up(c: Copy) -> None:
    modules = [f"{LAYER}.0.mlp.shared_expert.up_proj"]
    dequantize(c, modules)
    c.exclude(add=modules)


@fault("bits-per-weight")
def half_of_the_experts_dequantized(c: Copy) -> None:
    dequantize(c, [m for m in packed_modules(c, ".experts.") if m.split(".")[6] in "1357"])


for _leaf in SCALES:

    @fault("scale-missing", name=f"{_leaf}_missing")
    def _scale_missing(c: Copy, leaf: str = _leaf) -> None:
        c.rewrite(dropped=[c.find(f"experts.2.down_proj.{leaf}", LAYER)])


@fault("scale-orphan")
def scales_beside_a_bf16_weight(c: Copy) -> None:
    module = f"{LAYER}.1.linear_attn.out_proj"
    c.rewrite({f"{module}.weight": unpacked(c, module)})


@fault("scale-orphan")
def packed_weight_missing(c: Copy) -> None:
    c.rewrite(dropped=[c.find("experts.4.up_proj.weight", LAYER)])


@fault("stale-fused-expert")
def fused_experts_left_behind(c: Copy) -> None:
    experts = [unpacked(c, f"{LAYER}.0.mlp.experts.{e}.down_proj") for e in range(2)]
    c.rewrite(added={f"{LAYER}.0.mlp.experts.down_proj": np.stack(experts)})


@fault("stale-fused-expert")
def fused_draft_experts_left_behind(c: Copy) -> None:
    experts = [unpacked(c, f"{MTP}.mlp.experts.{e}.down_proj") for e in range(2)]
    c.rewrite(added={f"{MTP}.mlp.experts.down_proj": np.stack(experts)})


MUST_STAY = {
    "router": "0.mlp.gate",
    "shared_expert_gate": "0.mlp.shared_expert_gate",
    "in_proj_a": "0.linear_attn.in_proj_a",
    "in_proj_b": "0.linear_attn.in_proj_b",
    "lm_head": "lm_head",
    "embeddings": "embed_tokens",
    "draft_fc": "mtp.fc",
    "draft_router": "mtp.layers.0.mlp.gate",
}
for _name, _ending in MUST_STAY.items():

    @fault("must-be-bf16", name=f"{_name}_quantized")
    def _quantized(c: Copy, ending: str = _ending) -> None:
        quantize(c, c.find(f"{ending}.weight").removesuffix(".weight"))


@fault("must-be-bf16")
def vision_linear_quantized(c: Copy) -> None:
    name = next(
        name
        for name in c.names(".weight", "model.visual.blocks")
        if len(c.files.tensors[name].shape) == 2
    )
    quantize(c, name.removesuffix(".weight"))


@fault("must-be-bf16")
def conv1d_in_fp8(c: Copy) -> None:
    c.edit(c.find("conv1d.weight"), lambda a: a.astype(FP8))


@fault("must-be-bf16")
def scale_beside_a_norm(c: Copy) -> None:
    name = c.find("k_norm.weight", LAYER).replace("weight", "weight_scale")
    c.rewrite(added={name: np.asarray(np.float32(1))})


@fault("dtype-mismatch")
def decay_in_float16(c: Copy) -> None:
    c.edit(c.find("A_log"), lambda a: a.astype(np.float16))


@fault("exclude-mismatch")
def blanket_draft_entry_left_in(c: Copy) -> None:
    c.exclude(add=["mtp*"])


@fault("exclude-mismatch")
def draft_fc_forgotten(c: Copy) -> None:
    c.exclude(drop=lambda entry: entry == "mtp.fc")


@fault("exclude-mismatch")
def draft_router_forgotten(c: Copy) -> None:
    c.exclude(drop=lambda entry: entry == f"{MTP}.mlp.gate")


@fault("exclude-mismatch")
def vision_forgotten(c: Copy) -> None:
    c.exclude(drop=lambda entry: "visual" in entry)


@fault("exclude-mismatch")
def packed_module_excluded(c: Copy) -> None:
    c.exclude(add=[f"{LAYER}.0.linear_attn.out_proj"])


@fault("exclude-mismatch")
def draft_dequantized_and_not_excluded(c: Copy) -> None:
    dequantize(c, packed_modules(c, "mtp."))


@fault("exclude-unmatched")
def exclude_entry_misspelt(c: Copy) -> None:
    c.exclude(add=["model.language_model.layers.0.self_atn*"])


@fault("draft-missing")
def draft_deleted(c: Copy) -> None:
    c.rewrite(dropped=c.names(within="mtp."))


@fault("draft-partial")
def draft_expert_deleted(c: Copy) -> None:
    c.rewrite(dropped=c.names(within=f"{MTP}.mlp.experts.1."))


@fault("draft-partial")
def draft_norm_deleted(c: Copy) -> None:
    c.rewrite(dropped=["mtp.pre_fc_norm_hidden.weight"])


@fault("draft-mixed")
def draft_attention_in_bf16_and_excluded(c: Copy) -> None:
    modules = packed_modules(c, f"{MTP}.self_attn")
    dequantize(c, modules)
    c.exclude(add=modules)


@fault("kv-scale-missing")
def draft_k_scale_deleted(c: Copy) -> None:
    c.rewrite(dropped=[f"{MTP}.self_attn.k_proj.k_scale"])


@fault("kv-scale-missing")
def draft_kv_scales_deleted(c: Copy) -> None:
    c.rewrite(
        dropped=c.names("_scale", f"{MTP}.self_attn.v_proj.v") + c.names("k_scale", f"{MTP}.")
    )


@fault("kv-scale-missing")
def main_v_scale_deleted(c: Copy) -> None:
    c.rewrite(dropped=[c.find("v_proj.v_scale", LAYER)])


@fault("kv-scale-unexpected")
def kv_scale_beside_q(c: Copy) -> None:
    rename(
        c,
        c.find("k_proj.k_scale", LAYER),
        c.find("k_proj.k_scale", LAYER).replace("k_proj", "q_proj"),
    )


@fault("kv-scale-unexpected")
def cache_declared_bf16(c: Copy) -> None:
    c.edit_json(
        "hf_quant_config.json", lambda t: t["quantization"].update(kv_cache_quant_algo=None)
    )
    c.edit_json("config.json", lambda t: t["quantization_config"].pop("kv_cache_scheme"))
