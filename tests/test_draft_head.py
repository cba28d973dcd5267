from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from tasks.draft_head import DraftHead, KvWatch, checkpoint_name, load_draft
from tasks.errors import BadInputError
from tests.tiny import _head_tensors, tiny_config

LAYOUTS = ("fused", "per-expert", "dense")


def raw(layout: str, seed: int = 0) -> dict[str, Tensor]:
    values = _head_tensors(layout, torch.Generator().manual_seed(seed), {})  # type: ignore[arg-type]
    return {name: value.float() for name, value in values.items()}


def text_config(layout: str) -> Any:
    return tiny_config(layout == "dense").text_config


def head_of(layout: str, tensors: dict[str, Tensor], **options: Any) -> DraftHead:
    with torch.device("meta"):
        head = DraftHead(text_config(layout), **options)
    load_draft(head, tensors)
    return head


def inputs(tokens: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(7)
    embeddings, hidden = (torch.randn(2, tokens, 256, generator=draw) for _ in range(2))
    return embeddings, hidden, torch.arange(tokens).expand(2, -1)


def per_expert(fused: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {name: value for name, value in fused.items() if ".experts." not in name}
    prefix = "mtp.layers.0.mlp.experts."
    for number in range(8):
        both = fused[prefix + "gate_up_proj"][number]
        out[f"{prefix}{number}.gate_proj.weight"] = both[:128]
        out[f"{prefix}{number}.up_proj.weight"] = both[128:]
        out[f"{prefix}{number}.down_proj.weight"] = fused[prefix + "down_proj"][number]
    return out


def test_both_layouts_and_both_builds_compute_the_same() -> None:
    fused = raw("fused")
    heads = [
        head_of("fused", fused),
        head_of("fused", fused, per_expert=True),
        head_of("fused", per_expert(fused)),
        head_of("fused", per_expert(fused), per_expert=True),
    ]
    first, *others = (head(*inputs()) for head in heads)
    assert first.shape == (2, 6, 256)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-5)
    swapped = copy.copy(fused)
    name = "mtp.layers.0.mlp.experts.gate_up_proj"
    swapped[name] = fused[name].roll(128, dims=1)
    assert not torch.allclose(head_of("fused", swapped)(*inputs()), first, rtol=1e-3)


def test_output_is_final_normed_and_the_input_order_is_embedding_then_hidden() -> None:
    tensors = raw("fused")
    embeddings, hidden, positions = inputs()
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensors[name])
    fc = tensors["mtp.fc.weight"]

    def normed(values: Tensor, name: str) -> Tensor:
        unit = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-6)
        return unit * (1 + tensors[name])

    joined = normed(embeddings, "mtp.pre_fc_norm_embedding.weight") @ fc[:, :256].T
    joined = joined + normed(hidden, "mtp.pre_fc_norm_hidden.weight") @ fc[:, 256:].T
    expected = normed(joined, "mtp.norm.weight")
    torch.testing.assert_close(
        head_of("fused", tensors)(embeddings, hidden, positions), expected, rtol=1e-4, atol=1e-5
    )


def test_a_cache_gives_what_a_whole_pass_gives() -> None:
    head = head_of("fused", raw("fused"))
    embeddings, hidden, positions = inputs()
    whole = head(embeddings, hidden, positions)
    cache = DynamicCache()
    head(embeddings[:, :5], hidden[:, :5], positions[:, :5], cache)
    last = head(embeddings[:, 5:], hidden[:, 5:], positions[:, 5:], cache)
    torch.testing.assert_close(last, whole[:, 5:], rtol=1e-4, atol=1e-5)
    alone = head(embeddings[:, 5:], hidden[:, 5:], positions[:, 5:])
    assert not torch.allclose(alone, whole[:, 5:], rtol=1e-3)


def test_only_differences_of_positions_matter() -> None:
    head = head_of("fused", raw("fused"))
    embeddings, hidden, positions = inputs()
    moved = head(embeddings, hidden, positions + 11)
    torch.testing.assert_close(moved, head(embeddings, hidden, positions), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_linear_is_reached_by_its_checkpoint_name(layout: str) -> None:
    head = head_of(layout, raw(layout), per_expert=True)
    named = head.linears()
    assert "mtp.fc" in named
    assert "mtp.layers.0.self_attn.k_proj" in named
    wanted = (
        "mtp.layers.0.mlp.up_proj" if layout == "dense" else ("mtp.layers.0.mlp.experts.3.up_proj")
    )
    assert wanted in named
    seen: dict[str, int] = {}
    for name, module in named.items():
        module.register_forward_hook(
            lambda _, args, __, name=name: seen.__setitem__(name, args[0].shape[-1])
        )
    head(*inputs(1))
    assert seen["mtp.fc"] == 512
    experts = {name.split(".experts.")[1].split(".")[0] for name in seen if ".experts." in name}
    # Two tokens choose two experts each: the others must not be called.
    assert len(experts) <= 4


def test_kv_watch_sees_keys_after_rope_and_values() -> None:
    head = head_of("fused", raw("fused"))
    watch = KvWatch()
    embeddings, hidden, positions = inputs()
    same = head(embeddings, hidden, positions, watch)
    torch.testing.assert_close(same, head(embeddings, hidden, positions))
    values: list[Tensor] = []
    head.attention.v_proj.register_forward_hook(lambda *a: values.append(a[2]))
    head(embeddings, hidden, positions)
    assert watch.v_amax == pytest.approx(float(values[0].abs().amax()))
    assert watch.k_amax > 0


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("fused", "mtp.fc.weight"),
        ("fused", "mtp.layers.0.mlp.experts.down_proj"),
        ("per-expert", "mtp.layers.0.mlp.experts.7.up_proj.weight"),
        ("per-expert", "mtp.layers.0.mlp.experts.7.down_proj.weight"),
        ("per-expert", "mtp.layers.0.mlp.experts.2.down_proj.weight"),
        ("dense", "mtp.layers.0.mlp.down_proj.weight"),
    ],
)
def test_what_is_missing_is_named(layout: str, name: str) -> None:
    tensors = raw(layout)
    del tensors[name]
    with pytest.raises(BadInputError, match=re.escape(name)) as caught:
        head_of(layout, tensors)
    assert caught.value.code in ("draft-partial", "tensor-missing")


def test_a_wrong_shape_is_refused_and_wrong_values_are_not() -> None:
    tensors = raw("fused")
    head_of("fused", tensors | {"mtp.fc.weight": torch.full((256, 512), float("nan"))})
    with pytest.raises(BadInputError, match=r"mtp\.fc\.weight.*\[256, 256\].*\[256, 512\]"):
        head_of("fused", tensors | {"mtp.fc.weight": torch.zeros(256, 256)})


def test_names_map_both_ways_or_not_at_all() -> None:
    assert checkpoint_name("eh_proj.weight") == "mtp.fc.weight"
    assert checkpoint_name("mtp_block.self_attn.q_proj") == "mtp.layers.0.self_attn.q_proj"
    with pytest.raises(KeyError):
        checkpoint_name("lm_head")


def test_an_unknown_family_is_refused() -> None:
    config = copy.deepcopy(text_config("fused"))
    config.model_type = "llama"
    with pytest.raises(BadInputError, match="llama"):
        DraftHead(config)
