"""Steps: the optimizer, its schedule, and one phase of training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.network import Network
from training.options import Options
from training.precision import BF16, W4A4, W4A16, Precision
from training.texts import Bank
from training.weights import Weights


class Trainer:
    """AdamW on the masters, one captured step for every precision and row length."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        loss: Callable[[Tensor, Tensor], Tensor],
        frozen: Weights | None = None,
    ) -> None:
        self.network, self.weights, self.loss, self.frozen = network, weights, loss, frozen
        self.device = weights.masters[0].device
        self.rate = torch.zeros((), device=self.device)
        on_gpu = self.device.type == "cuda"
        for master in weights.masters:
            master.grad = torch.zeros_like(master)
        decayed = [master for master in weights.masters if master.ndim > 1]
        others = [master for master in weights.masters if master.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}],
            lr=self.rate,
            betas=(0.9, 0.98),
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.graphs: dict[tuple[Precision, torch.Size], Callable[[Tensor, Tensor], Tensor]] = {}

    def step(self, precision: Precision, batch: tuple[Tensor, Tensor], rate: float) -> Tensor:
        """Take one step and return its loss."""
        self.rate.fill_(rate)
        if self.device.type != "cuda":
            return self._compute(precision, *batch)
        key = (precision, batch[0].shape)
        if key not in self.graphs:
            self.graphs[key] = self._capture(precision, batch)
        return self.graphs[key](*batch)

    def _compute(self, precision: Precision, ids: Tensor, answers: Tensor) -> Tensor:
        self.network.precision = precision
        self.weights.load(precision)
        if self.frozen is not None:
            self.frozen.load(precision)
        loss = self.loss(ids, answers)
        gradients = torch.autograd.grad(loss, self.weights.parameters)
        targets = [master.grad for master in self.weights.masters]
        torch._foreach_copy_(targets, list(gradients))
        nn.utils.clip_grad_norm_(self.weights.masters, 1.0, foreach=True)
        self.optimizer.step()
        return loss.detach()

    def _capture(
        self, precision: Precision, batch: tuple[Tensor, Tensor]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Record the step's kernels once; afterwards only the inputs are copied in."""
        inputs = tuple(part.clone() for part in batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._compute(precision, *inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._compute(precision, *inputs)

        def replay(ids: Tensor, answers: Tensor) -> Tensor:
            inputs[0].copy_(ids)
            inputs[1].copy_(answers)
            graph.replay()
            return loss

        return replay


def schedule(step: int, steps: int, peak: float) -> float:
    """Warm up for 100 steps, then follow a cosine down to 1 percent."""
    warm_up = min(1.0, (step + 1) / 100)
    cosine = (1 + math.cos(math.pi * step / steps)) / 2
    return peak * warm_up * (0.01 + 0.99 * cosine)


def plan(phase: str, step: int, steps: int, quantized_from: float) -> tuple[Precision, str]:
    """Choose a step's precision and rows.

    Precisions take turns, in the main phase only in its last part. Every 16th step has long
    conversations. Bare equations fill every other step while arithmetic is being learned.
    """
    done = step / steps
    turns = (BF16, W4A16, BF16, W4A4) if phase == "draft" or done >= quantized_from else (BF16,)
    if step % 16 == 5:
        rows = "long"
    elif phase == "main" and step % (2 if done < 0.6 else 6) == 0:
        rows = "equations"
    else:
        rows = "short"
    return turns[step // 2 % len(turns)], rows


def run_phase(
    phase: str,
    trainer: Trainer,
    banks: dict[str, Bank],
    options: Options,
    steps: int,
    peak: float,
) -> None:
    """Train one phase."""
    began = time.monotonic()
    for step in range(steps):
        precision, rows = plan(phase, step, steps, options.quantized_from)
        bank = banks[rows]
        batch = bank.sample(options.batch_tokens // bank.ids.shape[1])
        loss = trainer.step(precision, batch, schedule(step, steps, peak))
        if step % 200 == 199:
            seconds = time.monotonic() - began
            print(f"{phase} {step + 1} {rows} {loss.item():.4f} {seconds:.0f} s", flush=True)
