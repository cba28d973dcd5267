"""Rows of a running batch: prefill, draft and verify, move rows together when one leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.serve.reference.model import DraftModel, MainModel
from tasks.serve.reference.request import Request, Step
from tasks.serve.reference.sampling import choose

_KEEP_BYTES = 64 << 20


class Batch:
    """Requests in rows 0 to n-1 of the models' states.

    Every row's last token has not been run yet; `proposals` [n, steps] are drafted to follow it.

    Args:
        main: the main model.
        draft: the draft head, None: one token a step.
        steps: tokens drafted a verification.
    """

    def __init__(self, main: MainModel, draft: DraftModel | None, steps: int) -> None:
        self.main, self.draft = main, draft
        self.steps = steps if draft is not None else 0
        self.requests: list[Request] = []
        self._proposals = torch.empty(0, self.steps, dtype=torch.long, device=main.like.device)

    def __len__(self) -> int:
        return len(self.requests)

    def admit(self, requests: Sequence[Request]) -> list[list[int]]:
        """Prefill `requests` as new rows; each one's first token."""
        device = self.main.like.device
        lengths = torch.tensor([len(request.prompt) for request in requests], device=device)
        tokens = torch.zeros(len(requests), int(lengths.max()), dtype=torch.long, device=device)
        for row, request in enumerate(requests):
            tokens[row, : len(request.prompt)] = torch.tensor(request.prompt, device=device)
        first = len(self.requests)
        rows = slice(first, first + len(requests))
        number = torch.arange(len(requests), device=device)
        hidden = self.main.prefill(tokens, rows, lengths)
        logits = self.main.logits(hidden[number, lengths - 1])
        chosen = choose(logits[:, None], requests)
        self.requests += requests
        proposed = self._proposals.new_empty(len(requests), 0)
        if self.draft is not None:
            shifted = torch.cat((tokens[:, 1:], chosen), dim=1)
            shifted[number, lengths - 1] = chosen[:, 0]
            drafted = self.draft.prefill(shifted, hidden, rows)
            proposed = self.draft.propose(drafted[number, lengths - 1], rows, lengths, self.steps)
        self._proposals = torch.cat((self._proposals, proposed))
        return [[int(token)] for token in chosen[:, 0]]

    def step(self) -> list[list[int]]:
        """Verify every row's proposals and draft anew; the tokens that each row gains.

        Each request's counters are updated; its `output` is the caller's to extend.
        """
        device = self.main.like.device
        rows = slice(0, len(self))
        last = torch.tensor([request.output[-1] for request in self.requests], device=device)
        starts = torch.tensor(
            [len(request.prompt) + len(request.output) - 1 for request in self.requests],
            device=device,
        )
        tokens = torch.cat((last[:, None], self._proposals), dim=1)
        hidden, pending = self.main.extend(tokens, rows, starts, None)
        chosen = choose(self.main.logits(hidden), self.requests)
        accepted = (chosen[:, :-1] == self._proposals).long().cumprod(1).sum(1)
        self.main.commit(rows, pending, accepted + 1)
        found = self._record(chosen, accepted)
        if self.draft is not None:
            drafted = self.draft.extend(chosen, hidden, rows, starts)
            number = torch.arange(len(self), device=device)
            self._proposals = self.draft.propose(
                drafted[number, accepted], rows, starts + accepted + 1, self.steps
            )
        return found

    def _record(self, chosen: Tensor, accepted: Tensor) -> list[list[int]]:
        proposals = self._proposals.tolist()
        found = []
        rows = zip(self.requests, chosen.tolist(), accepted.tolist(), strict=True)
        for row, (request, verified, count) in enumerate(rows):
            if self.draft is not None:
                request.speculation.count(count)
                request.steps.append(Step(proposals[row], verified[: count + 1]))
            found.append(verified[: count + 1])
        return found

    def leave(self, row: int) -> None:
        """Take a row out; the last one moves to its place."""
        last = len(self) - 1
        if row != last:
            self.main.move(last, row)
            if self.draft is not None:
                self.draft.move(last, row)
            self._proposals[row] = self._proposals[last]
            self.requests[row] = self.requests[last]
        self.requests.pop()
        self._proposals = self._proposals[:last]

    def rest(self) -> None:
        """Nothing runs: give the caches' memory back if it has grown large."""
        assert not self.requests
        for model in (self.main, self.draft):
            if model is not None and model.kv.nbytes > _KEEP_BYTES:
                model.kv.shrink()
