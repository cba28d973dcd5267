"""The main model and the draft head over a batch of rows, loaded from a checkpoint's files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.draft_head import DraftHead, experts_either_way, load_draft
from tasks.serve.reference.delta import CHUNK, DeltaState, Pending, delta_step
from tasks.serve.reference.experts import GroupedExperts
from tasks.serve.reference.kv import ATTENTION, KvCache, KvScales, window
from tasks.serve.reference.weights import LoadError, PlainTensors

PREFIX = "model.language_model."
DRAFT_PREFIX = "mtp.layers.0."


def read_text_config(root: Path) -> Any:
    """The text part of a checkpoint's config, as transformers reads it."""
    from transformers import AutoConfig

    config = copy.deepcopy(AutoConfig.from_pretrained(root))
    text = config.get_text_config()
    text._attn_implementation = ATTENTION
    return text


def kv_scales(tensors: PlainTensors, attention: str, fp8: bool) -> KvScales | None:
    """A layer's scales; one that is missing reads as 1.0, as SGLang reads it."""
    if not fp8:
        return None
    return KvScales(
        tensors.scalar(f"{attention}.k_proj.k_scale", 1.0),
        tensors.scalar(f"{attention}.v_proj.v_scale", 1.0),
    )


class MainModel:
    """transformers' text model with `rows` independent requests in flight.

    Args:
        text: text config.
        tensors: the checkpoint.
        fp8: whether K and V pass through FP8.
        rows: requests, at most.
        like: an empty tensor that says device and dtype.

    Raises:
        LoadError: a tensor is missing or has a wrong shape.
    """

    def __init__(
        self, text: Any, tensors: PlainTensors, fp8: bool, rows: int, like: Tensor
    ) -> None:
        self.text, self.like = text, like
        self.model = _build_text_model(text, tensors, like)
        self.lm_head = _lm_head(text, tensors, self.model, like)
        full = [i for i, kind in enumerate(text.layer_types) if kind == "full_attention"]
        scales = {i: kv_scales(tensors, f"{PREFIX}layers.{i}.self_attn", fp8) for i in full}
        self.kv = KvCache(scales, text.num_key_value_heads, text.head_dim, like)
        self.delta = {
            i: DeltaState(layer.linear_attn, rows, like)
            for i, layer in enumerate(self.model.layers)
            if i not in scales
        }

    def embed(self, tokens: Tensor) -> Tensor:
        """[N, M] ids -> [N, M, H]."""
        embedded: Tensor = self.model.embed_tokens(tokens)
        return embedded

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V]."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def extend(
        self, tokens: Tensor, rows: slice, starts: Tensor, valid: Tensor | None
    ) -> tuple[Tensor, dict[int, Pending]]:
        """Run [N, M] tokens that stand at `starts` [N] and after, M at most a chunk.

        K and V are written at once, recurrent states only by `commit`.

        Args:
            valid: [N], tokens of each row that are real (the rest pads); None: all.

        Returns:
            Final-normed hidden states [N, M, H], and what `commit` needs.
        """
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        at = window(rows, positions, self.like.dtype)
        self.kv.open(at)
        hidden = self.embed(tokens)
        rotary = self.model.rotary_emb(hidden, positions)
        pending = {}
        for index, layer in enumerate(self.model.layers):
            normed = layer.input_layernorm(hidden)
            if index in self.delta:
                mixed, pending[index] = delta_step(
                    layer.linear_attn, normed, self.delta[index], rows, valid
                )
            else:
                mixed, _ = layer.self_attn(normed, rotary, at.mask, self.kv)
            hidden = hidden + mixed
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.model.norm(hidden), pending

    def commit(self, rows: slice, pending: dict[int, Pending], counts: Tensor) -> None:
        """Make the first `counts` [N] tokens of the last `extend` part of the rows."""
        for index, part in pending.items():
            self.delta[index].commit(rows, part, counts)

    def prefill(self, tokens: Tensor, rows: slice, lengths: Tensor) -> Tensor:
        """Start `rows` anew with right-padded prompts [N, S]; hidden states [N, S, H]."""
        for state in self.delta.values():
            state.clear(rows)
        parts = []
        for start in range(0, tokens.shape[1], CHUNK):
            piece = tokens[:, start : start + CHUNK]
            valid = (lengths - start).clamp(0, piece.shape[1])
            hidden, pending = self.extend(piece, rows, torch.full_like(lengths, start), valid)
            self.commit(rows, pending, valid)
            parts.append(hidden)
        return torch.cat(parts, dim=1)

    def move(self, source: int, target: int) -> None:
        """Copy a row's state over another's."""
        self.kv.move(source, target)
        for state in self.delta.values():
            state.move(source, target)


class DraftModel:
    """The draft head with its own K/V cache, a row a request.

    Raises:
        BadInputError: a tensor of it is missing or has a wrong shape.
    """

    def __init__(self, main: MainModel, tensors: PlainTensors, scales: KvScales | None) -> None:
        with torch.device("meta"):
            self.head = DraftHead(main.text, attention=ATTENTION)
        load_draft(self.head, tensors, main.like.dtype)
        mlp = self.head.layer.mtp_block.mlp
        if hasattr(mlp, "experts"):
            mlp.experts = GroupedExperts(mlp.experts)
        self.head.to(main.like.device).eval()
        text = main.text
        self.main = main
        self.kv = KvCache({0: scales}, text.num_key_value_heads, text.head_dim, main.like)

    def extend(self, tokens: Tensor, hidden: Tensor, rows: slice, starts: Tensor) -> Tensor:
        """Draft on [N, M] tokens, each one to the right of its `hidden` [N, M, H].

        Returns:
            [N, M, H], the head's own final-normed hidden states.
        """
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        at = window(rows, positions, self.main.like.dtype)
        self.kv.open(at)
        drafted: Tensor = self.head(self.main.embed(tokens), hidden, positions, self.kv, at.mask)
        return drafted

    def propose(self, hidden: Tensor, rows: slice, starts: Tensor, steps: int) -> Tensor:
        """Apply the one layer again and again from its hidden states [N, H]; `steps` ids a row."""
        found = [self.main.logits(hidden).argmax(-1)]
        for step in range(1, steps):
            hidden = self.extend(found[-1][:, None], hidden[:, None], rows, starts + step - 1)[:, 0]
            found.append(self.main.logits(hidden).argmax(-1))
        return torch.stack(found, dim=1)

    def prefill(self, tokens: Tensor, hidden: Tensor, rows: slice) -> Tensor:
        """`extend` over whole prompts [N, S], in pieces; [N, S, H]."""
        parts = []
        for start in range(0, tokens.shape[1], 4 * CHUNK):
            stop = start + 4 * CHUNK
            starts = tokens.new_full((len(tokens),), start)
            piece = self.extend(tokens[:, start:stop], hidden[:, start:stop], rows, starts)
            parts.append(piece)
        return torch.cat(parts, dim=1)

    def move(self, source: int, target: int) -> None:
        """Copy a row's state over another's."""
        self.kv.move(source, target)


def _build_text_model(text: Any, tensors: PlainTensors, like: Tensor) -> Any:
    from transformers import AutoModel

    with torch.device("meta"):
        model = AutoModel.from_config(text, attn_implementation=ATTENTION)
    for name, wanted in model.state_dict().items():
        value = _value(tensors, name, tuple(wanted.shape)).to(like)
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        module.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    for layer in model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = GroupedExperts(layer.mlp.experts)
    model.rotary_emb = type(model.rotary_emb)(text).to(like.device)
    return model.eval()


def _lm_head(text: Any, tensors: PlainTensors, model: Any, like: Tensor) -> nn.Linear:
    head = nn.Linear(text.hidden_size, text.vocab_size, bias=False, device="meta")
    if "lm_head.weight" in tensors:
        weight = _checked("lm_head.weight", tensors["lm_head.weight"], tuple(head.weight.shape))
        head.weight = nn.Parameter(weight.to(like), requires_grad=False)
    elif text.tie_word_embeddings:
        head.weight = model.embed_tokens.weight
    else:
        tensors.raw("lm_head.weight")
    return head


def _value(tensors: PlainTensors, name: str, shape: tuple[int, ...]) -> Tensor:
    full = PREFIX + name
    value = tensors.get(full)
    above, found, _ = full.partition(".mlp.experts.")
    if value is None and found:
        make = experts_either_way(tensors, above + found).get(full)
        value = make() if make is not None else None
    if value is None:
        raise LoadError("tensor-missing", f"`{full}` is missing.", "Make the checkpoint again.")
    return _checked(full, value, shape)


def _checked(name: str, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(value.shape) != shape:
        raise LoadError(
            "shape-mismatch",
            f"`{name}` has shape {list(value.shape)}; the config asks {list(shape)}.",
            "Make the checkpoint again.",
        )
    return value
