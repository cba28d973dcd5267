"""Several processes calibrate one model together, as torchrun starts them.

Each runs its share of the calibration text; ModelOpt takes the maximum of every amax over all of
them, so the scales are those of one process. The first one, rank 0, exports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

PATIENCE = timedelta(hours=2)
"""The others wait as long for rank 0, which exports alone."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is; `local` counts on this machine."""

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process exports, and answers for all."""
        return self.rank == 0

    def device(self, kind: torch.device) -> torch.device:
        """This process's own device of a kind."""
        if self.size == 1 or kind.type == "cpu":
            return kind
        torch.cuda.set_device(self.local)
        return torch.device("cuda", self.local)

    def share(self, value: T | None) -> T:
        """What rank 0 gave, on every rank."""
        held: list[T | None] = [value]
        if self.size > 1:
            dist.broadcast_object_list(held, src=0)
        assert held[0] is not None
        return held[0]

    def part(self, batches: Sequence[T]) -> list[T]:
        """This process's batches; as many on each, since a sharded forward pass needs all ranks.

        Where they do not divide evenly the last ranks run the first batches again, which no
        maximum sees.
        """
        each = -(-len(batches) // self.size)
        return [batches[(self.rank + self.size * n) % len(batches)] for n in range(each)]

    def wait(self) -> None:
        """Until every process has come here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that torchrun started this one with, for the length of a `with` block.

    Without torchrun: this one alone.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Ranks()
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), size, int(os.environ["LOCAL_RANK"]))
    finally:
        dist.destroy_process_group()
