"""Faults of the values: scales and codes that no right packer gives for this model."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tests.faults.inject import LAYER, MTP, Array, Copy, fault
from tests.faults.tensors import packed_modules

FP8 = ml_dtypes.float8_e4m3fn


def set_first(value: float, dtype: type | np.dtype | None = None):  # type: ignore[no-untyped-def, type-arg]
    def edit(array: Array) -> Array:
        array.reshape(-1)[0] = value
        return array

    return edit


def times(factor: float):  # type: ignore[no-untyped-def]
    return lambda array: (array.astype(np.float32) * np.float32(factor)).astype(array.dtype)


def swap(c: Copy, one: str, other: str, suffixes: tuple[str, ...]) -> None:
    pairs = [(one + s, other + s) for s in suffixes]
    arrays = {name: c.files.array(name).copy() for pair in pairs for name in pair}
    c.rewrite({a: arrays[b] for a, b in pairs} | {b: arrays[a] for a, b in pairs})


WHOLE = (".weight", ".weight_scale")
EXPERT = f"{LAYER}.1.mlp.experts"


@fault("scale-nonfinite")
def nan_block_scale(c: Copy) -> None:
    c.edit(f"{EXPERT}.0.gate_proj.weight_scale", set_first(np.nan))


@fault("scale-nonfinite")
def infinite_scale_2(c: Copy) -> None:
    c.edit(f"{EXPERT}.0.down_proj.weight_scale_2", set_first(np.inf))


@fault("scale-nonfinite")
def nan_input_scale(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.o_proj.input_scale", set_first(np.nan))


@fault("scale-nonfinite")
def nan_k_scale(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.k_proj.k_scale", set_first(np.nan))


@fault("scale-zero")
def zero_block_scale(c: Copy) -> None:
    c.edit(f"{EXPERT}.2.up_proj.weight_scale", set_first(0))


@fault("scale-zero")
def zero_scale_2(c: Copy) -> None:
    c.edit(f"{EXPERT}.2.down_proj.weight_scale_2", set_first(0))


@fault("scale-zero")
def zero_input_scale(c: Copy) -> None:
    c.edit(f"{LAYER}.0.linear_attn.out_proj.input_scale", set_first(0))


@fault("scale-zero")
def unseen_draft_expert_got_a_zero(c: Copy) -> None:
    for leaf in ("gate_proj", "up_proj"):
        c.edit(f"{MTP}.mlp.experts.3.{leaf}.input_scale", set_first(0))


@fault("scale-negative")
def negative_scale_2(c: Copy) -> None:
    c.edit(f"{EXPERT}.4.down_proj.weight_scale_2", times(-1))


@fault("scale-negative")
def negative_block_scales(c: Copy) -> None:
    c.edit(f"{EXPERT}.4.down_proj.weight_scale", lambda a: (a.view(np.uint8) | 0x80).view(FP8))


@fault("scale-outlier")
def scale_2_of_an_expert_x1000(c: Copy) -> None:
    c.edit(f"{EXPERT}.5.down_proj.weight_scale_2", times(1000))


@fault("scale-outlier")
def scale_2_of_out_proj_x100(c: Copy) -> None:
    c.edit(f"{LAYER}.2.linear_attn.out_proj.weight_scale_2", times(100))


@fault("scale-outlier")
def scale_2_of_draft_o_proj_over_1000(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.o_proj.weight_scale_2", times(1e-3))


@fault("scale-outlier")
def input_scales_of_a_layer_x1000(c: Copy) -> None:
    names = c.names("_proj.input_scale", f"{LAYER}.1.mlp.")
    c.rewrite({name: times(1000)(c.files.array(name)) for name in names})


@fault("scale-outlier")
def input_scales_of_gdn_over_1000(c: Copy) -> None:
    names = [f"{LAYER}.0.linear_attn.in_proj_{leaf}.input_scale" for leaf in ("qkv", "z")]
    c.rewrite({name: times(1e-3)(c.files.array(name)) for name in names})


@fault("scale-outlier")
def input_scale_of_o_proj_x100(c: Copy) -> None:
    c.edit(c.find("o_proj.input_scale", LAYER), times(100))


@fault("scale-outlier")
def input_scale_of_shared_down_x100000(c: Copy) -> None:
    c.edit(f"{LAYER}.0.mlp.shared_expert.down_proj.input_scale", times(1e5))


@fault("scale-outlier")
def input_scale_of_draft_expert_x1000(c: Copy) -> None:
    names = [f"{MTP}.mlp.experts.3.{leaf}_proj.input_scale" for leaf in ("gate", "up")]
    c.rewrite({name: times(1000)(c.files.array(name)) for name in names})


@fault("scale-outlier")
def draft_k_scale_x1000(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.k_proj.k_scale", times(1000))


@fault("scale-outlier")
def main_k_scale_over_1000(c: Copy) -> None:
    c.edit(c.find("k_proj.k_scale", LAYER), times(1e-3))


@fault("scale-outlier")
def main_v_scale_x1000(c: Copy) -> None:
    c.edit(c.find("v_proj.v_scale", LAYER), times(1000))


@fault("scale-outlier")
def main_v_scale_over_100(c: Copy) -> None:
    c.edit(c.find("v_proj.v_scale", LAYER), times(1e-2))


@fault("kv-scale-default")
def draft_kv_scales_are_one(c: Copy) -> None:
    c.rewrite(
        {name: set_first(1)(c.files.array(name).copy()) for name in c.names("k_scale", MTP)}
        | {name: set_first(1)(c.files.array(name).copy()) for name in c.names("v_scale", MTP)}
    )


@fault("scale-not-shared")
def gate_and_up_of_different_scale_2(c: Copy) -> None:
    c.edit(f"{EXPERT}.6.up_proj.weight_scale_2", times(1.25))


@fault("scale-not-shared")
def q_k_v_of_different_scale_2(c: Copy) -> None:
    c.edit(c.find("v_proj.weight_scale_2", LAYER), times(0.5))


@fault("scale-not-shared")
def qkv_and_z_of_different_scale_2(c: Copy) -> None:
    c.edit(f"{LAYER}.0.linear_attn.in_proj_z.weight_scale_2", times(1.01))


@fault("scale-not-shared")
def draft_q_k_v_of_different_input_scale(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.q_proj.input_scale", times(1.5))


@fault("scale-not-shared")
def one_expert_of_another_input_scale(c: Copy) -> None:
    c.edit(f"{EXPERT}.7.down_proj.input_scale", times(1.5))


@fault("scale-range")
def block_scales_of_a_tensor_halved(c: Copy) -> None:
    c.edit(f"{EXPERT}.0.down_proj.weight_scale", times(0.5))


@fault("scale-range")
def draft_block_scales_halved(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.o_proj.weight_scale", times(0.5))


@fault("codes-mismatch")
def codes_of_a_row_zeroed(c: Copy) -> None:
    def zero(array: Array) -> Array:
        array[3] = 0
        return array

    c.edit(f"{EXPERT}.1.gate_proj.weight", zero)


@fault("codes-mismatch")
def codes_of_one_block_zeroed(c: Copy) -> None:
    def zero(array: Array) -> Array:
        array[5, 8:16] = 0
        return array

    c.edit(f"{MTP}.mlp.experts.1.gate_proj.weight", zero)


@fault("codes-mismatch")
def codes_are_random_bytes(c: Copy) -> None:
    random = np.random.default_rng(0)
    c.edit(f"{EXPERT}.1.up_proj.weight", lambda a: random.integers(0, 256, a.shape, dtype=np.uint8))


@fault("codes-mismatch")
def codes_shifted_by_half_a_block(c: Copy) -> None:
    c.edit(f"{EXPERT}.2.gate_proj.weight", lambda a: np.roll(a, 4, axis=1))


@fault("codes-mismatch")
def codes_packed_column_by_column(c: Copy) -> None:
    def repack(array: Array) -> Array:
        rows, half = array.shape
        codes = np.stack([array & 15, array >> 4], -1).reshape(rows, 2 * half)
        codes = codes.T.reshape(rows, 2 * half)
        return codes[:, ::2] | codes[:, 1::2] << 4

    c.edit(f"{LAYER}.0.linear_attn.out_proj.weight", repack)


@fault("scales-misaligned")
def block_scales_shifted_by_a_row(c: Copy) -> None:
    c.edit(f"{EXPERT}.2.down_proj.weight_scale", lambda a: np.roll(a, 1, axis=0))


@fault("scales-misaligned")
def block_scales_of_a_layer_shifted_by_one(c: Copy) -> None:
    for name in c.names(within=f"{LAYER}.1."):
        if name.endswith(".weight_scale"):
            c.edit(name, lambda a: np.roll(a, 1, axis=-1))


@fault("scales-misaligned")
def draft_block_scales_shifted_by_one(c: Copy) -> None:
    c.edit(f"{MTP}.self_attn.q_proj.weight_scale", lambda a: np.roll(a, -1, axis=-1))


@fault("scales-misaligned")
def block_scales_in_the_order_of_a_kernel(c: Copy) -> None:
    def tiled(a: Array) -> Array:
        rows, columns = a.shape
        tiles = a.reshape(rows // 128, 4, 32, columns // 4, 4).transpose(0, 3, 2, 1, 4)
        return np.ascontiguousarray(tiles).reshape(rows, columns)

    c.edit(f"{LAYER}.0.linear_attn.in_proj_qkv.weight_scale", tiled)


@fault("scales-misaligned")
def block_scales_of_a_layer_shuffled(c: Copy) -> None:
    draw = np.random.default_rng(0)
    for name in c.names(within=f"{LAYER}.1."):
        if name.endswith(".weight_scale"):
            c.edit(name, lambda a: draw.permutation(a.reshape(-1)).reshape(a.shape))


@fault("scales-misaligned")
def block_scales_of_the_next_expert(c: Copy) -> None:
    one, other = (f"{EXPERT}.{e}.down_proj" for e in (1, 2))
    swap(c, one, other, (".weight_scale",))


@fault("scales-misaligned")
def block_scales_of_a_tensor_are_one_value(c: Copy) -> None:
    c.edit(f"{LAYER}.1.linear_attn.in_proj_qkv.weight_scale", lambda a: np.full_like(a, 448))


@fault("signs-lost")
def signs_lost(c: Copy) -> None:
    c.edit(f"{LAYER}.1.linear_attn.out_proj.weight", lambda a: a & 0x77)


@fault("signs-lost")
def signs_of_every_second_element_lost(c: Copy) -> None:
    c.edit(f"{EXPERT}.5.up_proj.weight", lambda a: a & 0xF7)


@fault("signs-lost")
def signs_of_the_draft_s_fc_lost(c: Copy) -> None:
    c.edit("mtp.fc.weight", np.abs)


@fault("zero-weights")
def all_zero_expert(c: Copy) -> None:
    for leaf in ("gate_proj", "up_proj", "down_proj"):
        c.edit(f"{EXPERT}.3.{leaf}.weight", np.zeros_like)


@fault("zero-weights")
def all_zero_router(c: Copy) -> None:
    c.edit(f"{LAYER}.2.mlp.gate.weight", np.zeros_like)


@fault("zero-weights")
def all_zero_draft_fc(c: Copy) -> None:
    c.edit("mtp.fc.weight", np.zeros_like)


@fault("duplicate-weights")
def an_expert_stored_twice(c: Copy) -> None:
    names = c.names(within=f"{EXPERT}.0.")
    c.rewrite({n.replace("experts.0.", "experts.1."): c.files.array(n).copy() for n in names})


@fault("weight-nonfinite")
def nan_in_the_router(c: Copy) -> None:
    c.edit(f"{LAYER}.0.mlp.gate.weight", set_first(np.nan))


@fault("weight-nonfinite")
def infinity_in_the_vision_tower(c: Copy) -> None:
    c.edit(c.find(".weight", "model.visual"), set_first(np.inf))


@fault("weight-nonfinite")
def nan_in_a_norm(c: Copy) -> None:
    c.edit("mtp.norm.weight", set_first(np.nan))


@fault("source-mismatch", needs_source=True)
def gate_and_up_swapped(c: Copy) -> None:
    swap(c, f"{EXPERT}.4.gate_proj", f"{EXPERT}.4.up_proj", WHOLE)


@fault("source-mismatch", needs_source=True)
def two_experts_swapped(c: Copy) -> None:
    leaves = ("gate_proj", "up_proj", "down_proj")
    suffixes = tuple(f".{leaf}{s}" for leaf in leaves for s in (*WHOLE, ".weight_scale_2"))
    swap(c, f"{MTP}.mlp.experts.4", f"{MTP}.mlp.experts.5", suffixes)


@fault("source-mismatch", needs_source=True)
def nibbles_swapped(c: Copy) -> None:
    c.edit(f"{EXPERT}.2.down_proj.weight", lambda a: (a >> 4) | (a << 4))


@fault("source-mismatch", needs_source=True)
def one_bit_flipped(c: Copy) -> None:
    def flip(array: Array) -> Array:
        array[7, 3] ^= 0x08
        return array

    c.edit(f"{EXPERT}.6.gate_proj.weight", flip)


@fault("source-mismatch", needs_source=True)
def scale_2_of_an_expert_5_percent_off(c: Copy) -> None:
    c.edit(f"{EXPERT}.6.down_proj.weight_scale_2", times(1.05))


@fault("source-mismatch", needs_source=True)
def one_block_scale_a_step_off(c: Copy) -> None:
    def step(array: Array) -> Array:
        bits = array.view(np.uint8)
        bits[2, 1] ^= 1
        return array

    c.edit(f"{EXPERT}.6.down_proj.weight_scale", step)


@fault("source-mismatch", needs_source=True)
def layers_swapped(c: Copy) -> None:
    suffixes = tuple(s for s in (*WHOLE, ".weight_scale_2"))
    swap(c, f"{LAYER}.0.linear_attn.out_proj", f"{LAYER}.1.linear_attn.out_proj", suffixes)


@fault("source-mismatch", needs_source=True)
def a_norm_of_another_training_step(c: Copy) -> None:
    c.edit(f"{LAYER}.0.input_layernorm.weight", times(1.02))


@fault("source-mismatch", needs_source=True)
def embedding_row_changed(c: Copy) -> None:
    c.edit(c.find("embed_tokens.weight"), set_first(0.5))


@fault("source-mismatch", needs_source=True)
def draft_fc_halves_swapped(c: Copy) -> None:
    """[embedding, hidden] is the order that engines feed; the other is the field's classic."""
    c.edit("mtp.fc.weight", lambda a: np.roll(a, a.shape[1] // 2, axis=1))


@fault("source-mismatch", needs_source=True)
def q_heads_permuted(c: Copy) -> None:
    module = next(m for m in packed_modules(c, LAYER) if m.endswith("q_proj"))
    c.rewrite({module + s: np.roll(c.files.array(module + s), 64, axis=0) for s in WHOLE})
