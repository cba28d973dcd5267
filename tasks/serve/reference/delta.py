"""Gated-DeltaNet layers over several tokens at once, with states that can be taken back.

A step reads the state and does not change it; what the tokens would add is kept aside, and
`commit` adds as many of each row's tokens as were accepted. So a rejected draft costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


@dataclass(frozen=True)
class Pending:
    """What M tokens of N rows would add to the state.

    Attributes:
        keys: [N, Hv, M, Dk], normalised.
        deltas: [N, Hv, M, Dv].
        decay: [N, Hv, M], logarithm of the decay from before the first token to after each.
        inputs: [N, K-1+M, C], the convolution's inputs with those before the first token.
    """

    keys: Tensor
    deltas: Tensor
    decay: Tensor
    inputs: Tensor


def gated_delta(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and additions of the gated delta rule for M tokens, from one read of the state.

    Token t: S = g_t S; d_t = beta_t (v_t - S'k_t); S = S + k_t d_t'; o_t = S'q_t. Written out over
    the tokens the d_t obey one unit lower triangular system, (I + A) d = beta (v - e^G K S).

    Args:
        queries: [N, H, M, Dk], scaled; keys: [N, H, M, Dk]; values: [N, H, M, Dv].
        decay: [N, H, M], G, the running sum of log g; beta: [N, H, M].
        state: [N, H, Dk, Dv], before the first token.

    Returns:
        o [N, H, M, Dv] and d [N, H, M, Dv].
    """
    tokens = keys.shape[2]
    both = torch.cat((keys, queries), dim=2)
    read = (both.flatten(0, 1) @ state.flatten(0, 1)).unflatten(0, state.shape[:2])
    read = read * decay.exp().repeat(1, 1, 2).unsqueeze(-1)
    products = both @ keys.transpose(-1, -2)
    falling = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp()
    system = (products[:, :, :tokens] * falling * beta.unsqueeze(-1)).tril(-1)
    deltas = (values - read[:, :, :tokens]) * beta.unsqueeze(-1)
    if tokens > 8:
        deltas = torch.linalg.solve_triangular(system, deltas, upper=False, unitriangular=True)
    else:
        for row in range(1, tokens):
            above = deltas[:, :, :row]
            deltas[:, :, row] -= (system[:, :, row, :row, None] * above).sum(2)
    inside = (products[:, :, tokens:] * falling).tril()
    return read[:, :, tokens:] + inside @ deltas, deltas


class DeltaState:
    """Recurrent and convolution state of one layer, a row a request."""

    def __init__(self, layer: Any, rows: int, like: Tensor) -> None:
        heads, k_dim, v_dim = layer.num_v_heads, layer.head_k_dim, layer.head_v_dim
        channels = 2 * layer.key_dim + layer.value_dim
        self.recurrent = like.new_zeros(rows, heads, k_dim, v_dim)
        self.inputs = like.new_zeros(rows, layer.conv_kernel_size - 1, channels)

    def clear(self, rows: slice) -> None:
        """Start these rows anew."""
        self.recurrent[rows] = 0
        self.inputs[rows] = 0

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        self.recurrent[target] = self.recurrent[source]
        self.inputs[target] = self.inputs[source]

    def commit(self, rows: slice, pending: Pending, counts: Tensor) -> None:
        """Add the first `counts` [N] tokens of each row (0: none)."""
        state = self.recurrent[rows]
        tokens = pending.keys.shape[2]
        number = torch.arange(tokens, device=counts.device)
        last = (counts - 1).clamp(min=0).view(-1, 1, 1).expand(-1, state.shape[1], 1)
        total = pending.decay.gather(2, last).masked_fill(counts.view(-1, 1, 1) == 0, 0)
        wanted = (number < counts[:, None])[:, None]
        weight = (total - pending.decay).exp().masked_fill(~wanted, 0)
        added = (pending.keys * weight.unsqueeze(-1)).transpose(-1, -2)
        state *= total.exp().unsqueeze(-1)
        state.flatten(0, 1).baddbmm_(added.flatten(0, 1), pending.deltas.flatten(0, 1))
        at = counts[:, None] + torch.arange(self.inputs.shape[1], device=counts.device)
        self.inputs[rows] = pending.inputs[torch.arange(len(at), device=at.device)[:, None], at]


def delta_step(
    layer: Any, hidden: Tensor, state: DeltaState, rows: slice, valid: Tensor | None
) -> tuple[Tensor, Pending]:
    """One Gated-DeltaNet layer on [N, M, H], M at most a chunk; the state is read only.

    Args:
        layer: transformers' module, for its weights.
        valid: [N], tokens of each row that are real; None: all.

    Returns:
        [N, M, H], and what `DeltaState.commit` needs.
    """
    count, tokens, _ = hidden.shape
    inputs = torch.cat((state.inputs[rows], layer.in_proj_qkv(hidden)), dim=1)
    mixed = _convolve(inputs, layer.conv1d.weight)
    query, key, value = mixed.split((layer.key_dim, layer.key_dim, layer.value_dim), dim=-1)
    query = _unit(query.unflatten(-1, (-1, layer.head_k_dim))) * layer.head_k_dim**-0.5
    key = _unit(key.unflatten(-1, (-1, layer.head_k_dim)))
    value = value.unflatten(-1, (-1, layer.head_v_dim))
    beta = layer.in_proj_b(hidden).sigmoid()
    log_g = -layer.A_log.exp() * F.softplus(layer.in_proj_a(hidden) + layer.dt_bias)
    if valid is not None:
        real = (torch.arange(tokens, device=valid.device) < valid[:, None]).unsqueeze(-1)
        beta, log_g = beta * real, log_g * real
    repeat = layer.num_v_heads // layer.num_k_heads
    if repeat > 1:
        query, key = query.repeat_interleave(repeat, 2), key.repeat_interleave(repeat, 2)
    query, key, value = (part.transpose(1, 2).contiguous() for part in (query, key, value))
    decay = log_g.transpose(1, 2).cumsum(-1)
    out, deltas = gated_delta(query, key, value, decay, beta.transpose(1, 2), state.recurrent[rows])
    gate = layer.in_proj_z(hidden).view(-1, layer.head_v_dim)
    out = layer.norm(out.transpose(1, 2).reshape(-1, layer.head_v_dim), gate)
    return layer.out_proj(out.view(count, tokens, -1)), Pending(key, deltas, decay, inputs)


def _convolve(inputs: Tensor, weight: Tensor) -> Tensor:
    """Causal, one filter a channel: [N, K-1+M, C] and [C, 1, K] -> [N, M, C], with SiLU."""
    width = weight.shape[-1]
    tokens = inputs.shape[1] - width + 1
    total = inputs[:, :tokens] * weight[:, 0, 0]
    for tap in range(1, width):
        total.addcmul_(inputs[:, tap : tap + tokens], weight[:, 0, tap])
    return F.silu(total)


def _unit(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + 1e-6)
