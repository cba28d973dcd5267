"""The engine's building blocks, each against a slow and plain version of itself."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeExperts,
    torch_recurrent_gated_delta_rule,
)

from tasks.serve.reference.delta import DeltaState, Pending, delta_step, gated_delta
from tasks.serve.reference.experts import GroupedExperts
from tasks.serve.reference.kv import KvCache, KvScales, attend, through_fp8, window
from tests.tiny import tiny_config


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def by_tokens(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    out, states = [], [state]
    for t in range(q.shape[2]):
        state = state * log_g[:, :, t].exp()[..., None, None]
        read = torch.einsum("nhkv,nhk->nhv", state, k[:, :, t])
        delta = (v[:, :, t] - read) * beta[:, :, t, None]
        state = state + k[:, :, t, :, None] * delta[:, :, None]
        out.append(torch.einsum("nhkv,nhk->nhv", state, q[:, :, t]))
        states.append(state)
    return torch.stack(out, 2), states


@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 64])
def test_the_delta_rule_equals_one_token_after_another(tokens: int) -> None:
    q, k, v = (normal(3, 2, tokens, 16, seed=s) for s in (1, 2, 3))
    k = k / k.norm(dim=-1, keepdim=True)
    log_g, beta = -normal(3, 2, tokens, seed=4).abs(), normal(3, 2, tokens, seed=5).sigmoid()
    state = normal(3, 2, 16, 16, seed=6)
    expected, states = by_tokens(q, k, v, log_g, beta, state)
    out, deltas = gated_delta(q, k, v, log_g.cumsum(-1), beta, state)
    torch.testing.assert_close(out, expected)

    counts = torch.tensor([0, tokens // 2, tokens])
    holder = DeltaState.__new__(DeltaState)
    holder.recurrent, holder.inputs = state.clone(), torch.zeros(3, 3, 5, dtype=torch.float64)
    inputs = normal(3, 3 + tokens, 5, seed=8)
    holder.commit(slice(0, 3), Pending(k, deltas, log_g.cumsum(-1), inputs), counts)
    for row, count in enumerate(counts.tolist()):
        torch.testing.assert_close(holder.recurrent[row], states[count][row])
        assert torch.equal(holder.inputs[row], inputs[row, count : count + 3])
    if tokens > 1:
        wrong = states[tokens][1]
        assert not torch.allclose(holder.recurrent[1], wrong)


def test_the_plain_version_is_transformers_own() -> None:
    q, k, v = (normal(2, 2, 5, 16, seed=s) for s in (1, 2, 3))
    k = k / k.norm(dim=-1, keepdim=True)
    log_g, beta = -normal(2, 2, 5, seed=4).abs(), normal(2, 2, 5, seed=5).sigmoid()
    state = normal(2, 2, 16, 16, seed=6)
    expected, states = by_tokens(q / 4, k, v, log_g, beta, state)
    swap = [part.transpose(1, 2) for part in (q, k, v, log_g, beta)]
    theirs, last = torch_recurrent_gated_delta_rule(*swap, state, True)
    torch.testing.assert_close(theirs.transpose(1, 2), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last.double(), states[-1], rtol=1e-4, atol=1e-4)


def test_padding_leaves_no_trace_in_the_state() -> None:
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeGatedDeltaNet

    torch.manual_seed(0)
    layer = Qwen3_5MoeGatedDeltaNet(tiny_config().text_config, 0).double().requires_grad_(False)
    hidden = normal(2, 6, 256)
    like = torch.empty(0, dtype=torch.float64)
    padded, exact = DeltaState(layer, 2, like), DeltaState(layer, 1, like)
    valid = torch.tensor([4, 6])
    _, pending = delta_step(layer, hidden, padded, slice(0, 2), valid)
    padded.commit(slice(0, 2), pending, valid)
    _, pending = delta_step(layer, hidden[:1, :4], exact, slice(0, 1), None)
    exact.commit(slice(0, 1), pending, torch.tensor([4]))
    torch.testing.assert_close(padded.recurrent[:1], exact.recurrent)
    torch.testing.assert_close(padded.inputs[:1], exact.inputs)
    assert not torch.allclose(padded.recurrent[0], padded.recurrent[1])


def test_fp8_rounds_to_the_nearest_and_saturates() -> None:
    values = torch.tensor([0.0, 1.0, 1.06, 1.07, -3.3, 500.0, -1e9, 2.0**-9], dtype=torch.float64)
    expected = [0.0, 1.0, 1.0, 1.125, -3.25, 448.0, -448.0, 2.0**-9]
    assert through_fp8(values, 1.0).tolist() == expected
    assert through_fp8(values * 0.5, 0.5).tolist() == [0.5 * value for value in expected]
    # A scale that was lost shows: small values fall onto a grid too coarse for them.
    assert through_fp8(torch.tensor([0.0009]).double(), 1.0).item() == 0.0
    assert through_fp8(torch.tensor([0.0009]).double(), 0.001).item() == pytest.approx(
        0.000875, 0.05
    )


def test_attention_sees_its_own_row_up_to_its_own_position() -> None:
    cache = KvCache({3: None}, heads=2, size=8, like=torch.empty(0, dtype=torch.float64))
    k, v, q = normal(2, 2, 40, 8, seed=1), normal(2, 2, 40, 8, seed=2), normal(2, 4, 3, 8, seed=3)
    cache.open(window(slice(0, 2), torch.arange(40).expand(2, -1), k.dtype))
    cache.update(k, v, 3)
    starts = torch.tensor([5, 30])
    positions = starts[:, None] + torch.arange(3)
    new_k, new_v = normal(2, 2, 3, 8, seed=4), normal(2, 2, 3, 8, seed=5)
    at = window(slice(0, 2), positions, k.dtype)
    cache.open(at)
    all_k, all_v = cache.update(new_k, new_v, 3)
    out, _ = attend(None, q, all_k, all_v, at.mask, scaling=0.3)
    for row, start in enumerate(starts.tolist()):
        row_k = torch.cat((k[row, :, :start], new_k[row]), 1)
        row_v = torch.cat((v[row, :, :start], new_v[row]), 1)
        for head in range(4):
            for token in range(3):
                keys = row_k[head // 2, : start + token + 1]
                weights = (0.3 * keys @ q[row, head, token]).softmax(0)
                expected = weights @ row_v[head // 2, : start + token + 1]
                torch.testing.assert_close(out[row, token, head], expected)


def test_a_row_that_moves_keeps_its_cache_and_a_cache_grows() -> None:
    cache = KvCache({0: KvScales(0.5, 0.25)}, heads=1, size=4, like=torch.empty(0).double())
    k = normal(3, 1, 20, 4)
    cache.open(window(slice(0, 3), torch.arange(20).expand(3, -1), k.dtype))
    stored, _ = cache.update(k, k, 0)
    last = stored[2, :, :20].clone()
    assert torch.equal(last, through_fp8(k[2], 0.5))
    cache.move(2, 0)
    cache.open(window(slice(0, 9), torch.full((9, 1), 700), k.dtype))
    new = k[:1, :, :1].expand(9, -1, -1, -1)
    grown, values = cache.update(new, new, 0)
    assert grown.shape == (9, 1, 704, 4)
    assert torch.equal(grown[0, :, :20], last)
    assert torch.equal(values[0, :, 700], through_fp8(k[0, :, 0], 0.25))


def test_grouped_experts_equal_the_loop_over_experts() -> None:
    config = tiny_config().text_config
    config._experts_implementation = "eager"
    torch.manual_seed(1)
    plain = Qwen3_5MoeExperts(config).double().requires_grad_(False)
    plain.gate_up_proj.normal_()
    plain.down_proj.normal_()
    hidden, weights = normal(31, 256), normal(31, 2).softmax(-1)
    # Expert 5 gets no token.
    chosen = torch.stack([torch.arange(31) % 5, 6 + torch.arange(31) % 2], 1)
    grouped = GroupedExperts(plain)
    torch.testing.assert_close(grouped(hidden, chosen, weights), plain(hidden, chosen, weights))
    other = grouped(hidden, chosen.flip(1), weights)
    assert not torch.allclose(other, plain(hidden, chosen, weights))
