"""How sources name the tensors of a draft head, as data, and how a layout is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import BadInputError


@dataclass(frozen=True)
class DraftLayout:
    """How a source names the draft head's tensors.

    Attributes:
        name: stable name, e.g. `qwen3.6-fused`.
        tensors: templates of all tensor names, with `{layer}` and `{expert}`.
        fused: tensor template -> (module templates that it holds, stacked along rows): the first
            axis is the expert, the second is split evenly over the modules.
    """

    name: str
    tensors: tuple[str, ...]
    fused: Mapping[str, tuple[str, ...]]


def under(parent: str, *leaves: str) -> tuple[str, ...]:
    """Names of `leaves` below `parent`."""
    return tuple(f"{parent}.{leaf}" for leaf in leaves)


PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def _weights(parent: str, *leaves: str) -> tuple[str, ...]:
    return tuple(f"{name}.weight" for name in under(parent, *leaves))


DRAFT_LAYER = "mtp.layers.{layer}"
_DRAFT_FRAME = (
    *_weights("mtp", "fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    *_weights(DRAFT_LAYER, "input_layernorm", "post_attention_layernorm"),
    *_weights(
        f"{DRAFT_LAYER}.self_attn", "q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"
    ),
)
_DRAFT_MOE = (
    *_weights(f"{DRAFT_LAYER}.mlp", "gate", "shared_expert_gate"),
    *_weights(f"{DRAFT_LAYER}.mlp.shared_expert", *PROJECTIONS),
)
_DRAFT_EXPERT = f"{DRAFT_LAYER}.mlp.experts.{{expert}}"

FUSED = DraftLayout(
    "qwen3.6-fused",
    (
        *_DRAFT_FRAME,
        *_DRAFT_MOE,
        f"{DRAFT_LAYER}.mlp.experts.gate_up_proj",
        f"{DRAFT_LAYER}.mlp.experts.down_proj",
    ),
    {
        f"{DRAFT_LAYER}.mlp.experts.gate_up_proj": under(_DRAFT_EXPERT, "gate_proj", "up_proj"),
        f"{DRAFT_LAYER}.mlp.experts.down_proj": under(_DRAFT_EXPERT, "down_proj"),
    },
)
PER_EXPERT = DraftLayout(
    "qwen3.5-per-expert",
    (*_DRAFT_FRAME, *_DRAFT_MOE, *_weights(_DRAFT_EXPERT, *PROJECTIONS)),
    {},
)
DENSE = DraftLayout("dense", (*_DRAFT_FRAME, *_weights(f"{DRAFT_LAYER}.mlp", *PROJECTIONS)), {})


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def draft_layer_count(config: Mapping[str, Any]) -> int:
    """Layers of the draft head as the config declares them (1 when it does not say)."""
    return int(text_config(config).get("mtp_num_hidden_layers") or 1)


def expert_count(config: Mapping[str, Any]) -> int:
    """Routed experts of a layer; 0 for a dense model."""
    return int(text_config(config).get("num_experts") or 0)


def expand(template: str, layer: int | None, experts: int) -> Iterator[str]:
    """The names that a template stands for, in one layer, over all experts."""
    name = template if layer is None else template.replace("{layer}", str(layer))
    if "{expert}" not in name:
        yield name
        return
    for expert in range(experts):
        yield name.replace("{expert}", str(expert))


def draft_tensors(layout: DraftLayout, config: Mapping[str, Any]) -> tuple[str, ...]:
    """All tensor names that a source of this layout and config has for its draft head."""
    experts = expert_count(config)
    names: list[str] = []
    for template in layout.tensors:
        layers = range(draft_layer_count(config)) if "{layer}" in template else (None,)
        for layer in layers:
            names.extend(expand(template, layer, experts))
    return tuple(names)


def match_layout(
    layouts: Sequence[DraftLayout],
    config: Mapping[str, Any],
    names: Collection[str],
    origin: str,
) -> DraftLayout:
    """The layout of a source's draft head, told by its `mtp.*` names (FP8 scales apart).

    Args:
        layouts: those that the source's architecture knows.
        config: its config.json.
        names: all its tensor names.
        origin: its path, named in errors.

    Raises:
        BadInputError: `draft-missing` without any `mtp.*`; `draft-layout` when no layout has
            exactly these names: the nearest one and the first difference are named.
    """
    present = {
        name for name in names if name.startswith("mtp.") and not name.endswith("_scale_inv")
    }
    if not present:
        raise BadInputError(
            "draft-missing",
            f"{origin}: no mtp.* tensor, so there is no draft head to carry over.",
            "Use a source that has one, or set draft.precision to none.",
        )
    best, difference = layouts[0], None
    for layout in layouts:
        unlike = present ^ set(draft_tensors(layout, config))
        if not unlike:
            return layout
        if difference is None or len(unlike) < len(difference):
            best, difference = layout, unlike
    first = min(difference or set())
    word = "unexpected" if first in present else "missing"
    known = ", ".join(layout.name for layout in layouts)
    raise BadInputError(
        "draft-layout",
        f"{origin}: draft head is of no known layout ({known}): nearest is {best.name},"
        f" {len(difference or ())} names differ, first: {first} ({word}).",
        "Add the layout to tasks/architectures.py, or set draft.precision to none.",
    )
