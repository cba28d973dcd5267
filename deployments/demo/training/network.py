"""The model: a Qwen3.5-MoE with its draft head, in functions that a CUDA graph can hold."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3_5MoeForConditionalGeneration
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import MtpLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig

from training.delta_rule import chunked_delta_rule
from training.functions import causal_convolution, gated, normalized, normalized_gated, weighted
from training.precision import BF16
from training.rounding import fp8, is_quantized, nvfp4, straight_through


class Network(nn.Module):
    """The main model with its draft head, computing in BF16 and in a chosen precision."""

    def __init__(self, config: Qwen3_5MoeConfig) -> None:
        super().__init__()
        self.precision = BF16
        self.main = Qwen3_5MoeForConditionalGeneration(config)
        self.text = self.main.model.language_model
        self.draft = self._build_draft()
        self._prepare_modules()

    def _build_draft(self) -> MtpLayer:
        """Make one full-attention decoder layer of the main model's kind into a draft head."""
        config = copy.deepcopy(self.main.config.text_config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        block = self.text.layers[-1]
        draft = MtpLayer(config, type(block), type(self.text.norm), layer_idx=0)
        for module in draft.modules():
            self.text._init_weights(module)
        return draft

    def _prepare_modules(self) -> None:
        """Swap in graph-friendly functions that compute the same, and the rounding hooks."""
        ALL_ATTENTION_FUNCTIONS.register("demo", self._attention)
        ALL_EXPERTS_FUNCTIONS.register("demo", self._experts)
        for config in (self.text.config, self.draft.config):
            config._attn_implementation = "demo"
            config._experts_implementation = "demo"
        for name, module in self.named_modules():
            if isinstance(module, type(self.text.norm)):
                module.forward = functools.partial(_call_norm, module)
            if hasattr(module, "chunk_gated_delta_rule"):
                module.norm.forward = functools.partial(_call_gated_norm, module.norm)
                module.chunk_gated_delta_rule = chunked_delta_rule
                module.causal_conv1d_fn = causal_convolution
            if isinstance(module, nn.Linear) and is_quantized(name + ".weight"):
                module.register_forward_pre_hook(lambda _, args: (self._rounded(args[0]),))

    def _rounded(self, x: Tensor) -> Tensor:
        return straight_through(x, nvfp4) if self.precision.activations else x

    def _attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kw: Any
    ) -> tuple[Tensor, Tensor | None]:
        if self.precision.cache:
            key, value = straight_through(key, fp8), straight_through(value, fp8)
        return sdpa_attention_forward(module, query, key, value, *args, **kw)

    def _experts(self, module: Any, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Run all (few, small) experts on every token and weight them: no data-driven shapes."""
        count, double, width = module.gate_up_proj.shape
        weights = shares.new_zeros(x.shape[0], count).scatter(1, chosen, shares)
        both = F.linear(self._rounded(x), module.gate_up_proj.view(-1, width))
        gate, up = both.view(-1, count, 2, double // 2).unbind(2)
        hidden = weighted(self._rounded(gated(gate, up)), weights)
        return hidden.flatten(1) @ module.down_proj.transpose(1, 2).reshape(-1, width)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the main model's final-normed hidden states."""
        masks = {"full_attention": None, "linear_attention": None}
        return self.text(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head, which the draft shares without training it."""
        return F.linear(hidden, self.main.lm_head.weight)

    def embed(self, ids: Tensor) -> Tensor:
        """Look up the embeddings, which the draft shares too."""
        return F.embedding(ids, self.text.embed_tokens.weight)

    def first_draft(self, hidden: Tensor, tokens: Tensor, cache: DynamicCache) -> Tensor:
        """Draft from the main model: entry i sees hidden state i and token i + 1."""
        return self._apply_draft(hidden, tokens, 0, None, cache)

    def second_draft(self, drafted: Tensor, tokens: Tensor, cache: DynamicCache) -> Tensor:
        """Draft from the draft: entry i sees the first pass up to i, and itself."""
        size = tokens.shape[1]
        past = torch.ones(size, size, dtype=torch.bool, device=tokens.device)
        mask = torch.cat([past.tril(), torch.eye(size, dtype=torch.bool, device=past.device)], 1)
        return self._apply_draft(drafted, tokens, 1, mask[None, None], cache)

    def _apply_draft(
        self, hidden: Tensor, tokens: Tensor, start: int, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        positions = positions.expand(tokens.shape[0], -1)
        rotary = self.text.rotary_emb(hidden, positions)
        return self.draft(self.embed(tokens), hidden, rotary, mask, positions, cache)

    def without_layer(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return what the draft head gives when its decoder layer holds only zeros."""
        draft = self.draft
        both = torch.cat([draft.enorm(self.embed(tokens)), draft.hnorm(hidden)], dim=-1)
        return draft.post_norm(draft.eh_proj(both))


def _call_norm(module: Any, x: Tensor) -> Tensor:
    return normalized(x, module.weight, module.eps)


def _call_gated_norm(module: Any, x: Tensor, gate: Tensor) -> Tensor:
    return normalized_gated(x, gate, module.weight, module.variance_epsilon)
