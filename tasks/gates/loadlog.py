"""What a load log shows: lines that condemn, weights loaded, cache types, K and V scales.

Lines that mean nothing, though they look like trouble: `Using FP8 KV cache but no scaling factors
provided` (always printed), `Ignore import error` for models other than this one's family, and
deprecation warnings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONDEMNING: dict[str, re.Pattern[str]] = {
    "weight-unknown": re.compile(r"not found in params_dict"),
    "shape-mismatch": re.compile(r"must match|exceeds dimension size"),
    "model-import-failed": re.compile(
        r"Ignore import error when loading sglang\.srt\.models\.qwen3_5"
    ),
    "nan": re.compile(r"NaN in the prob|nan(?:s)? detected|logits contain nan", re.IGNORECASE),
}
"""Lines that mean a bad load, by the code of their reason."""
FATAL = re.compile(
    r"Scheduler hit an exception|Received sigquit from a child|SIGQUIT received"
    r"|crashed with exit code|CUDA out of memory|torch\.OutOfMemoryError|MemoryError\b"
    r"|[Aa]ddress already in use|EngineCore failed to start|Engine core initialization failed"
)
"""Lines after which the engine will never become ready."""
READY = re.compile(r"fired up and ready|Application startup complete|Uvicorn running on")
_START = re.compile(r"server_args=|quantgate reference engine")
_MODEL_PATH = re.compile(r"(?:model_path=|checkpoint=PosixPath\()['\"](?P<path>[^'\"]+)")
_LOAD_END = re.compile(r"Load weight end\.?.*?type=(?P<type>\w+)(?:.*?\bquant=(?P<quant>[\w.-]+))?")
_KV_DTYPE = re.compile(r"KV Cache is allocated\. dtype: (?:torch\.)?(?P<dtype>\w+)")
_KV_SCALES = re.compile(
    r"quantgate kv-scales: role=(?P<role>main|draft) layer=(?P<layer>\d+)"
    r" k_scale=(?P<k>\S+) v_scale=(?P<v>\S+)"
)


@dataclass(frozen=True)
class Loaded:
    """One `Load weight end` line: the model class, and its quantization if it names one."""

    type: str
    quant: str | None


@dataclass(frozen=True)
class KvScales:
    """K and V scale of one attention layer as the engine logged them, as text."""

    role: str
    layer: int
    k: str
    v: str


@dataclass(frozen=True)
class LoadLog:
    """The findings of one load."""

    condemned: tuple[tuple[str, str], ...] = ()
    fatal: tuple[str, ...] = ()
    loaded: tuple[Loaded, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    kv_scales: tuple[KvScales, ...] = ()
    lines: int = 0
    model_path: str | None = None
    """The model's path as the engine's own arguments name it."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> LoadLog:
        """The inverse of `as_dict`."""
        return cls(
            condemned=tuple((code, line) for code, line in value["condemned"]),
            fatal=tuple(value["fatal"]),
            loaded=tuple(Loaded(**item) for item in value["loaded"]),
            kv_dtypes=tuple(value["kv_dtypes"]),
            kv_scales=tuple(KvScales(**item) for item in value["kv_scales"]),
            lines=value["lines"],
            model_path=value["model_path"],
        )


def read_log(path: Path | None) -> LoadLog | None:
    """Scan a log file; None when there is none to read."""
    if path is None or not path.is_file():
        return None
    try:
        return scan(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return None


def scan(lines: Sequence[str]) -> LoadLog:
    """Scan the last load in a log; once the engine is ready only fatal lines still count.

    After that point a log may quote what users wrote.
    """
    starts = [place for place, line in enumerate(lines) if _START.search(line)]
    own = lines[starts[-1] :] if starts else lines
    condemned: list[tuple[str, str]] = []
    fatal: list[str] = []
    loaded: list[Loaded] = []
    dtypes: list[str] = []
    scales: list[KvScales] = []
    ready = False
    for line in own:
        ready = ready or READY.search(line) is not None
        if FATAL.search(line):
            fatal.append(_short(line))
        if ready:
            continue
        condemned += [(code, _short(line)) for code, p in CONDEMNING.items() if p.search(line)]
        if match := _LOAD_END.search(line):
            loaded.append(Loaded(match["type"], match["quant"]))
        if match := _KV_DTYPE.search(line):
            dtypes.append(match["dtype"])
        if match := _KV_SCALES.search(line):
            scales.append(KvScales(match["role"], int(match["layer"]), match["k"], match["v"]))
    return LoadLog(
        condemned=tuple(condemned),
        fatal=tuple(fatal),
        loaded=tuple(loaded),
        kv_dtypes=tuple(dtypes),
        kv_scales=tuple(scales),
        lines=len(own),
        model_path=_model_path(own),
    )


def _model_path(lines: Sequence[str]) -> str | None:
    match = _MODEL_PATH.search(lines[0]) if lines else None
    return match["path"] if match else None


def doom(path: Path | None) -> str | None:
    """Why the engine behind this log will never become ready; None while it may."""
    log = read_log(path)
    if log is None:
        return None
    if log.fatal:
        return f"the load log ends it: {log.fatal[0]}"
    return None


def _short(line: str) -> str:
    return line.strip()[:300]
