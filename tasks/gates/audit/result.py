"""What an audit is told, what it finds, and how it says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import Field

from tasks.artifacts import Record, Verdict
from tasks.gates.audit.codes import CODES
from tasks.spec import QFormat, ReleaseSpec

MOST = 100
"""Faults of one code that are listed; the rest are counted."""


class Promise(Record):
    """What a release spec promised; what is None is read from the checkpoint itself."""

    qformat: QFormat | None = None
    kv_cache: Literal["fp8", "none"] | None = None
    draft: Literal["nvfp4", "bf16", "none"] | None = None
    exclude: tuple[str, ...] = Field(default=(), description="modules left BF16 on request")
    may_change: tuple[str, ...] = Field(
        default=(),
        description="metadata that may differ from the source: file names, or dotted keys such as"
        " config.json:text_config.max_position_embeddings; wildcards allowed",
    )

    @classmethod
    def of(cls, spec: ReleaseSpec) -> Promise:
        """The promise that a release spec makes."""
        return cls(
            qformat=spec.quantize.qformat,
            kv_cache=spec.quantize.kv_cache,
            draft=spec.draft.precision,
            exclude=spec.quantize.exclude,
            may_change=spec.gates.audit.may_change,
        )

    def allows(self, key: str) -> bool:
        """Whether the metadata `key` may differ from the source."""
        return any(fnmatchcase(key, pattern) for pattern in self.may_change)


class Fault(Record):
    """One thing wrong: a stable code, the tensor or file, what it is and what it would do."""

    code: str
    tensor: str | None
    detail: str


class AuditResult(Record):
    """What an audit found (a contract: programs outside read it)."""

    verdict: Verdict
    faults: tuple[Fault, ...]
    summary: dict[str, Any]


def printable(text: str) -> str:
    """`text` with what a hostile name may hold (lone surrogates, control characters) escaped."""
    safe = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in safe)


class Findings:
    """Collects faults; many of one code are cut short and counted."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._counts: Counter[str] = Counter()
        self._seen: set[tuple[str, str | None]] = set()

    def add(self, code: str, tensor: str | None, detail: str) -> None:
        """Note a fault; one code is noted once a tensor."""
        kind = CODES[code]
        tensor = None if tensor is None else printable(tensor)[:300]
        if (code, tensor) in self._seen:
            return
        self._seen.add((code, tensor))
        self._counts[code] += 1
        if self._counts[code] <= MOST:
            said = f"{printable(detail)[:1000]} {kind.serving}"
            self._faults.append(Fault(code=code, tensor=tensor, detail=said))

    def extend(self, found: Iterable[tuple[str, str | None, str]]) -> None:
        """Note several."""
        for code, tensor, detail in found:
            self.add(code, tensor, detail)

    def faults(self) -> tuple[Fault, ...]:
        """All that was noted, in order."""
        more = (
            Fault(code=code, tensor=None, detail=f"And {count - MOST} more of this kind.")
            for code, count in self._counts.items()
            if count > MOST
        )
        return (*self._faults, *more)

    def counts(self) -> dict[str, int]:
        """Code -> how many."""
        return dict(self._counts)
