"""What becomes of each module of the draft head: it does as its analogue in the export does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tasks.architectures import (
    Architecture,
    amax_group,
    classify,
    last_full_attention,
    main_analogue,
)
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError
from tasks.requant.head import DraftSource
from tasks.requant.pack import BLOCK

PlannedTensor = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class HeadPlan:
    """The draft head of a release.

    Attributes:
        modules: all modules with their weight's shape, in the source's order.
        analogues: quantized module -> the export's module that it mirrors.
        groups: modules that share one weight amax, each group a tuple; quantized ones only.
        attention: the main model's attention module that the head's mirrors.
        draft_attention: the head's own.
        kv: whether the export has K and V scales.
    """

    modules: Mapping[str, tuple[int, ...]]
    analogues: Mapping[str, str]
    groups: tuple[tuple[str, ...], ...]
    attention: str
    draft_attention: str
    kv: bool

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Modules that stay BF16."""
        return tuple(name for name in self.modules if name not in self.analogues)

    def tensors(self) -> Iterator[PlannedTensor]:
        """Every tensor of the head's shard: name, dtype as safetensors spells it, shape."""
        for name in self.kept:
            yield f"{name}.weight", "BF16", self.modules[name]
        for name in self.analogues:
            rows, columns = self.modules[name]
            yield f"{name}.weight", "U8", (rows, columns // 2)
            yield f"{name}.weight_scale", "F8_E4M3", (rows, columns // BLOCK)
            yield f"{name}.weight_scale_2", "F32", ()
            yield f"{name}.input_scale", "F32", ()
        if self.kv:
            yield f"{self.draft_attention}.k_proj.k_scale", "F32", ()
            yield f"{self.draft_attention}.v_proj.v_scale", "F32", ()


def mirror(head: DraftSource, export: CheckpointFiles, architecture: Architecture) -> HeadPlan:
    """Plan the head after the last full-attention layer of the export.

    Raises:
        BadInputError: `source-mismatch`, the two are not of one model; `quantized-incomplete`, the
            export lacks an analogue or splits a group that shares its amax.
    """
    modules = {name: head.shape(name) for name in head.modules()}
    analogues: dict[str, str] = {}
    for name, shape in modules.items():
        analogue = main_analogue(architecture, export.config, name)
        match = classify(architecture, f"{name}.weight")
        if analogue is None or match is None or not match.module_class.linear:
            continue
        if _is_quantized(export, analogue, name, shape):
            analogues[name] = analogue
    layer = main_analogue(
        architecture, export.config, f"{architecture.draft_layers.format(layer=0)}.self_attn"
    )
    assert layer is not None
    return HeadPlan(
        modules=modules,
        analogues=analogues,
        groups=_groups(architecture, analogues, modules, export),
        attention=layer,
        draft_attention=f"{architecture.draft_layers.format(layer=0)}.self_attn",
        kv=f"{layer}.k_proj.k_scale" in export.tensors,
    )


def _is_quantized(
    export: CheckpointFiles, analogue: str, name: str, shape: tuple[int, ...]
) -> bool:
    info = export.tensors.get(f"{analogue}.weight")
    if info is None:
        raise BadInputError(
            "quantized-incomplete",
            f"{export.root}: {analogue}.weight is missing, which {name} mirrors.",
            "Give a whole ModelOpt export of this model.",
        )
    quantized = info.dtype == "U8"
    logical = (*info.shape[:-1], info.shape[-1] * 2) if quantized else info.shape
    if logical != shape:
        raise BadInputError(
            "source-mismatch",
            f"{name} is {list(shape)} in the source, {analogue} is {list(logical)} in the export.",
            "Give an export of this very source.",
        )
    if quantized and f"{analogue}.input_scale" not in export.tensors:
        raise BadInputError(
            "quantized-incomplete",
            f"{export.root}: {analogue}.input_scale is missing.",
            "Give a whole NVFP4 (W4A4) ModelOpt export of this model.",
        )
    return quantized


def _groups(
    architecture: Architecture,
    analogues: Mapping[str, str],
    modules: Mapping[str, tuple[int, ...]],
    export: CheckpointFiles,
) -> tuple[tuple[str, ...], ...]:
    groups: dict[str, tuple[str, ...]] = {}
    for name in analogues:
        group = tuple(other for other in amax_group(architecture, name) if other in modules)
        apart = [other for other in group if other not in analogues]
        if apart:
            raise BadInputError(
                "quantized-incomplete",
                f"{export.root}: quantizes the analogue of {name} but not that of {apart[0]}.",
                "Engines fuse the two: give an export that treats them alike.",
            )
        groups.setdefault(group[0], group)
    return tuple(groups.values())


def layer_index(export: CheckpointFiles) -> int:
    """The main model's layer that the head mirrors."""
    return last_full_attention(export.config)


def plan_bytes(tensors: Iterator[PlannedTensor]) -> int:
    """Bytes of planned tensors."""
    width = {"BF16": 2, "U8": 1, "F8_E4M3": 1, "F32": 4}
    return sum(math.prod(shape) * width[dtype] for _, dtype, shape in tensors)
