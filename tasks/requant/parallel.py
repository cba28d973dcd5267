"""Pack a draft head on every core.

Packing is many short array operations: as threads, more than two of them wait for the interpreter's
lock more than they compute. So where the process is bare (one thread, no torch whose own threads a
fork would lose) it forks workers, which inherit the mapped source and import nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from tasks.requant.head import DraftSource
from tasks.requant.pack import Grid, Packed, amax_of

MOST_PROCESSES = 8
MOST_THREADS = 2

Group = tuple[str, ...]
Item = TypeVar("Item")
Made = TypeVar("Made")

_adopted: list[DraftSource] = []


def packed_groups(head: DraftSource, groups: Iterable[Group]) -> Iterator[list[tuple[str, Packed]]]:
    """Each group's modules packed under their common amax, in the groups' order.

    Only a few groups are in memory at once.

    Raises:
        BadInputError: a weight that is not finite, or a group that is all zeros.
    """
    cores = len(os.sched_getaffinity(0))
    if cores > MOST_THREADS and may_fork():
        workers = min(cores, MOST_PROCESSES)
        with ProcessPoolExecutor(workers, get_context("fork"), _adopt, (head,)) as pool:
            yield from _in_order(pool, _pack_adopted, groups, ahead=2 * workers)
    else:
        workers = min(cores, MOST_THREADS)
        with ThreadPoolExecutor(workers) as pool:
            yield from _in_order(pool, lambda group: _pack(head, group), groups, ahead=workers + 1)


def may_fork() -> bool:
    """Whether a fork of this process would be whole: nothing runs beside the caller."""
    return threading.active_count() == 1 and "torch" not in sys.modules


def _adopt(head: DraftSource) -> None:
    _adopted[:] = [head]


def _pack_adopted(group: Group) -> list[tuple[str, Packed]]:
    return _pack(_adopted[0], group)


def _pack(head: DraftSource, group: Group) -> list[tuple[str, Packed]]:
    weights = [head.weight(name) for name in group]
    grid = Grid(amax_of(weights, group[0]))
    return [(name, grid.pack(weight)) for name, weight in zip(group, weights, strict=True)]


def _in_order(
    pool: Executor, work: Callable[[Item], Made], items: Iterable[Item], ahead: int
) -> Iterator[Made]:
    waiting: deque[Future[Made]] = deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
