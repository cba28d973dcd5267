"""A checkpoint seen as modules: what each is, what is stored for it, what the lists say of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tasks.architectures import (
    SCALE_SUFFIXES,
    Architecture,
    ModuleClass,
    amax_group,
    classify,
    expected_modules,
)
from tasks.checkpoint.files import CheckpointFiles, TensorInfo
from tasks.gates.audit.excludes import ExcludeList

PACKED_SCALES = (".weight_scale", ".weight_scale_2", ".input_scale")
KV_SCALES = (".k_scale", ".v_scale")


@dataclass
class Module:
    """One module and its tensors, by suffix (`.weight`, `.bias`, scales; empty for a parameter)."""

    name: str
    kind: ModuleClass
    draft: bool
    layer: int | None
    expert: int | None
    tensors: dict[str, TensorInfo] = field(default_factory=dict)

    @property
    def weight(self) -> TensorInfo | None:
        """The weight itself, packed or not."""
        return self.tensors.get("" if self.kind.bare else ".weight")

    @cached_property
    def packed(self) -> bool:
        """Whether the weight is stored as NVFP4 codes; asked once all tensors are known."""
        return self.weight is not None and self.weight.dtype == "U8"

    @property
    def scales(self) -> list[TensorInfo]:
        """All of its scales, K and V scales apart."""
        return [info for suffix, info in self.tensors.items() if suffix in PACKED_SCALES]

    @property
    def leaf(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]

    @property
    def elements(self) -> int:
        """Weights that it holds, packed ones counted singly."""
        if self.weight is None:
            return 0
        count = 1
        for size in self.weight.shape:
            count *= size
        return 2 * count if self.packed else count

    @property
    def parameters(self) -> int:
        """Weights and biases that it holds."""
        bias = self.tensors.get(".bias")
        return self.elements + (math.prod(bias.shape) if bias is not None else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(info.nbytes for info in self.tensors.values())


@dataclass
class Model:
    """A checkpoint as the audit's rules see it.

    Attributes:
        files: the opened files.
        architecture: its entry in the architecture table.
        complete: every shard could be read, so what is absent is really absent.
        modules: all modules that are stored, by name.
        expected: all modules that config.json implies, draft head included, with their class.
        unknown: tensors that belong to no module of the architecture.
        lists: the exclude lists that exist, by the file that holds them.
    """

    files: CheckpointFiles
    architecture: Architecture
    complete: bool
    modules: dict[str, Module]
    expected: Mapping[str, ModuleClass]
    unknown: tuple[str, ...]
    lists: Mapping[str, ExcludeList]

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return self.files.config

    @cached_property
    def has_draft(self) -> bool:
        """Whether any tensor of a draft head is stored."""
        return any(name.startswith("mtp.") for name in self.files.tensors)

    def covered(self, module: str) -> tuple[bool, bool]:
        """(some list covers the module, all lists cover it)."""
        answers = [entries.covers(module) for entries in self.lists.values()]
        return any(answers), bool(answers) and all(answers)

    def packed(self) -> Iterator[Module]:
        """The modules whose weight is packed."""
        return (module for module in self.modules.values() if module.packed)

    def groups(self) -> Iterator[list[Module]]:
        """The packed modules, those that share a weight amax together."""
        done: set[str] = set()
        for module in self.packed():
            if module.name in done:
                continue
            names = amax_group(self.architecture, module.name)
            members = [self.modules[n] for n in names if n in self.modules]
            members = [member for member in members if member.packed]
            done.update(member.name for member in members)
            yield members

    def kv_cache(self) -> str | None:
        """The cache's declared format (`FP8`), as hf_quant_config.json has it, else config.json."""
        quantization = (self.files.quant_config or {}).get("quantization")
        if isinstance(quantization, dict):
            algo = quantization.get("kv_cache_quant_algo")
            return algo if isinstance(algo, str) else None
        section = self.config.get("quantization_config")
        return "FP8" if isinstance(section, dict) and section.get("kv_cache_scheme") else None


def build_model(
    files: CheckpointFiles,
    architecture: Architecture,
    lists: Mapping[str, ExcludeList],
    *,
    complete: bool,
) -> Model:
    """Sort a checkpoint's tensors into modules."""
    modules: dict[str, Module] = {}
    unknown: list[str] = []
    for name, info in files.tensors.items():
        match = classify(architecture, name)
        if match is None or (match.suffix == ".weight_scale_inv"):
            unknown.append(name)
            continue
        module = modules.get(match.module)
        if module is None:
            module = modules[match.module] = Module(
                match.module, match.module_class, match.draft, match.layer, match.expert
            )
        module.tensors[match.suffix] = info
    expected = dict(expected_modules(architecture, files.config, draft=True))
    stale = tuple(name for name in unknown if not _take_apart(files, architecture, name, modules))
    return Model(files, architecture, complete, modules, expected, stale, lists)


def _take_apart(
    files: CheckpointFiles, architecture: Architecture, name: str, modules: dict[str, Module]
) -> bool:
    """Take a raw draft head's fused expert tensor as the modules that it holds.

    Returns:
        False when `name` is no such tensor, or its experts are there one by one as well.
    """
    parts = _parts_of(architecture, files.tensors[name])
    held = [modules[part] for part in parts if part in modules]
    if not parts or any(module.weight is not None for module in held):
        return False
    for module_name, info in parts.items():
        match = classify(architecture, info.name)
        if match is None:
            return False
        module = modules.setdefault(
            module_name,
            Module(module_name, match.module_class, match.draft, match.layer, match.expert),
        )
        module.tensors[".weight"] = info
    return True


def _parts_of(architecture: Architecture, info: TensorInfo) -> dict[str, TensorInfo]:
    """Module -> where it lies in the fused tensor [E, n*rows, columns]; empty for any other."""
    for layout in architecture.layouts:
        for template, stacked in layout.fused.items():
            before, _, after = template.partition("{layer}")
            layer = info.name.removeprefix(before).removesuffix(after)
            if f"{before}{layer}{after}" != info.name or not layer.isdigit():
                continue
            if len(info.shape) != 3 or not info.shape[0] or info.shape[1] % len(stacked):
                return {}
            shape = (info.shape[1] // len(stacked), info.shape[2])
            size = info.nbytes // info.shape[0] // len(stacked)
            parts: dict[str, TensorInfo] = {}
            for expert in range(info.shape[0]):
                for index, part in enumerate(stacked):
                    module = part.replace("{layer}", layer).replace("{expert}", str(expert))
                    start = info.start + (expert * len(stacked) + index) * size
                    parts[module] = TensorInfo(
                        f"{module}.weight", info.dtype, shape, info.file, start, size
                    )
            return parts
    return {}


def is_scale(suffix: str) -> bool:
    """Whether a tensor's suffix names a scale."""
    return suffix in SCALE_SUFFIXES
