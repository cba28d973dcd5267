"""A source's draft head, whatever its layout and dtype, as BF16 arrays by module name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tasks.architectures import (
    Architecture,
    DraftLayout,
    classify,
    draft_layer_count,
    draft_layout,
    draft_tensors,
    expert_count,
)
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError
from tasks.requant.pack import BF16, E4M3, Array

FP8_BLOCK = 128
FLOATS = ("BF16", "F16", "F32")
_E4M3_VALUES: Array = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)


@dataclass(frozen=True)
class Place:
    """Where a module's weight lies: a tensor, and in a fused one the expert and its rows."""

    tensor: str
    expert: int | None = None
    part: int = 0
    parts: int = 1


class DraftSource:
    """The draft head of an opened source.

    Example:
        head = DraftSource(files, architecture)
        weight = head.weight("mtp.layers.0.mlp.experts.3.up_proj")  # bfloat16 [I, H]

    Raises:
        BadInputError: `draft-missing`, `draft-layout`; `draft-dtype`; `draft-shape`.
    """

    def __init__(self, files: CheckpointFiles, architecture: Architecture) -> None:
        origin = str(files.root)
        self.files = files
        self.architecture = architecture
        self.layout: DraftLayout = draft_layout(
            architecture, files.config, files.tensors.keys(), origin
        )
        self.places: Mapping[str, Place] = dict(_places(self.layout, architecture, files))
        for place in self.places.values():
            self._check(place.tensor)

    def modules(self) -> tuple[str, ...]:
        """Names of all modules, routed experts one by one."""
        return tuple(self.places)

    def shape(self, module: str) -> tuple[int, ...]:
        """Shape of a module's weight."""
        place = self.places[module]
        shape = self.files.tensors[place.tensor].shape
        if place.expert is None:
            return shape
        return (shape[1] // place.parts, *shape[2:])

    def weight(self, module: str) -> Array:
        """A module's weight in bfloat16; a view of the file where that is BF16 already."""
        place = self.places[module]
        whole = self._values(place.tensor, place.expert)
        if place.parts == 1:
            return whole
        rows = whole.shape[0] // place.parts
        return whole[place.part * rows : (place.part + 1) * rows]

    def raw_tensors(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype as it is given (BF16) and shape of what `raw` yields."""
        for name in draft_tensors(self.layout, self.files.config):
            yield name, "BF16", self.files.tensors[name].shape

    def raw(self) -> Iterator[tuple[str, Array]]:
        """Every tensor under its own name, fused ones as they are, in bfloat16."""
        for name in draft_tensors(self.layout, self.files.config):
            yield name, self._values(name, None)

    def _check(self, name: str) -> None:
        info = self.files.tensors[name]
        scale = self.files.tensors.get(f"{name}_scale_inv")
        if info.dtype == "F8_E4M3" and scale is not None:
            blocks = tuple(math.ceil(size / FP8_BLOCK) for size in info.shape[-2:])
            if scale.shape == (*info.shape[:-2], *blocks):
                return
            raise BadInputError(
                "draft-shape",
                f"{self.files.root}: {scale.name}: {list(scale.shape)} is no scale of"
                f" {FP8_BLOCK}x{FP8_BLOCK} blocks for {list(info.shape)}.",
                "Only block-128 FP8 sources can be read: give the BF16 source.",
            )
        if info.dtype not in FLOATS:
            raise BadInputError(
                "draft-dtype",
                f"{self.files.root}: {name}: {info.dtype} without weight_scale_inv.",
                "Give a BF16 source, or a block-128 FP8 one.",
            )

    def _values(self, name: str, expert: int | None) -> Array:
        values = self.files.array(name)
        scale = self.files.tensors.get(f"{name}_scale_inv")
        scales = None if scale is None else self.files.array(scale.name)
        if expert is not None:
            values = values[expert]
            scales = None if scales is None else scales[expert]
        if scales is not None:
            return dequantize(values, scales)
        return values if values.dtype == BF16 else values.astype(BF16)


def dequantize(values: Array, scale_inv: Array) -> Array:
    """Block-128 FP8 [..., N, K] times float32 scales [..., N/128, K/128] (rounded up) -> BF16."""
    if values.ndim == 3:
        return np.stack([dequantize(v, s) for v, s in zip(values, scale_inv, strict=True)])
    out = np.empty(values.shape, BF16)
    scales = scale_inv.astype(np.float32)
    for block, row in enumerate(scales):
        part = slice(block * FP8_BLOCK, (block + 1) * FP8_BLOCK)
        spread = np.repeat(row, FP8_BLOCK)[: values.shape[1]]
        wide = _E4M3_VALUES[np.ascontiguousarray(values[part]).view(np.uint8)]
        out[part] = (wide * spread).astype(BF16)
    return out


def _places(
    layout: DraftLayout, architecture: Architecture, files: CheckpointFiles
) -> Iterator[tuple[str, Place]]:
    fused = {
        template.replace("{layer}", str(layer)): [
            module.replace("{layer}", str(layer)) for module in modules
        ]
        for template, modules in layout.fused.items()
        for layer in range(draft_layer_count(files.config))
    }
    for name in draft_tensors(layout, files.config):
        if name not in fused:
            match = classify(architecture, name)
            assert match is not None, f"layout {layout.name} names {name}, the architecture not"
            yield match.module, Place(name)
            continue
        modules, shape = fused[name], files.tensors[name].shape
        experts = expert_count(files.config)
        if len(shape) != 3 or shape[0] != experts or shape[1] % len(modules):
            raise BadInputError(
                "draft-shape",
                f"{files.root}: {name}: {list(shape)} does not hold {experts} experts.",
                "Give the draft head of this very model.",
            )
        for expert in range(experts):
            for part, module in enumerate(modules):
                place = Place(name, expert, part, len(modules))
                yield module.replace("{expert}", str(expert)), place
