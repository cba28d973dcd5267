"""What differs between models, as data: modules, what is quantized, what shares scales.

A `ModuleClass` names its modules by templates such as `mlp.experts.{expert}.up_proj`; one template
gives both the pattern that recognises a name and, with a config, the list of all names. Nothing
here reads a weight: names and config values in, names out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from tasks.draft_layouts import (
    DENSE,
    DRAFT_LAYER,
    FUSED,
    PER_EXPERT,
    PROJECTIONS,
    DraftLayout,
    draft_layer_count,
    draft_tensors,
    expand,
    expert_count,
    match_layout,
    text_config,
    under,
)
from tasks.errors import BadInputError
from tasks.spec import QFormat

__all__ = [
    "ARCHITECTURES",
    "QFORMATS",
    "SCALE_SUFFIXES",
    "Architecture",
    "DraftLayout",
    "Match",
    "ModuleClass",
    "amax_group",
    "architecture_of",
    "classify",
    "draft_layer_count",
    "draft_layout",
    "draft_tensors",
    "expected_modules",
    "expert_count",
    "last_full_attention",
    "layer_types",
    "main_analogue",
    "split_tensor",
    "text_config",
]

Where = Literal["model", "main", "draft"]
LayerType = Literal["any", "full_attention", "linear_attention"]
QFORMATS: tuple[QFormat, ...] = get_args(QFormat)
WITH_MLP: frozenset[QFormat] = frozenset({"nvfp4", "nvfp4_mlp_only"})
ALL: frozenset[QFormat] = frozenset(QFORMATS)
UNIFORM: frozenset[QFormat] = frozenset({"nvfp4"})
NEVER: frozenset[QFormat] = frozenset()

SCALE_SUFFIXES = (".weight_scale", ".weight_scale_2", ".input_scale", ".k_scale", ".v_scale")
"""Tensors that ModelOpt's unified export puts beside a module's weight."""
TENSOR_SUFFIXES = (".weight", ".bias", ".weight_scale_inv", *SCALE_SUFFIXES)


@dataclass(frozen=True)
class ModuleClass:
    """Modules that are treated alike.

    Attributes:
        name: stable name, e.g. `routed-experts`.
        templates: module names below the layer (`where` main or draft) or in full (model);
            `{expert}` runs over the experts, a trailing `**` stands for everything below.
        where: `main` and `draft` templates are relative to one layer of the main model or the
            draft head; the classes of `main` exist in the draft head's layers too.
        layer_type: the decoder layers that have it.
        quantized_in: the qformats that make it NVFP4; empty: must be BF16 always.
        linear: a matrix that multiplies activations (it could be quantized).
        bare: tensor names carry no `.weight` (parameters, not modules).
    """

    name: str
    templates: tuple[str, ...]
    where: Where = "main"
    layer_type: LayerType = "any"
    quantized_in: frozenset[QFormat] = NEVER
    linear: bool = False
    bare: bool = False

    @property
    def must_be_bf16(self) -> bool:
        """Whether no qformat may quantize it."""
        return not self.quantized_in


@dataclass(frozen=True)
class Architecture:
    """One architecture that can be released.

    Attributes:
        name: the entry of `architectures` in config.json.
        model_type: `model_type` in config.json.
        layers: prefix of the main model's decoder layers, with `{layer}`.
        draft_layers: prefix of the draft head's layers, with `{layer}`.
        classes: all modules; the first class that matches a name owns it.
        shared_amax: leaf names that, under one parent, are given one weight amax.
        vision: wildcard of the vision tower as ModelOpt's exclude list spells it.
        layouts: key layouts of the draft head.
        fused_experts: leaf tensor names that hold all experts in one; stale when left beside
            per-expert tensors.
        norm_offset: what a plain RMS norm adds to its weight before it multiplies.
        activation: `hidden_act` in config.json.
    """

    name: str
    model_type: str
    layers: str
    draft_layers: str
    classes: tuple[ModuleClass, ...]
    shared_amax: tuple[tuple[str, ...], ...]
    vision: str
    layouts: tuple[DraftLayout, ...]
    fused_experts: tuple[str, ...]
    norm_offset: float = 1.0
    activation: str = "silu"


@dataclass(frozen=True)
class Match:
    """A tensor name, understood.

    Attributes:
        module_class: the class that owns it.
        module: module name without `.weight` or a scale's suffix.
        suffix: that suffix, empty for bare parameters.
        draft: whether it belongs to the draft head.
        layer: decoder layer, None outside the layers.
        expert: routed expert, None elsewhere.
    """

    module_class: ModuleClass
    module: str
    suffix: str
    draft: bool
    layer: int | None
    expert: int | None


_COMMON = (
    ModuleClass(
        "attention",
        under("self_attn", "q_proj", "k_proj", "v_proj", "o_proj"),
        layer_type="full_attention",
        quantized_in=UNIFORM,
        linear=True,
    ),
    ModuleClass(
        "deltanet",
        under("linear_attn", "in_proj_qkv", "in_proj_z", "out_proj"),
        layer_type="linear_attention",
        quantized_in=UNIFORM,
        linear=True,
    ),
    ModuleClass(
        "deltanet-gates",
        under("linear_attn", "in_proj_a", "in_proj_b"),
        layer_type="linear_attention",
        linear=True,
    ),
    ModuleClass("deltanet-conv", ("linear_attn.conv1d",), layer_type="linear_attention"),
    ModuleClass("deltanet-norm", ("linear_attn.norm",), layer_type="linear_attention"),
    ModuleClass(
        "deltanet-decay",
        under("linear_attn", "A_log", "dt_bias"),
        layer_type="linear_attention",
        bare=True,
    ),
    ModuleClass(
        "attention-norms", under("self_attn", "q_norm", "k_norm"), layer_type="full_attention"
    ),
    ModuleClass("layer-norms", ("input_layernorm", "post_attention_layernorm")),
    ModuleClass("embeddings", ("model.language_model.embed_tokens",), where="model"),
    ModuleClass("final-norm", ("model.language_model.norm",), where="model"),
    ModuleClass("lm-head", ("lm_head",), where="model", linear=True),
    ModuleClass("vision", ("model.visual.**",), where="model"),
    ModuleClass("draft-fc", ("mtp.fc",), where="draft", linear=True),
    ModuleClass(
        "draft-norms",
        ("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"),
        where="draft",
    ),
)

_MOE = (
    ModuleClass(
        "routed-experts",
        under("mlp.experts.{expert}", *PROJECTIONS),
        quantized_in=ALL,
        linear=True,
    ),
    ModuleClass(
        "shared-expert",
        under("mlp.shared_expert", *PROJECTIONS),
        quantized_in=WITH_MLP,
        linear=True,
    ),
    ModuleClass("router", ("mlp.gate",), linear=True),
    ModuleClass("shared-expert-gate", ("mlp.shared_expert_gate",), linear=True),
)

_DENSE = (ModuleClass("mlp", under("mlp", *PROJECTIONS), quantized_in=WITH_MLP, linear=True),)

_SHARED_AMAX = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
)


ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            name="Qwen3_5MoeForConditionalGeneration",
            model_type="qwen3_5_moe",
            layers="model.language_model.layers.{layer}",
            draft_layers=DRAFT_LAYER,
            classes=(*_MOE, *_COMMON),
            shared_amax=_SHARED_AMAX,
            vision="model.visual*",
            layouts=(FUSED, PER_EXPERT),
            fused_experts=("gate_up_proj", "down_proj"),
        ),
        Architecture(
            name="Qwen3_5ForConditionalGeneration",
            model_type="qwen3_5",
            layers="model.language_model.layers.{layer}",
            draft_layers=DRAFT_LAYER,
            classes=(*_DENSE, *_COMMON),
            shared_amax=_SHARED_AMAX,
            vision="model.visual*",
            layouts=(DENSE,),
            fused_experts=(),
        ),
    )
}


def architecture_of(config: Mapping[str, Any], origin: str) -> Architecture:
    """The architecture that a config.json names; `origin` (its path) is named in the error.

    Raises:
        BadInputError: `architecture-unsupported`.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise BadInputError(
            "architecture-unsupported",
            f"{origin}: architectures: `{name}` is not supported.",
            f"Use a model of {known}.",
        )
    return found


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """`full_attention` or `linear_attention` for each decoder layer of the main model.

    Without `layer_types` the config's `full_attention_interval` (4 when unset) decides.
    """
    text = text_config(config)
    given = text.get("layer_types")
    if isinstance(given, list) and given:
        return tuple(str(kind) for kind in given)
    interval = int(text.get("full_attention_interval") or 4)
    return tuple(
        "linear_attention" if (index + 1) % interval else "full_attention"
        for index in range(int(text["num_hidden_layers"]))
    )


def last_full_attention(config: Mapping[str, Any]) -> int:
    """Index of the last full-attention layer: the draft layer's analogue in the main model.

    Raises:
        BadInputError: the model has none.
    """
    full = [index for index, kind in enumerate(layer_types(config)) if kind == "full_attention"]
    if not full:
        raise BadInputError(
            "architecture-unsupported",
            "config.json: layer_types: no full_attention layer.",
            "A draft head needs one to mirror.",
        )
    return full[-1]


@cache
def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template)
    escaped = escaped.replace(r"\{layer\}", r"(?P<layer>\d+)")
    escaped = escaped.replace(r"\{expert\}", r"(?P<expert>\d+)")
    return re.compile(escaped.replace(r"\*\*", r".+"))


def _full_templates(architecture: Architecture, item: ModuleClass) -> tuple[tuple[str, bool], ...]:
    """(template of the whole name, belongs to the draft head) for every template of a class."""
    if item.where != "main":
        return tuple((template, item.where == "draft") for template in item.templates)
    main = tuple((f"{architecture.layers}.{t}", False) for t in item.templates)
    if item.layer_type == "linear_attention":
        return main
    return (*main, *((f"{architecture.draft_layers}.{t}", True) for t in item.templates))


@cache
def _recognisers(name: str) -> tuple[tuple[re.Pattern[str], ModuleClass, bool], ...]:
    architecture = ARCHITECTURES[name]
    return tuple(
        (_pattern(template), item, draft)
        for item in architecture.classes
        for template, draft in _full_templates(architecture, item)
    )


def split_tensor(tensor: str) -> tuple[str, str]:
    """`a.b.weight_scale` -> (`a.b`, `.weight_scale`); no known suffix: (`tensor`, ``)."""
    stem, dot, leaf = tensor.rpartition(".")
    suffix = dot + leaf
    return (stem, suffix) if suffix in TENSOR_SUFFIXES else (tensor, "")


def classify(architecture: Architecture, tensor: str) -> Match | None:
    """Which module a tensor belongs to; None for a name that the architecture does not have.

    Fused expert tensors (`...experts.gate_up_proj`) match no class: a checkpoint has none.
    """
    module, suffix = split_tensor(tensor)
    for pattern, item, draft in _recognisers(architecture.name):
        found = pattern.fullmatch(module)
        if found is None or (item.bare and suffix):
            continue
        parts = found.groupdict()
        layer, expert = parts.get("layer"), parts.get("expert")
        return Match(
            module_class=item,
            module=module,
            suffix=suffix,
            draft=draft,
            layer=None if layer is None else int(layer),
            expert=None if expert is None else int(expert),
        )
    return None


def expected_modules(
    architecture: Architecture, config: Mapping[str, Any], *, draft: bool
) -> Iterator[tuple[str, ModuleClass]]:
    """Every module that a model of this config has, with its class.

    Open-ended classes (the vision tower) are left out. `draft` adds the draft head's modules.
    With tied embeddings there is no `lm_head` of its own.
    """
    kinds, experts = layer_types(config), expert_count(config)
    tied = bool(config.get("tie_word_embeddings") or text_config(config).get("tie_word_embeddings"))
    for item in architecture.classes:
        if any("**" in template for template in item.templates):
            continue
        if item.where == "model" and not (item.name == "lm-head" and tied):
            yield from ((name, item) for name in item.templates)
        if item.where == "draft" and draft:
            yield from ((name, item) for name in item.templates)
        if item.where != "main":
            continue
        for template, of_draft in _full_templates(architecture, item):
            if of_draft and not draft:
                continue
            layers = range(draft_layer_count(config)) if of_draft else range(len(kinds))
            for layer in layers:
                kind = "full_attention" if of_draft else kinds[layer]
                if item.layer_type in ("any", kind):
                    yield from ((name, item) for name in expand(template, layer, experts))


def main_analogue(architecture: Architecture, config: Mapping[str, Any], module: str) -> str | None:
    """The main model's module that a draft layer's module mirrors; None outside the layers.

    `mtp.layers.0.self_attn.q_proj` -> `model.language_model.layers.39.self_attn.q_proj`.
    """
    found = re.fullmatch(_pattern(architecture.draft_layers).pattern + r"\.(?P<rest>.+)", module)
    if found is None:
        return None
    layer = architecture.layers.replace("{layer}", str(last_full_attention(config)))
    return f"{layer}.{found['rest']}"


def amax_group(architecture: Architecture, module: str) -> tuple[str, ...]:
    """All modules, this one included, whose weights share one amax (so one weight_scale_2)."""
    parent, _, leaf = module.rpartition(".")
    for leaves in architecture.shared_amax:
        if leaf in leaves:
            return tuple(f"{parent}.{name}" for name in leaves)
    return (module,)


def draft_layout(
    architecture: Architecture, config: Mapping[str, Any], names: Collection[str], origin: str
) -> DraftLayout:
    """The layout of a source's draft head among those that its architecture knows.

    Raises:
        BadInputError: as `match_layout`.
    """
    return match_layout(architecture.layouts, config, names, origin)
