"""The architecture table: what it recognises, what it expects, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tasks import architectures
from tasks.architectures import ARCHITECTURES
from tasks.errors import BadInputError

MOE = ARCHITECTURES["Qwen3_5MoeForConditionalGeneration"]
DENSE = ARCHITECTURES["Qwen3_5ForConditionalGeneration"]
REAL: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "text_config": {"num_hidden_layers": 40, "num_experts": 256, "mtp_num_hidden_layers": 1},
}
FUSED, PER_EXPERT = MOE.layouts


def test_layouts_have_the_published_numbers_of_keys() -> None:
    assert len(architectures.draft_tensors(FUSED, REAL)) == 19
    assert len(architectures.draft_tensors(PER_EXPERT, REAL)) == 785


@pytest.mark.parametrize("layout", [FUSED, PER_EXPERT])
def test_a_layout_is_told_by_its_keys(layout: architectures.DraftLayout) -> None:
    names = [*architectures.draft_tensors(layout, REAL), "lm_head.weight"]
    scales = [f"{name}_scale_inv" for name in names if "proj" in name]
    assert architectures.draft_layout(MOE, REAL, names + scales, "here") is layout


def test_unknown_layout_is_refused_by_name() -> None:
    names = set(architectures.draft_tensors(FUSED, REAL))
    strange = names - {"mtp.fc.weight"} | {"mtp.eh_proj.weight"}
    with pytest.raises(BadInputError) as error:
        architectures.draft_layout(MOE, REAL, strange, "here")
    assert error.value.code == "draft-layout"
    assert "qwen3.6-fused" in str(error.value) and "mtp.eh_proj.weight" in str(error.value)


def test_no_draft_head_is_its_own_error() -> None:
    with pytest.raises(BadInputError) as error:
        architectures.draft_layout(MOE, REAL, ["lm_head.weight"], "here")
    assert error.value.code == "draft-missing"


def test_layers_follow_the_interval_or_the_list() -> None:
    assert architectures.last_full_attention(REAL) == 39
    assert architectures.layer_types(REAL)[:4] == (*["linear_attention"] * 3, "full_attention")
    text = {"layer_types": ["full_attention", "linear_attention"], "num_hidden_layers": 2}
    assert architectures.last_full_attention({"text_config": text}) == 0
    with pytest.raises(BadInputError):
        architectures.last_full_attention({"text_config": {"layer_types": ["linear_attention"]}})


@pytest.mark.parametrize(
    ("tensor", "name", "layer", "expert"),
    [
        ("model.language_model.layers.3.self_attn.q_proj.weight_scale", "attention", 3, None),
        ("model.language_model.layers.3.self_attn.k_proj.k_scale", "attention", 3, None),
        ("model.language_model.layers.0.mlp.experts.17.up_proj.weight", "routed-experts", 0, 17),
        ("model.language_model.layers.0.mlp.gate.weight", "router", 0, None),
        ("model.language_model.layers.0.linear_attn.A_log", "deltanet-decay", 0, None),
        ("model.visual.blocks.0.attn.qkv.bias", "vision", None, None),
        ("mtp.layers.0.mlp.experts.2.down_proj.input_scale", "routed-experts", 0, 2),
        ("mtp.fc.weight", "draft-fc", None, None),
    ],
)
def test_tensors_are_recognised(
    tensor: str, name: str, layer: int | None, expert: int | None
) -> None:
    match = architectures.classify(MOE, tensor)
    assert match is not None
    assert (match.module_class.name, match.layer, match.expert) == (name, layer, expert)
    assert match.draft == tensor.startswith("mtp.")


@pytest.mark.parametrize(
    "tensor",
    [
        "model.language_model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.self_attn.q_proj.weight",
        "mtp.layers.0.linear_attn.out_proj.weight",
        "model.language_model.layers.0.linear_attn.A_log.weight",
        "model.language_model.layers.x.mlp.gate.weight",
    ],
)
def test_foreign_names_are_not_recognised(tensor: str) -> None:
    assert architectures.classify(MOE, tensor) is None


def test_every_expected_module_is_recognised_as_its_own_class() -> None:
    config = {"text_config": {"num_hidden_layers": 8, "num_experts": 4}}
    for architecture in (MOE, DENSE):
        found = list(architectures.expected_modules(architecture, config, draft=True))
        assert len({name for name, _ in found}) == len(found)
        for name, item in found:
            tensor = name if item.bare else f"{name}.weight"
            match = architectures.classify(architecture, tensor)
            assert match is not None and match.module_class is item, name


def test_counts_of_the_real_model() -> None:
    counts: dict[str, int] = {}
    for _, item in architectures.expected_modules(MOE, REAL, draft=True):
        counts[item.name] = counts.get(item.name, 0) + 1
    assert counts["routed-experts"] == 41 * 256 * 3
    assert counts["attention"] == (10 + 1) * 4
    assert counts["deltanet"] == 30 * 3
    assert counts["lm-head"] == 1


def test_tied_embeddings_have_no_head_of_their_own() -> None:
    config = {"tie_word_embeddings": True, "text_config": {"num_hidden_layers": 4}}
    names = {name for name, _ in architectures.expected_modules(DENSE, config, draft=False)}
    assert "lm_head" not in names and "model.language_model.embed_tokens" in names


def test_amax_groups_and_analogues() -> None:
    stem = "model.language_model.layers.0.mlp.experts.3"
    assert architectures.amax_group(MOE, f"{stem}.up_proj") == (
        f"{stem}.gate_proj",
        f"{stem}.up_proj",
    )
    assert architectures.amax_group(MOE, f"{stem}.down_proj") == (f"{stem}.down_proj",)
    assert (
        architectures.main_analogue(MOE, REAL, "mtp.layers.0.mlp.experts.3.up_proj")
        == "model.language_model.layers.39.mlp.experts.3.up_proj"
    )
    assert architectures.main_analogue(MOE, REAL, "mtp.fc") is None


@pytest.mark.parametrize("names", [["LlamaForCausalLM"], [], None, ["A", "B"], "text"])
def test_unsupported_architecture_is_named(names: Any) -> None:
    with pytest.raises(BadInputError) as error:
        architectures.architecture_of({"architectures": names}, "m/config.json")
    assert error.value.code == "architecture-unsupported"
    assert "m/config.json" in str(error.value)
