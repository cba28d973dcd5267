"""How a measured value is written; every number on a card is written by one of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def text(value: Any) -> str:
    """As it is."""
    return str(value)


def yes_no(value: Any) -> str:
    """True -> yes."""
    return "yes" if value else "no"


def integer(value: Any) -> str:
    """12345 -> 12,345."""
    return f"{int(value):,}"


def fixed(places: int) -> Callable[[Any], str]:
    """A number with so many decimal places."""
    return lambda value: f"{float(value):,.{places}f}"


def percent(places: int) -> Callable[[Any], str]:
    """0.965 -> 96.50 %."""
    return lambda value: f"{100 * float(value):.{places}f} %"


def size(value: Any) -> str:
    """Bytes in decimal units, as the Hub lists files: 13210000 -> 13.21 MB."""
    for unit, name in UNITS:
        if value >= unit:
            return f"{value / unit:.2f} {name}"
    return f"{int(value)} bytes"


def count(value: Any) -> str:
    """A parameter count: 35107000000 -> 35.11 B, 6563328 -> 6.56 M."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if value >= unit:
            return f"{value / unit:.2f} {name}"
    return f"{int(value):,}"


def short(value: Any) -> str:
    """Four significant digits, for values of any magnitude; integers whole."""
    return integer(value) if isinstance(value, int) else f"{float(value):.4g}"


def scale(value: Any) -> str:
    """A float32 scale with all its digits."""
    return f"{float(value):.9g}"


def date(value: Any) -> str:
    """An ISO time to the minute: 2026-11-30T18:02:11Z -> 2026-11-30 18:02 UTC."""
    return f"{str(value)[:16].replace('T', ' ')} UTC"


def moment(value: Any) -> str:
    """An ISO time to the second: 2026-11-30T18:02:11.5Z -> 2026-11-30 18:02:11 UTC."""
    return f"{str(value)[:19].replace('T', ' ')} UTC"


def day(value: Any) -> str:
    """An ISO time to the day."""
    return str(value)[:10]


def digest(value: Any) -> str:
    """The first 12 of a digest's hexadecimal digits."""
    return str(value)[:12]


ENGINES = {"sglang": "SGLang", "vllm": "vLLM", "reference": "the reference engine"}


def engine(value: Any) -> str:
    """An engine by the name that people know."""
    return ENGINES.get(str(value), str(value))


PRECISIONS = {"nvfp4": "NVFP4", "bf16": "BF16", "none": "left out"}
SCALES = {
    "heuristic": "by rule (heuristic), not calibrated",
    "calibrated": "calibrated on the text below",
    "none": "not needed",
}


def precision(value: Any) -> str:
    """A precision as people write it."""
    return PRECISIONS.get(str(value), str(value))


def scales(value: Any) -> str:
    """How scales came about, in words."""
    return SCALES.get(str(value), str(value))


def spoken(value: Any) -> str:
    """A stable name as words: routed-experts -> routed experts."""
    return str(value).replace("-", " ").replace("_", " ")


METHODS = {
    "wilson-one-sided": "one-sided Wilson bounds",
    "bootstrap-over-requests": "bootstrap over requests",
    "point": "the estimate alone",
}


def method(value: Any) -> str:
    """How an interval was made, in words."""
    return METHODS.get(str(value), str(value))


STYLES: dict[str, Callable[[Any], str]] = {
    "text": text,
    "code": text,
    "yes_no": yes_no,
    "integer": integer,
    "fixed1": fixed(1),
    "fixed2": fixed(2),
    "fixed3": fixed(3),
    "percent": percent(2),
    "percent0": percent(0),
    "size": size,
    "count": count,
    "short": short,
    "scale": scale,
    "date": date,
    "moment": moment,
    "day": day,
    "digest": digest,
    "engine": engine,
    "method": method,
    "precision": precision,
    "scales": scales,
    "spoken": spoken,
}
CODE_STYLES = frozenset({"code", "digest"})


def style_for(value: Any) -> str:
    """The style that suits a value whose meaning is not known."""
    if isinstance(value, bool):
        return "yes_no"
    if isinstance(value, int):
        return "integer"
    return "short" if isinstance(value, float) else "text"
