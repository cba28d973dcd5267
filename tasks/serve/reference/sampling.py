"""Choosing tokens from logits: greedy, or seeded by request and position.

A sampled token depends on the logits, the request's seed and the token's position, and on nothing
else. So verification may simply sample at every position and accept a draft that is equal: the
text is the one that plain decoding with that seed gives, and follows the model's distribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.serve.reference.request import Request, Sampling


def choose(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """[N, M, V] logits of N requests' next M tokens -> [N, M] ids."""
    chosen = logits.argmax(-1)
    for row, request in enumerate(requests):
        if request.sampling.temperature > 0:
            first = len(request.output)
            for column in range(logits.shape[1]):
                one = _sample(logits[row, column], request.sampling, first + column)
                chosen[row, column] = one
    return chosen


def probabilities(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sorted probabilities [V] after temperature, top-k, top-p and min-p, and their ids [V]."""
    sharp = logits.double() / sampling.temperature
    values, ids = sharp.softmax(-1).sort(descending=True, stable=True)
    before = values.cumsum(-1) - values
    keep = (before < sampling.top_p) & (values >= sampling.min_p * values[0])
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    keep[0] = True
    values = values.masked_fill(~keep, 0)
    return values / values.sum(), ids


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one position of one request."""
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def _sample(logits: Tensor, sampling: Sampling, position: int) -> int:
    values, ids = probabilities(logits, sampling)
    if not torch.isfinite(values).all():
        return int(logits.argmax())
    point = uniform(sampling.seed, position)
    index = int(torch.searchsorted(values.cumsum(-1), point, right=True))
    last = int(values.count_nonzero()) - 1
    return int(ids[min(index, last)])
