"""One request on its way through the engine, and what became of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Sampling:
    """How a request's tokens are chosen.

    Attributes:
        temperature: 0: the most probable token.
        top_k: 0: no limit.
        seed: with a token's position it decides the token, whatever else runs.
        stop: strings that end the text; they are cut off.
        stop_ids: tokens that end it, beyond the model's own.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


@dataclass
class Speculation:
    """A request's counters, as SGLang counts: what was verified, cut off by the end or not."""

    verifications: int = 0
    correct: int = 0
    histogram: list[int] = field(default_factory=list)

    def count(self, accepted: int) -> None:
        """One verification with so many accepted drafts."""
        self.verifications += 1
        self.correct += accepted
        self.histogram += [0] * (accepted + 1 - len(self.histogram))
        self.histogram[accepted] += 1


@dataclass
class Step:
    """A verification: what was proposed, and what the main model chose at each position."""

    draft: list[int]
    verified: list[int]


@dataclass
class Request:
    """A prompt, its sampling, and the answer as it grows.

    Attributes:
        notify: called from the engine's thread after every step and at the end.
        error: why there is no answer; set only at the end.
        matched: the stop string or token that ended it.
        cut: ids that were verified in the last step and fell behind the end.
    """

    id: str
    prompt: list[int]
    sampling: Sampling
    notify: Callable[[Request], None] = lambda request: None
    output: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    text: str | None = None
    finish: Literal["stop", "length", "abort"] | None = None
    matched: int | str | None = None
    error: str | None = None
    aborted: bool = False
    speculation: Speculation = field(default_factory=Speculation)
    steps: list[Step] = field(default_factory=list)
    received: float = field(default_factory=time.time)
    started: float = 0.0
    prefilled: float = 0.0
    ended: float = 0.0

    @property
    def done(self) -> bool:
        """Whether it has an end, good or bad."""
        return self.finish is not None

    def end(self, finish: Literal["stop", "length", "abort"], error: str | None = None) -> None:
        """Set the end and tell."""
        self.finish, self.error, self.ended = finish, error, time.time()
        self.notify(self)
