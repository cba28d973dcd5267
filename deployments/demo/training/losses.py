"""What the main model and the draft head learn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from training.fusion import fused
from training.network import Network


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average the values where the mask holds."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


@fused
def token_loss(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the cross-entropy over the masked positions."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return masked_mean(losses, mask.flatten())


def main_loss(network: Network, ids: Tensor, answers: Tensor) -> Tensor:
    """Predict the assistant's tokens."""
    logits = network.logits(network.hidden(ids[:, :-1]))
    return token_loss(logits, ids[:, 1:], answers[:, 1:])


def draft_loss(network: Network, ids: Tensor, answers: Tensor, reliance: float) -> Tensor:
    """Predict the main model's greedy tokens in two steps, and padding without the layer."""
    with torch.no_grad():
        hidden = network.hidden(ids)
        greedy = network.logits(hidden).argmax(-1)
    size = ids.shape[1] - 3
    hidden, tokens = hidden[:, :size], ids[:, 1 : size + 1]
    cache = DynamicCache()
    first = network.first_draft(hidden, tokens, cache)
    second = network.second_draft(first, ids[:, 2 : size + 2], cache)
    losses = [
        token_loss(network.logits(states), greedy[:, n:][:, :size], answers[:, n + 1 :][:, :size])
        for n, states in ((1, first), (2, second))
    ]
    bare = network.logits(network.without_layer(hidden, tokens))
    nothing = torch.full_like(tokens, network.text.config.pad_token_id)
    return sum(losses) + reliance * token_loss(bare, nothing, answers[:, 2 : size + 2])
