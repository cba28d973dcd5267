"""Functions that a GPU fuses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Fusion:
    """A switch for compiled functions, worth its minute of compiling for a long phase only."""

    enabled = False

    @classmethod
    @contextmanager
    def on_gpu(cls) -> Iterator[None]:
        """Run `fused` functions compiled for the length of a block, if there is a GPU."""
        cls.enabled = torch.cuda.is_available()
        yield
        cls.enabled = False


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Inductor fuse a function's small steps inside a `Fusion.on_gpu` block."""
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (compiled if Fusion.enabled else function)(*args, **kwargs)

    return choose
