"""The exclude lists name the head's BF16 modules, all of them and nothing else."""

from __future__ import annotations

import re

import pytest

from tasks.requant.excludes import corrected, draft_entries

LAYER = "mtp.layers.0"
ATTENTION = [f"{LAYER}.self_attn.{leaf}_proj" for leaf in "qkvo"]
NORMS = [f"{LAYER}.self_attn.q_norm", f"{LAYER}.input_layernorm", "mtp.norm"]
EXPERTS = [f"{LAYER}.mlp.experts.{n}.{p}_proj" for n in range(12) for p in ("gate", "up", "down")]
SHARED = [f"{LAYER}.mlp.shared_expert.{p}_proj" for p in ("gate", "up", "down")]
SMALL = ["mtp.fc", f"{LAYER}.mlp.gate", f"{LAYER}.mlp.shared_expert_gate"]

RECIPES = {
    "nvfp4": (SMALL + NORMS, ATTENTION + EXPERTS + SHARED),
    "nvfp4_mlp_only": (SMALL + NORMS + ATTENTION, EXPERTS + SHARED),
    "nvfp4_experts_only": (SMALL + NORMS + ATTENTION + SHARED, EXPERTS),
    "bf16": (SMALL + NORMS + ATTENTION + SHARED + EXPERTS, []),
}


def _excluded(name: str, entries: list[str]) -> bool:
    """A name against the entries, `*` standing for anything, as serving engines match."""
    patterns = (re.escape(entry).replace(r"\*", ".*") for entry in entries)
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_kept_module_and_no_other(recipe: str) -> None:
    kept, quantized = RECIPES[recipe]
    entries = draft_entries(kept, quantized)
    assert all(_excluded(name, entries) for name in kept)
    assert not any(_excluded(name, entries) for name in quantized)


def test_fused_modules_match_by_their_prefix() -> None:
    entries = draft_entries(*RECIPES["bf16"])
    for prefix in (
        f"{LAYER}.mlp.experts",
        f"{LAYER}.self_attn.qkv_proj",
        f"{LAYER}.mlp.shared_expert.gate_up_proj",
    ):
        assert _excluded(prefix, entries), prefix
    assert not _excluded(f"{LAYER}.mlp.experts", draft_entries(*RECIPES["nvfp4_experts_only"]))
    assert len(entries) < 20


@pytest.mark.parametrize("blanket", ["mtp*", "mtp.*", "mtp.layers.0*", "mtp", "*mtp*"])
def test_blanket_entries_go(blanket: str) -> None:
    kept, quantized = RECIPES["nvfp4"]
    before = ["lm_head", blanket, "model.visual*", "mtp.layers.0.mlp.experts*"]
    after = corrected(before, kept, quantized)
    assert {"lm_head", "model.visual*", "mtp.fc"} <= set(after)
    assert not any(_excluded(name, after) for name in quantized)
    assert after == sorted(after) and corrected(after, kept, quantized) == after


def test_entries_of_the_main_model_stay() -> None:
    main = ["model.language_model.layers.3.self_attn*", "model.visual*", "lm_head"]
    assert set(main) <= set(corrected(main, *RECIPES["nvfp4"]))
