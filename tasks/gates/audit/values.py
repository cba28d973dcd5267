"""The bytes of the weights: scales in range, codes that fit them, nothing dead or doubled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.checkpoint.files import CheckpointFiles, TensorInfo
from tasks.gates.audit.alignment import fit
from tasks.gates.audit.model import Model, Module
from tasks.gates.audit.nvfp4 import BLOCK, MAGNITUDE, SIGN, TOP, wrong_blocks
from tasks.gates.audit.result import Findings

Found = tuple[str, str | None, str]
Array = np.ndarray[Any, Any]
CHUNK = 2**22
"""Bytes of packed codes looked at in one go."""


@dataclass
class Looked:
    """What reading one weight gave."""

    found: list[Found] = field(default_factory=list)
    top: int | None = None
    """Largest block scale (E4M3 bits); None where there is none to be trusted."""
    fingerprint: tuple[Any, ...] | None = None
    own: bool | None = None
    """Whether the block scales know the codes beside them; None where that cannot be told."""


def look_at_packed(files: CheckpointFiles, module: Module) -> Looked:
    """Read one packed weight and its block scales."""
    looked = Looked()
    weight, scale = module.weight, module.tensors.get(".weight_scale")
    assert weight is not None
    if scale is None or not fits(weight, scale):
        return looked
    codes = files.array_at(weight)
    bits = files.array_at(scale).view(np.uint8)
    _look_at_scales(scale.name, bits, looked)
    wrong = zero = 0
    first: tuple[int, int] | None = None
    rows = max(1, CHUNK // max(1, codes.shape[1]))
    for start in range(0, codes.shape[0], rows):
        part, part_bits = codes[start : start + rows], bits[start : start + rows]
        bad = wrong_blocks(part, part_bits) & (part_bits != 0)
        count = int(np.count_nonzero(bad))
        if count and first is None:
            row, column = (int(place[0]) for place in np.nonzero(bad))
            first = (start + row, column)
        wrong += count
        zero += int(not (part & 0x77).any())
    if zero * rows >= codes.shape[0] and not (codes & 0x77).any():
        looked.found.append(("zero-weights", weight.name, "All of its codes are zero."))
    elif first is not None:
        what = (
            f"{wrong} of {bits.size} blocks, first at row {first[0]}, columns"
            f" {first[1] * BLOCK}-{first[1] * BLOCK + BLOCK - 1}."
        )
        looked.found.append(("codes-mismatch", weight.name, what))
    else:
        elsewhere, looked.own = fit(codes, bits)
        if elsewhere is not None:
            what = f"The scales that fit the codes stand {elsewhere}."
            looked.found.append(("scales-misaligned", scale.name, what))
        _look_at_signs(weight, _signs_of_codes(codes), looked)
    looked.fingerprint = _fingerprint(codes, weight.shape)
    return looked


def look_at_plain(files: CheckpointFiles, info: TensorInfo, *, may_be_zero: bool) -> Looked:
    """Read one BF16 or F32 tensor: finite, and not all zero unless it may be."""
    looked = Looked()
    values = files.array_at(info)
    if info.dtype == "BF16":
        bits = values.reshape(-1).view(np.uint16)
        worst = max((int((p & MAGNITUDE).max()) for p in pieces(bits)), default=0)
        finite, zero = worst < 0x7F80, worst == 0
    elif info.dtype in {"F32", "F16", "F64"}:
        parts = pieces(values.reshape(-1))
        finite = all(bool(np.isfinite(part).all()) for part in parts)
        zero = not any(part.any() for part in parts)
    else:
        return looked
    if not finite:
        looked.found.append(("weight-nonfinite", info.name, "Holds NaN or infinity."))
    elif zero and info.nbytes and not may_be_zero:
        looked.found.append(("zero-weights", info.name, "All of it is zero."))
    elif info.dtype == "BF16" and len(info.shape) == 2 and not may_be_zero:
        _look_at_signs(info, _signs_of_bf16(values.view(np.uint16)), looked)
    return looked


def check_tops(model: Model, tops: Mapping[str, int], findings: Findings) -> None:
    """The largest block scale of each group that shares weight_scale_2 is 448."""
    for members in model.groups():
        held = {m.name: tops[m.name] for m in members if m.name in tops}
        if len(held) == len(members) and max(held.values()) != TOP:
            name = max(held, key=lambda name: held[name])
            what = f"The largest block scale of {len(members)} module(s) is not 448."
            findings.add("scale-range", f"{name}.weight_scale", what)


def check_strangers(own: Mapping[str, bool], findings: Findings) -> None:
    """Block scales that know nothing of their codes, in a model where most of the others do."""
    strangers = [name for name, knows in own.items() if not knows]
    if 2 * len(strangers) >= len(own):
        return
    for name in strangers:
        what = "They know nothing of the codes: another weight's, shuffled, or all the same."
        findings.add("scales-misaligned", f"{name}.weight_scale", what)


def check_twins(fingerprints: Mapping[str, tuple[Any, ...]], findings: Findings) -> None:
    """No two packed weights have the same codes."""
    seen: dict[tuple[Any, ...], str] = {}
    for name, print_ in fingerprints.items():
        other = seen.setdefault(print_, name)
        if other != name:
            findings.add("duplicate-weights", f"{name}.weight", f"Has the codes of {other}.")


def fits(weight: TensorInfo, scale: TensorInfo) -> bool:
    """Whether a packed weight and its block scales can be read together."""
    return (
        weight.dtype == "U8"
        and scale.dtype == "F8_E4M3"
        and len(weight.shape) == 2
        and min(weight.shape) > 0
        and weight.shape[1] % (BLOCK // 2) == 0
        and scale.shape == (weight.shape[0], weight.shape[1] * 2 // BLOCK)
    )


def _look_at_scales(name: str, bits: Array, looked: Looked) -> None:
    highest, lowest = int(bits.max()), int(bits.min())
    sound = highest <= TOP and lowest > 0
    if sound:
        looked.top = highest
        return
    magnitude = bits & np.uint8(0x7F)
    nan = int(np.count_nonzero(magnitude == 0x7F))
    zero = int(np.count_nonzero(magnitude == 0))
    negative = int(np.count_nonzero((bits & np.uint8(0x80)) != 0)) - int(
        np.count_nonzero((bits == 0x80) | (bits == 0xFF))
    )
    for count, code, what in (
        (nan, "scale-nonfinite", "NaN"),
        (zero, "scale-zero", "zero"),
        (negative, "scale-negative", "negative"),
    ):
        if count:
            looked.found.append((code, name, f"{count} of {bits.size} block scales are {what}."))


SIGNED = 1024
"""Elements from which their signs are looked at."""
ONE_SIGN = 0.02
"""Share of elements that have the rarer sign, at least: about half have in any trained weight."""


def _look_at_signs(info: TensorInfo, shares: list[float], looked: Looked) -> None:
    if shares and min(shares) < ONE_SIGN:
        what = f"{1 - min(shares):.1%} of its elements, or of every second one, have one sign."
        looked.found.append(("signs-lost", info.name, what))


def _signs_of_codes(codes: Array) -> list[float]:
    """Share of the rarer sign among non-zero codes, of low and high nibbles apart."""
    byte = np.arange(256)
    seen = np.bincount(codes[:: max(1, codes.shape[0] // 128)].reshape(-1), minlength=256)
    shares = []
    for shift in (0, 4):
        code = byte >> shift
        used = seen[(code & 7) != 0].sum()
        negative = seen[((code & 7) != 0) & ((code & 8) != 0)].sum()
        if used >= SIGNED:
            shares.append(float(min(negative, used - negative) / used))
    return shares


def _signs_of_bf16(bits: Array) -> list[float]:
    """The same of BF16 bits [N, K], as one share."""
    part = bits[:: max(1, bits.shape[0] // 128)]
    used = int(np.count_nonzero(part & MAGNITUDE))
    negative = int(np.count_nonzero(part > SIGN))
    return [min(negative, used - negative) / used] if used >= SIGNED else []


def _fingerprint(codes: Array, shape: tuple[int, ...]) -> tuple[Any, ...]:
    words = np.ascontiguousarray(codes).reshape(-1).view(np.uint64)
    place = words[:: max(1, words.size // 64)][:64]
    return (
        shape,
        int(words.sum(dtype=np.uint64)),
        int(np.bitwise_xor.reduce(words)),
        place.tobytes(),
    )


def pieces(flat: Array) -> list[Array]:
    """A flat array in parts of some megabytes."""
    return [flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK)]
