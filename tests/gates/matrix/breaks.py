"""Ways to break a release's files. Each is served, and the gates see what was served."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.faults.inject import Array, Copy

PACKED, SCALES = ".weight", ".weight_scale"
EXPERT = re.compile(r"\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight$")


@dataclass(frozen=True)
class Break:
    """One fault: how the folder is damaged, and what is served beside it.

    Attributes:
        flags: more flags for the engine.
        served: damages what the engine serves while the gates see the untouched folder.
        name: the name it is served under, where that is the fault.
    """

    name: str
    make: Callable[[Copy], None] = lambda copy: None
    flags: tuple[str, ...] = ()
    served: Callable[[Copy], None] | None = None
    served_name: str | None = None
    notes: str = field(default="")


def _zero(array: Array) -> Array:
    return np.zeros_like(array)


def _each(copy: Copy, wanted: Callable[[str], bool], edit: Callable[[Array], Array]) -> None:
    names = [name for name in copy.files.tensors if wanted(name)]
    assert names, "nothing to break"
    copy.rewrite({name: edit(copy.files.array(name).copy()) for name in names})


def draft_zeroed(copy: Copy) -> None:
    _each(copy, lambda n: n.startswith("mtp.layers.") and n.endswith(PACKED), _zero)


def draft_of_another_seed(copy: Copy) -> None:
    draw = np.random.default_rng(1)

    def other(array: Array) -> Array:
        return draw.permutation(array.reshape(-1)).reshape(array.shape)

    wide = {n for n, i in copy.files.tensors.items() if n.startswith("mtp.") and len(i.shape) > 1}
    _each(copy, lambda n: n in wide and n.endswith((PACKED, SCALES)), other)


def fc_halves_swapped(copy: Copy) -> None:
    copy.edit("mtp.fc.weight", lambda a: np.roll(a, a.shape[1] // 2, axis=1))


def garbage_that_agrees(copy: Copy) -> None:
    """Target and draft both say one token: perfect agreement, nonsense."""

    def pinned(array: Array) -> Array:
        array[:] = 0
        return array

    _each(copy, lambda n: n.endswith("lm_head.weight"), pinned)


def _scale(copy: Copy, within: str, edit: Callable[[Array], Array]) -> None:
    _each(copy, lambda n: within in n and n.endswith(("k_scale", "v_scale")), edit)


def main_k_scale_one(copy: Copy) -> None:
    _scale(copy, "model.", np.ones_like)


def draft_k_scale_one(copy: Copy) -> None:
    _scale(copy, "mtp.", np.ones_like)


def main_k_scale_100(copy: Copy) -> None:
    _scale(copy, "model.", lambda a: (a * 100).astype(a.dtype))


def draft_k_scale_100(copy: Copy) -> None:
    _scale(copy, "mtp.", lambda a: (a * 100).astype(a.dtype))


def expert_zeroed(copy: Copy) -> None:
    _each(
        copy,
        lambda n: "model." in n and ".layers.1.mlp.experts.0." in n and n.endswith(PACKED),
        _zero,
    )


def block_scales_shifted(copy: Copy) -> None:
    _each(
        copy,
        lambda n: "model." in n and ".layers.1." in n and n.endswith(SCALES),
        lambda a: np.roll(a, 1, axis=-1),
    )


def block_scales_shuffled(copy: Copy) -> None:
    draw = np.random.default_rng(3)
    _each(
        copy,
        lambda n: "model." in n and ".layers.1." in n and n.endswith(SCALES),
        lambda a: draw.permutation(a.reshape(-1)).reshape(a.shape),
    )


def signs_lost(copy: Copy) -> None:
    _each(copy, lambda n: ".layers.1." in n and _is_packed(copy, n), lambda a: a & 0x77)


def _is_packed(copy: Copy, name: str) -> bool:
    return copy.files.tensors[name].dtype == "U8"


def draft_experts_exchanged(copy: Copy) -> None:
    _exchange_experts(copy, "mtp.layers.0.")


def experts_exchanged(copy: Copy) -> None:
    _exchange_experts(copy, "model.language_model.layers.1.")


def _exchange_experts(copy: Copy, layer: str) -> None:
    """Each expert of a layer gets the next one's tensors, the router stays."""
    files, part = copy.files, re.compile(re.escape(layer) + r"mlp\.experts\.(\d+)\.(.+)")
    found = {name: match for name in files.tensors if (match := part.match(name))}
    count = 1 + max(int(match[1]) for match in found.values())
    copy.rewrite(
        {
            name: files.array(f"{layer}mlp.experts.{(int(match[1]) + 1) % count}.{match[2]}").copy()
            for name, match in found.items()
        }
    )


def kv_heads_swapped(copy: Copy) -> None:
    """K of one head beside V of another."""
    _each(
        copy,
        lambda n: n.startswith("model.") and n.endswith(("k_proj.weight", "k_proj.weight_scale")),
        lambda a: np.roll(a, len(a) // 2, axis=0),
    )


def norms_at_their_start(copy: Copy) -> None:
    _each(copy, lambda n: n.startswith("model.") and n.endswith("layernorm.weight"), np.zeros_like)


def rope_theta_of_another_model(copy: Copy) -> None:
    def edit(tree: dict[str, Any]) -> None:
        tree["text_config"]["rope_parameters"]["rope_theta"] = 1e7

    copy.edit_json("config.json", edit)


def _template(copy: Copy, old: str, new: str) -> None:
    text = (copy.root / "chat_template.jinja").read_text(encoding="utf-8")
    assert old in text, "nothing to break"
    copy.replace("chat_template.jinja", text.replace(old, new).encode())


def template_of_the_last_turn(copy: Copy) -> None:
    _template(copy, "in messages", "in messages[-1:]")


def template_without_generation_prompt(copy: Copy) -> None:
    _template(copy, "if add_generation_prompt", "if false")


def nibbles_swapped(copy: Copy) -> None:
    packed = {n for n, i in copy.files.tensors.items() if i.dtype == "U8" and "model." in n}
    _each(copy, lambda n: n in packed, lambda a: ((a >> 4) | (a << 4)).astype(np.uint8))


def gate_and_up_swapped(copy: Copy) -> None:
    files = copy.files
    changed: dict[str, Array] = {}
    for name in files.tensors:
        match = re.search(r"\.layers\.\d+\.mlp\.experts\.\d+\.(gate|up)_proj\.", name)
        if match and name.startswith("model."):
            other = {"gate": "up", "up": "gate"}[match[1]]
            twin = name.replace(f".{match[1]}_proj.", f".{other}_proj.")
            changed[name] = files.array(twin).copy()
    copy.rewrite(changed)


def lm_head_permuted(copy: Copy) -> None:
    draw = np.random.default_rng(2)
    _each(copy, lambda n: n.endswith("lm_head.weight"), lambda a: a[draw.permutation(len(a))])


def chat_template_lost(copy: Copy) -> None:
    (copy.root / "chat_template.jinja").unlink(missing_ok=True)
    copy.edit_json("tokenizer_config.json", lambda tree: tree.pop("chat_template", None))


def eos_missing(copy: Copy) -> None:
    def drop(tree: dict[str, Any]) -> None:
        tree.pop("eos_token_id", None)
        for part in tree.values():
            if isinstance(part, dict):
                part.pop("eos_token_id", None)

    copy.edit_json("generation_config.json", drop)
    copy.edit_json("config.json", drop)
    copy.edit_json("tokenizer_config.json", lambda tree: tree.pop("eos_token", None))


def draft_as_bf16(copy: Copy) -> None:
    """Dequantize the draft head and drop its scales: what a BF16 head looks like."""
    from ml_dtypes import bfloat16

    files = copy.files
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    grid = np.concatenate([grid, -grid])
    changed: dict[str, Array] = {}
    dropped: list[str] = []
    for name, info in files.tensors.items():
        if not name.startswith("mtp."):
            continue
        if name.endswith(("_scale", "_scale_2", "k_scale", "v_scale")):
            dropped.append(name)
        elif info.dtype == "U8":
            base = name.removesuffix("weight")
            packed = files.array(name)
            codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
            blocks = files.array(f"{base}weight_scale").astype(np.float32)
            scale = blocks * float(files.array(f"{base}weight_scale_2").reshape(-1)[0])
            changed[name] = (grid[codes] * np.repeat(scale, 16, axis=1)).astype(bfloat16)
    modules = [name.removesuffix(".weight") for name in changed]
    copy.rewrite(changed, dropped)
    copy.exclude(add=modules)


BREAKS = [
    Break("draft weights zeroed", draft_zeroed),
    Break("draft from another seed", draft_of_another_seed),
    Break("mtp.fc halves swapped", fc_halves_swapped),
    Break("draft and target garbage, agreeing", garbage_that_agrees),
    Break("main k_scale, v_scale 1.0", main_k_scale_one),
    Break("draft k_scale, v_scale 1.0", draft_k_scale_one),
    Break("main k_scale, v_scale 100 times", main_k_scale_100),
    Break("draft k_scale, v_scale 100 times", draft_k_scale_100),
    Break("one expert zeroed", expert_zeroed),
    Break("one layer's block scales shifted", block_scales_shifted),
    Break("one layer's block scales shuffled", block_scales_shuffled),
    Break("one layer's signs lost", signs_lost),
    Break("draft's experts exchanged", draft_experts_exchanged),
    Break("one layer's experts exchanged", experts_exchanged),
    Break("K heads swapped, V heads not", kv_heads_swapped),
    Break("norms as before training", norms_at_their_start),
    Break("rope_theta of another model", rope_theta_of_another_model),
    Break("chat template reads the last turn only", template_of_the_last_turn),
    Break("chat template without generation prompt", template_without_generation_prompt),
    Break("nibbles swapped", nibbles_swapped),
    Break("gate and up swapped", gate_and_up_swapped),
    Break("lm_head rows permuted", lm_head_permuted),
    Break("chat template lost", chat_template_lost),
    Break("EOS missing", eos_missing),
    Break("engine drops the draft's KV scales", flags=("--draft-kv-scales=ignore",)),
    Break("BF16 draft served, quantized in files", served=draft_as_bf16),
    Break("quantized draft served, BF16 in files", make=draft_as_bf16, served=lambda copy: None),
    Break("another model than asked", served_name="other", served=draft_of_another_seed),
]
