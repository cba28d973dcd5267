"""The MTP draft head as a torch module, built from transformers' `MtpLayer` and the decoder layer.

transformers drops `mtp.*` at load and drafts one token a layer; serving engines run NEXTN, which
applies the ONE layer again and again on its own hidden state. This module is that layer: the
reference engine drafts with it, calibration measures its activations.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import MtpLayer

from tasks.errors import BadInputError

_FAMILIES = {"qwen3_5_moe_text": "Qwen3_5Moe", "qwen3_5_text": "Qwen3_5"}
# Checkpoint name -> name in MtpLayer. The input of `fc` is [embedding, hidden], as MtpLayer has it.
_RENAMED = {
    "mtp.fc.": "eh_proj.",
    "mtp.norm.": "post_norm.",
    "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.",
    "mtp.layers.0.": "mtp_block.",
}


class DecoderClasses(NamedTuple):
    """A family's own classes in transformers."""

    layer: type[nn.Module]
    norm: type[nn.Module]
    mlp: type[nn.Module]
    rotary: type[nn.Module]


def decoder_classes(text_config: Any) -> DecoderClasses:
    """The decoder layer, norm, MLP and rotary classes of the model that `text_config` describes.

    Raises:
        BadInputError: a `model_type` for which no draft head is known.
    """
    family = str(text_config.model_type)
    if family not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise BadInputError(
            "unsupported-architecture",
            f"text_config.model_type `{family}`: no draft head is known for it.",
            f"Use a model of one of: {known}.",
        )
    package = family.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    prefix = _FAMILIES[family]
    parts = ("DecoderLayer", "RMSNorm", "MLP", "TextRotaryEmbedding")
    return DecoderClasses(*(getattr(module, prefix + part) for part in parts))


class PerExpert(nn.ModuleList):
    """Routed experts as one MLP each, so that every linear can be hooked on its own.

    Same result as transformers' fused `experts`: slow, made for measuring. An expert that no token
    reached is not called.
    """

    def __init__(self, text_config: Any, mlp: type[nn.Module]) -> None:
        size = text_config.moe_intermediate_size
        super().__init__(
            mlp(text_config, intermediate_size=size) for _ in range(text_config.num_experts)
        )

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """[T, H] tokens, [T, K] expert numbers and their weights -> [T, H]."""
        total = torch.zeros_like(hidden)
        for number in chosen.unique().tolist():
            token, rank = torch.where(chosen == number)
            part = self[number](hidden[token]) * weights[token, rank, None]
            total.index_add_(0, token, part.to(total.dtype))
        return total


class DraftHead(nn.Module):
    """The one NEXTN layer.

    Args:
        text_config: The main model's text config (a copy is made).
        per_expert: Routed experts as single MLPs (`PerExpert`) for hooks, not as fused tensors.
        attention: Name of the attention implementation in transformers.
    """

    def __init__(self, text_config: Any, per_expert: bool = False, attention: str = "sdpa") -> None:
        super().__init__()
        config = copy.deepcopy(text_config)
        config.num_hidden_layers = 1
        config.layer_types = ["full_attention"]
        config._attn_implementation = attention
        classes = decoder_classes(config)
        self.config = config
        self.layer = MtpLayer(config, classes.layer, classes.norm, 0)
        self.rotary = classes.rotary(config)
        if per_expert and hasattr(self.layer.mtp_block.mlp, "experts"):
            self.layer.mtp_block.mlp.experts = PerExpert(config, classes.mlp)

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        cache: Any = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Draft: what follows token t+1, given token t+1 and the hidden state at t.

        Args:
            embeddings: [B, S, H], embeddings of the tokens one to the right of `hidden`'s.
            hidden: [B, S, H], the main model's final-normed hidden states, or this head's own
                output when it is applied again.
            positions: [B, S], positions for RoPE (only differences matter).
            cache: Anything with `update(k, v, layer_idx) -> (k, v)`, k and v [B, heads, S, D]
                after RoPE; None: no context before this call.
            mask: Added to (float) or selecting (bool) attention scores, [B, 1, S, L]; None: causal.

        Returns:
            [B, S, H], final-normed: `lm_head` of it is the draft's logits.
        """
        output: Tensor = self.layer(
            embeddings,
            hidden,
            position_embeddings=self.rotary(embeddings, positions),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
        )
        return output

    def linears(self) -> dict[str, nn.Linear]:
        """Every linear by its name in a per-expert checkpoint, e.g. `mtp.layers.0.mlp.experts.3.
        up_proj`; routed experts only when built with `per_expert`."""
        return {
            checkpoint_name(name): module
            for name, module in self.layer.named_modules()
            if isinstance(module, nn.Linear)
        }

    @property
    def attention(self) -> nn.Module:
        """The self-attention module (its K and V reach `cache.update`)."""
        module: nn.Module = self.layer.mtp_block.self_attn
        return module


class KvWatch:
    """A `cache` that keeps no context and records the largest |K| and |V| it has seen."""

    def __init__(self) -> None:
        self.k_amax = 0.0
        self.v_amax = 0.0

    def update(self, k: Tensor, v: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Record, hand back unchanged."""
        self.k_amax = max(self.k_amax, float(k.abs().amax()))
        self.v_amax = max(self.v_amax, float(v.abs().amax()))
        return k, v


def checkpoint_name(name: str) -> str:
    """Name inside `MtpLayer` -> name in a checkpoint (`eh_proj` -> `mtp.fc`)."""
    for outside, inside in _RENAMED.items():
        if f"{name}.".startswith(inside):
            return (outside + f"{name}."[len(inside) :]).rstrip(".")
    raise KeyError(name)


def load_draft(
    head: DraftHead, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
) -> None:
    """Fill `head` from raw `mtp.*` tensors of plain values, fused or per expert, cast to `dtype`.

    Values are never judged. The head may have been built on the meta device.

    Raises:
        BadInputError: a tensor is missing or has another shape than the config says.
    """
    experts = experts_either_way(tensors, "mtp.layers.0.mlp.experts.")
    state = {}
    for name, wanted in head.layer.state_dict().items():
        outside = checkpoint_name(name)
        found = experts[outside]() if outside in experts else tensors.get(outside)
        if found is None:
            raise BadInputError(
                "draft-partial",
                f"`{outside}` of the draft head is missing.",
                "Give a checkpoint that has all of `mtp.*`.",
            )
        if found.shape != wanted.shape:
            raise BadInputError(
                "draft-shape",
                f"`{outside}` has shape {list(found.shape)}; the config asks {list(wanted.shape)}.",
                "Give the draft head of this very model.",
            )
        state[name] = found.to(dtype)
    head.layer.load_state_dict(state, assign=True)
    head.layer.requires_grad_(False)
    if head.rotary.inv_freq.is_meta:
        head.rotary = type(head.rotary)(head.config, device="cpu")


def experts_either_way(
    tensors: Mapping[str, Tensor], prefix: str
) -> dict[str, Callable[[], Tensor]]:
    """Routed experts under `prefix` in the layout that the checkpoint does not have.

    Names of that other layout (fused `gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I], or
    `N.{gate,up,down}_proj.weight`) -> how to make them.

    Calling one raises BadInputError (`tensor-missing`) when a part is missing.
    """
    gate_up, down = tensors.get(prefix + "gate_up_proj"), tensors.get(prefix + "down_proj")
    made: dict[str, Callable[[], Tensor]] = {}
    if gate_up is not None and down is not None:
        for number in range(gate_up.shape[0]):
            one = f"{prefix}{number}."
            half = gate_up.shape[1] // 2
            made[one + "gate_proj.weight"] = partial(_row, gate_up[:, :half], number)
            made[one + "up_proj.weight"] = partial(_row, gate_up[:, half:], number)
        for number in range(down.shape[0]):
            made[f"{prefix}{number}.down_proj.weight"] = partial(_row, down, number)
        return made
    places = (name[len(prefix) :].split(".")[0] for name in tensors if name.startswith(prefix))
    count = 1 + max((int(place) for place in places if place.isdigit()), default=-1)
    if count == 0:
        return made
    pair = ("gate_proj", "up_proj")
    made[prefix + "gate_up_proj"] = partial(_stack, tensors, prefix, count, pair)
    made[prefix + "down_proj"] = partial(_stack, tensors, prefix, count, ("down_proj",))
    return made


def _row(stacked: Tensor, number: int) -> Tensor:
    return stacked[number]


def _stack(
    tensors: Mapping[str, Tensor], prefix: str, count: int, parts: tuple[str, ...]
) -> Tensor:
    names = [[f"{prefix}{number}.{part}.weight" for part in parts] for number in range(count)]
    for name in (one for group in names for one in group):
        if name not in tensors:
            raise BadInputError(
                "tensor-missing", f"`{name}` is missing.", "Give a checkpoint that is whole."
            )
    return torch.stack([torch.cat([tensors[name] for name in group]) for group in names])
