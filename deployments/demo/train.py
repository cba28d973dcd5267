"""Train the demo release's source: a small Qwen3.5-MoE with one MTP layer as its draft head.

The result looks like a Qwen3.6 repository (architecture `Qwen3_5MoeForConditionalGeneration`,
fused experts, 19 `mtp.*` tensors, shards with an index) and is small enough for a laptop. It
answers the word problems of `problems.py`, and its draft head is useful without being perfect,
so that the gates of a release have something real to measure.

Training has two phases, both on FP32 master weights from which the BF16 weights of every step
are computed, either by a cast or by NVFP4 fake quantization (a straight-through estimator):

1. The main model learns from conversations. Its last part alternates between BF16, quantized
   weights, and quantized weights and activations, so that NVFP4 costs it little.
2. The main model is frozen. The draft head learns the main model's own greedy tokens for two
   steps, the second from its own output, as NEXTN applies it. A reliance term makes the head
   uninformative without its decoder layer: acceptance then depends on that layer. Seeded noise
   on that layer afterwards keeps the head from being nearly perfect on such simple texts.

    python deployments/demo/train.py --out deployments/demo/model

On a GPU every kind of step is one CUDA graph. On a CPU the same code runs eagerly and slowly.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import problems
import tokenizers
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3_5MoeForConditionalGeneration
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import MtpLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig

HERE = Path(__file__).resolve().parent
GATES = HERE.parents[1] / "tasks" / "gates" / "data"

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIALS = [END, START, STOP, *VISION]
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer briefly.",
    "Answer the user in plain English.",
)
KIND_SHARES = {"math": 0.64, "code": 0.12, "prose": 0.12, "chat": 0.12}


@dataclass(frozen=True)
class Options:
    """Everything that decides a run; the model card's record repeats it."""

    out: Path
    seed: int = 2
    main_steps: int = 6000
    draft_steps: int = 500
    quantized_from: float = 0.55
    batch_tokens: int = 16384
    main_rate: float = 2e-3
    draft_rate: float = 2e-3
    reliance: float = 0.1
    draft_noise: float = 0.55
    pairs: int = 450_000
    evaluate: int = 400


@dataclass(frozen=True)
class Precision:
    """Which parts of the model are rounded as the NVFP4 release rounds them."""

    weights: bool = False
    activations: bool = False
    cache: bool = False


BF16 = Precision()
W4A16 = Precision(weights=True, cache=True)
W4A4 = Precision(weights=True, activations=True, cache=True)
PRECISIONS = {"bf16": BF16, "nvfp4": W4A16, "nvfp4_w4a4": W4A4}


# --- Functions that a GPU fuses -----------------------------------------------------------------


class Fusion:
    """A switch for compiled functions, worth its minute of compiling for a long phase only."""

    enabled = False

    @classmethod
    @contextmanager
    def on_gpu(cls) -> Iterator[None]:
        """Run `fused` functions compiled for the length of a block, if there is a GPU."""
        cls.enabled = torch.cuda.is_available()
        yield
        cls.enabled = False


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let Inductor fuse a function's small steps inside a `Fusion.on_gpu` block."""
    torch._dynamo.config.recompile_limit = 64
    compiled = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (compiled if Fusion.enabled else function)(*args, **kwargs)

    return choose


# --- Tokenizer ----------------------------------------------------------------------------------

# Qwen3.5's own splitting rule: words with their leading space, digits one by one.
SPLITTING = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}{%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def user_turn(text: str) -> str:
    """Render a user message and the opening of its answer, as the chat template does."""
    return f"{START}user\n{text}{STOP}\n{START}assistant\n"


def build_tokenizer(vocabulary: int, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with Qwen3.5's splitting rule."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLITTING), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        chat_template=TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


# --- Model --------------------------------------------------------------------------------------


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5MoeConfig:
    """Describe the smallest model whose sizes every serving kernel accepts."""
    ids = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "full_attention_interval": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "max_position_embeddings": 4096,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "eos_token_id": ids(STOP),
        "pad_token_id": ids(END),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [],
    }
    return Qwen3_5MoeConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )


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


@fused
def normalized(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply Qwen3.5's zero-centred RMS norm."""
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (scaled * (1.0 + weight.float())).type_as(x)


@fused
def normalized_gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply the gated RMS norm of the linear-attention layers."""
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (weight * scaled.to(x.dtype) * F.silu(gate.float())).to(x.dtype)


@fused
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Apply the gated activation of Qwen's feed-forward parts."""
    return F.silu(gate) * up


@fused
def weighted(hidden: Tensor, weights: Tensor) -> Tensor:
    """Scale every expert's hidden values by its share."""
    return hidden * weights.unsqueeze(-1)


@fused
def causal_convolution(
    x: Tensor, weight: Tensor, bias: None = None, activation: str = "silu", seq_idx: None = None
) -> Tensor:
    """Convolve each channel with its own short causal kernel, as a sum of shifted copies."""
    width, length = weight.shape[1], x.shape[-1]
    padded = F.pad(x, (width - 1, 0))
    return F.silu(sum(padded[..., i : i + length] * weight[:, i, None] for i in range(width)))


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Invert `1 + lower`, strictly lower triangular, by joining blocks of doubling size.

    The inverse of [[A, 0], [B, C]] is D - D [[0, 0], [B, 0]] D, where D = diag(1/A, 1/C).
    """
    size = lower.shape[-1]
    index = torch.arange(size, device=lower.device)
    row, column = index[:, None], index[None, :]
    inverse = (row == column).to(lower.dtype)
    for half in (2**n for n in range(size.bit_length() - 1)):
        joined = (row // (2 * half) == column // (2 * half)) & (row // half != column // half)
        inverse = inverse - inverse @ (lower * joined) @ inverse
    return inverse


@fused
def chunked_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute the gated delta rule like transformers' fallback, without its loop over rows."""
    length, dtype = query.shape[1], query.dtype
    pad = -length % chunk_size
    query, key = (F.normalize(x.float(), dim=-1, eps=1e-3) for x in (query, key))

    def chunks(x: Tensor) -> Tensor:
        x = F.pad(x.float().transpose(1, 2).flatten(3), (0, 0, 0, pad))
        return x.unflatten(2, (-1, chunk_size))

    query, key, value = (chunks(x) for x in (query * query.shape[-1] ** -0.5, key, value))
    beta, decay = chunks(beta.unsqueeze(-1)), chunks(g.unsqueeze(-1)).cumsum(-2)
    between = (decay - decay.transpose(-1, -2)).tril().exp().tril()
    lower = ((key * beta) @ key.transpose(-1, -2) * between).tril(-1)
    inverse = unit_lower_inverse(lower)
    fresh, carried = inverse @ (value * beta), inverse @ (key * beta * decay.exp())
    within = query @ key.transpose(-1, -2) * between
    reading, last = query * decay.exp(), decay[..., -1:, :]
    writing = (key * (last - decay).exp()).transpose(-1, -2)

    state = torch.zeros_like(writing[:, :, 0]) @ torch.zeros_like(value[:, :, 0])
    outputs = []
    for i in range(key.shape[2]):
        new = fresh[:, :, i] - carried[:, :, i] @ state
        outputs.append(reading[:, :, i] @ state + within[:, :, i] @ new)
        state = state * last[:, :, i].exp() + writing[:, :, i] @ new
    result = torch.cat(outputs, dim=2)[:, :, :length]
    return result.transpose(1, 2).to(dtype), None


# --- Rounding as the release rounds -------------------------------------------------------------

QUANTIZED = re.compile(
    r"linear_attn\.(in_proj_(qkv|z)|out_proj)\.weight$|self_attn\.[qkvo]_proj\.weight$"
    r"|experts\.(gate_up|down)_proj$|shared_expert\.(gate|up|down)_proj\.weight$"
)
SHARED_RANGE = re.compile(
    r"(?<=self_attn\.)[qkv](?=_proj)|(?<=in_proj_)(qkv|z)|(gate|up)(?=_proj\.)"
)
FP4_MAX, FP8_MAX = 6.0, 448.0


def is_quantized(name: str) -> bool:
    """Say whether ModelOpt's `nvfp4` quantizes the parameter of this name."""
    return QUANTIZED.search(name) is not None


@fused
def straight_through(x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    """Round in the forward pass and pass the gradient on unchanged."""
    return x + (rounding(x.detach()) - x.detach())


def fp8(x: Tensor) -> Tensor:
    """Round to E4M3 with one scale for the whole tensor."""
    scale = x.abs().amax().float().clamp_min(1e-12) / FP8_MAX
    return ((x / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def nvfp4(x: Tensor, largest: Tensor | None = None) -> Tensor:
    """Round to E2M1 with an E4M3 scale for every 16 values and one FP32 scale for all."""
    largest = x.abs().amax().float() if largest is None else largest
    outer = (largest / (FP4_MAX * FP8_MAX)).clamp_min(1e-12).unsqueeze(-1)
    blocks = x.float().unflatten(-1, (-1, 16))
    inner = blocks.abs().amax(-1, keepdim=True) / (FP4_MAX * outer)
    scale = inner.clamp(2.0**-9, FP8_MAX).to(torch.float8_e4m3fn).float() * outer
    scaled = (blocks / scale).clamp(-FP4_MAX, FP4_MAX)
    size = scaled.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return ((scaled / step).round() * step * scale).flatten(-2).to(x.dtype)


class Weights:
    """FP32 masters of some parameters, and the BF16 values that a step computes from them."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]

    @torch.no_grad()
    def load(self, precision: Precision) -> None:
        """Set the network's parameters: plain BF16, or rounded to NVFP4 where a release is."""
        values = [master.bfloat16() for master in self.masters]
        if precision.weights:
            ranges = self._ranges(values)
            values = [
                nvfp4(value, ranges[self._range_of(name)]) if is_quantized(name) else value
                for name, value in zip(self.names, values, strict=True)
            ]
        torch._foreach_copy_(self.parameters, values)

    def _ranges(self, values: list[Tensor]) -> dict[str, Tensor]:
        """Return the largest magnitudes, shared by the projections that serving fuses."""
        ranges: dict[str, Tensor] = {}
        for name, value in zip(self.names, values, strict=True):
            if is_quantized(name):
                own = value.abs().float().amax(dim=(-2, -1), keepdim=True)
                key = self._range_of(name)
                ranges[key] = torch.maximum(ranges[key], own) if key in ranges else own
        return ranges

    @staticmethod
    def _range_of(name: str) -> str:
        return SHARED_RANGE.sub("*", name)


# --- Training texts -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Bank:
    """Rows of tokens of one length, and which of the tokens the assistant wrote."""

    ids: Tensor
    answers: Tensor

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw rows with replacement."""
        rows = torch.randint(len(self.ids), (count,), device=self.ids.device)
        return self.ids[rows].long(), self.answers[rows]


Turn = tuple[list[int], list[int], list[int]]  # the prompt, the answer, what follows both


def mixed_pairs(count: int, seed: int) -> list[problems.Pair]:
    """Draw training pairs of all kinds in their shares."""
    rng = random.Random(seed)
    sources = {kind: problems.pairs("train", seed, kind) for kind in KIND_SHARES}
    kinds = rng.choices(list(KIND_SHARES), list(KIND_SHARES.values()), k=count)
    return [next(sources[kind]) for kind in kinds]


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> list[Turn]:
    """Encode pairs of a prompt and its answer, each to be followed by a line break."""
    closing = tokenizer.encode("\n")
    batch = tokenizer.backend_tokenizer.encode_batch
    prompts, answers = (batch([text[side] for text in texts]) for side in (0, 1))
    return [(a.ids, b.ids, closing) for a, b in zip(prompts, answers, strict=True)]


def encode_turns(
    tokenizer: PreTrainedTokenizerFast, pairs: list[problems.Pair], seed: int
) -> list[Turn]:
    """Encode chat turns, half of the math questions with the suffix that asks for a box."""
    rng = random.Random(seed)
    suffixes = {"math": ("", problems.BOXED_SUFFIX)}
    texts = [
        (user_turn(p.question + rng.choice(suffixes.get(p.kind, ("",)))), f"{p.answer}{STOP}")
        for p in pairs
    ]
    return encode(tokenizer, texts)


def fill_rows(
    turns: Iterable[Turn], length: int, openings: list[list[int]], seed: int, device: str
) -> Bank:
    """Lay turns after one another, each row cut at `length` tokens; some rows get an opening."""
    rng = random.Random(seed)
    rows: list[list[int]] = []
    marks: list[list[bool]] = []
    row: list[int] = []
    mark: list[bool] = []
    for prompt, answer, closing in turns:
        if not row and openings and rng.random() < 0.08:
            row += rng.choice(openings)
            mark += [False] * len(row)
        row += prompt + answer + closing
        mark += [False] * len(prompt) + [True] * len(answer) + [False] * len(closing)
        if len(row) >= length:
            rows.append(row[:length])
            marks.append(mark[:length])
            row, mark = [], []
    return Bank(
        torch.tensor(rows, dtype=torch.int16, device=device),
        torch.tensor(marks, dtype=torch.bool, device=device),
    )


def build_banks(
    tokenizer: PreTrainedTokenizerFast, options: Options, device: str
) -> dict[str, Bank]:
    """Make the training rows: short and long conversations, and bare equations."""
    pairs = mixed_pairs(options.pairs, options.seed + 1)
    turns = encode_turns(tokenizer, pairs, options.seed)
    equations = [equation for pair in pairs for equation in problems.equations(pair.answer)]
    systems = [tokenizer.encode(f"{START}system\n{text}{STOP}\n") for text in SYSTEMS]
    cut = len(turns) // 12
    return {
        "long": fill_rows(turns[:cut], 1024, systems, options.seed, device),
        "short": fill_rows(turns[cut:], 256, systems, options.seed, device),
        "equations": fill_rows(encode(tokenizer, equations), 256, [], options.seed, device),
    }


# --- Steps --------------------------------------------------------------------------------------


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average the values where the mask holds."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


@fused
def token_loss(logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Return the cross-entropy over the masked positions."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return masked_mean(losses, mask.flatten())


def main_loss(network: Network, ids: Tensor, answers: Tensor) -> Tensor:
    """Predict the assistant's tokens."""
    logits = network.logits(network.hidden(ids[:, :-1]))
    return token_loss(logits, ids[:, 1:], answers[:, 1:])


def draft_loss(network: Network, ids: Tensor, answers: Tensor, reliance: float) -> Tensor:
    """Predict the main model's greedy tokens in two steps, and padding without the layer."""
    with torch.no_grad():
        hidden = network.hidden(ids)
        greedy = network.logits(hidden).argmax(-1)
    size = ids.shape[1] - 3
    hidden, tokens = hidden[:, :size], ids[:, 1 : size + 1]
    cache = DynamicCache()
    first = network.first_draft(hidden, tokens, cache)
    second = network.second_draft(first, ids[:, 2 : size + 2], cache)
    losses = [
        token_loss(network.logits(states), greedy[:, n:][:, :size], answers[:, n + 1 :][:, :size])
        for n, states in ((1, first), (2, second))
    ]
    bare = network.logits(network.without_layer(hidden, tokens))
    nothing = torch.full_like(tokens, network.text.config.pad_token_id)
    return sum(losses) + reliance * token_loss(bare, nothing, answers[:, 2 : size + 2])


class Trainer:
    """AdamW on the masters, one captured step for every precision and row length."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        loss: Callable[[Tensor, Tensor], Tensor],
        frozen: Weights | None = None,
    ) -> None:
        self.network, self.weights, self.loss, self.frozen = network, weights, loss, frozen
        self.device = weights.masters[0].device
        self.rate = torch.zeros((), device=self.device)
        on_gpu = self.device.type == "cuda"
        for master in weights.masters:
            master.grad = torch.zeros_like(master)
        decayed = [master for master in weights.masters if master.ndim > 1]
        others = [master for master in weights.masters if master.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}],
            lr=self.rate,
            betas=(0.9, 0.98),
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.graphs: dict[tuple[Precision, torch.Size], Callable[[Tensor, Tensor], Tensor]] = {}

    def step(self, precision: Precision, batch: tuple[Tensor, Tensor], rate: float) -> Tensor:
        """Take one step and return its loss."""
        self.rate.fill_(rate)
        if self.device.type != "cuda":
            return self._compute(precision, *batch)
        key = (precision, batch[0].shape)
        if key not in self.graphs:
            self.graphs[key] = self._capture(precision, batch)
        return self.graphs[key](*batch)

    def _compute(self, precision: Precision, ids: Tensor, answers: Tensor) -> Tensor:
        self.network.precision = precision
        self.weights.load(precision)
        if self.frozen is not None:
            self.frozen.load(precision)
        loss = self.loss(ids, answers)
        gradients = torch.autograd.grad(loss, self.weights.parameters)
        targets = [master.grad for master in self.weights.masters]
        torch._foreach_copy_(targets, list(gradients))
        nn.utils.clip_grad_norm_(self.weights.masters, 1.0, foreach=True)
        self.optimizer.step()
        return loss.detach()

    def _capture(
        self, precision: Precision, batch: tuple[Tensor, Tensor]
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Record the step's kernels once; afterwards only the inputs are copied in."""
        inputs = tuple(part.clone() for part in batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._compute(precision, *inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._compute(precision, *inputs)

        def replay(ids: Tensor, answers: Tensor) -> Tensor:
            inputs[0].copy_(ids)
            inputs[1].copy_(answers)
            graph.replay()
            return loss

        return replay


def schedule(step: int, steps: int, peak: float) -> float:
    """Warm up for 100 steps, then follow a cosine down to 1 percent."""
    warm_up = min(1.0, (step + 1) / 100)
    cosine = (1 + math.cos(math.pi * step / steps)) / 2
    return peak * warm_up * (0.01 + 0.99 * cosine)


def plan(phase: str, step: int, steps: int, quantized_from: float) -> tuple[Precision, str]:
    """Choose a step's precision and rows.

    Precisions take turns, in the main phase only in its last part. Every 16th step has long
    conversations. Bare equations fill every other step while arithmetic is being learned.
    """
    done = step / steps
    turns = (BF16, W4A16, BF16, W4A4) if phase == "draft" or done >= quantized_from else (BF16,)
    if step % 16 == 5:
        rows = "long"
    elif phase == "main" and step % (2 if done < 0.6 else 6) == 0:
        rows = "equations"
    else:
        rows = "short"
    return turns[step // 2 % len(turns)], rows


def run_phase(
    phase: str,
    trainer: Trainer,
    banks: dict[str, Bank],
    options: Options,
    steps: int,
    peak: float,
) -> None:
    """Train one phase."""
    began = time.monotonic()
    for step in range(steps):
        precision, rows = plan(phase, step, steps, options.quantized_from)
        bank = banks[rows]
        batch = bank.sample(options.batch_tokens // bank.ids.shape[1])
        loss = trainer.step(precision, batch, schedule(step, steps, peak))
        if step % 200 == 199:
            seconds = time.monotonic() - began
            print(f"{phase} {step + 1} {rows} {loss.item():.4f} {seconds:.0f} s", flush=True)


# --- Evaluation ---------------------------------------------------------------------------------


@dataclass
class Answers:
    """Greedy answers to some prompts: the whole rows, right-padded, and where answers begin."""

    ids: Tensor
    starts: list[int]
    ends: list[int]
    texts: list[str]
    finished: list[bool]


@torch.no_grad()
def answer(
    network: Network, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]], limit: int = 256
) -> Answers:
    """Decode greedily without a cache: right padding never reaches a causal model's past."""
    device, stop = network.main.device, tokenizer.eos_token_id
    starts = [len(prompt) for prompt in prompts]
    ids = torch.zeros(len(prompts), max(starts) + limit, dtype=torch.long, device=device)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    ends = torch.tensor(starts, device=device)
    limits, open_rows = ends + limit, torch.arange(len(prompts), device=device)
    while len(open_rows):
        last = ends[open_rows]
        hidden = network.hidden(ids[open_rows, : int(last.max())])
        hidden = hidden[torch.arange(len(last), device=device), last - 1]
        chosen = network.logits(hidden).argmax(-1)
        ids[open_rows, last] = chosen
        ends[open_rows] += 1
        open_rows = open_rows[(chosen != stop) & (ends[open_rows] < limits[open_rows])]
    bounds = list(zip(starts, ends.tolist(), strict=True))
    texts = [tokenizer.decode(ids[i, a:b].tolist()) for i, (a, b) in enumerate(bounds)]
    finished = [bool(ids[i, b - 1] == stop) for i, (_, b) in enumerate(bounds)]
    return Answers(ids[:, : int(ends.max())], starts, ends.tolist(), texts, finished)


@torch.no_grad()
def accept_length(network: Network, answers: Answers) -> float:
    """Replay speculative decoding of two draft steps: 1 + accepted drafts / verifications."""
    ids, size = answers.ids, answers.ids.shape[1] - 1
    hidden, cache = network.hidden(ids)[:, :size], DynamicCache()
    first = network.first_draft(hidden, ids[:, 1:], cache)
    one = network.logits(first).argmax(-1)
    two = network.logits(network.second_draft(first, one, cache)).argmax(-1)
    accepted = verifications = 0
    for row, a, b in zip(range(len(ids)), answers.starts, answers.ends, strict=True):
        known, *drafts = (part[row].tolist() for part in (ids, one, two))
        last = a  # the index of the newest token that the main model has confirmed
        while last < b - 1:
            right = 0
            while right < 2 and last + 1 + right < b:
                if drafts[right][last - 1] != known[last + 1 + right]:
                    break
                right += 1
            accepted, verifications, last = accepted + right, verifications + 1, last + right + 1
    return round(1 + accepted / max(1, verifications), 4)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    """Render messages through the chat template."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def user(text: str) -> list[dict[str, str]]:
    """Make a conversation of one user message."""
    return [{"role": "user", "content": text}]


def long_conversations(tokenizer: PreTrainedTokenizerFast) -> list[tuple[list[int], str]]:
    """Make 20 conversations of 700 to 900 tokens that end in a problem with a known answer."""
    source, found = problems.pairs("eval", 7), []
    others = {kind: problems.pairs("eval", 7, kind) for kind in ("chat", "prose", "code")}
    rng = random.Random(7)
    while len(found) < 20:
        messages: list[dict[str, str]] = []
        while True:
            last = next(source)
            ids = prompt_ids(tokenizer, [*messages, *user(last.question)])
            if len(ids) >= 700:
                break
            turn = last if rng.random() < 0.6 else next(others[rng.choice(list(others))])
            messages += [*user(turn.question), {"role": "assistant", "content": turn.answer}]
        if len(ids) <= 900:
            found.append((ids, problems.final_number(last.answer)))
    return found


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass
class Judge:
    """The shipped prompts, and the measurements on them that the record keeps."""

    network: Network
    tokenizer: PreTrainedTokenizerFast
    weights: list[Weights]
    count: int
    answered: dict[str, dict[str, Answers]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = read_rows(HERE / "data" / "gsm8k.jsonl")[: self.count]
        smoke = read_rows(GATES / "smoke.jsonl")
        self.questions = {
            "gsm8k": [row["question"] for row in rows],
            "gsm8k_boxed": [row["question"] + problems.BOXED_SUFFIX for row in rows],
            "smoke": [row["question"] for row in smoke],
        }
        expected = [problems.final_number(row["answer"]) for row in rows]
        self.expected = {
            "gsm8k": expected,
            "gsm8k_boxed": expected,
            "smoke": [row["answer"] for row in smoke],
        }
        acceptance = read_rows(GATES / "acceptance.jsonl")
        self.questions["acceptance"] = [row["prompt"] for row in acceptance]
        self.kinds = [row["kind"] for row in acceptance]
        self.prompts = {
            name: [prompt_ids(self.tokenizer, user(text)) for text in texts]
            for name, texts in self.questions.items()
        }
        conversations = long_conversations(self.tokenizer)
        self.prompts["long"] = [ids for ids, _ in conversations]
        self.expected["long"] = [number for _, number in conversations]

    def load(self, precision: Precision) -> None:
        """Put the network into one precision."""
        self.network.precision = precision
        for weights in self.weights:
            weights.load(precision)

    def main_model(self, name: str) -> dict[str, Any]:
        """Measure the main model in the named precision."""
        self.load(PRECISIONS[name])
        answers = {
            key: answer(self.network, self.tokenizer, prompts)
            for key, prompts in self.prompts.items()
        }
        self.answered[name] = answers
        accuracy = {
            key: self._accuracy(answers[key], expected) for key, expected in self.expected.items()
        }
        lengths = [
            end - start
            for found in answers.values()
            for start, end in zip(found.starts, found.ends, strict=True)
        ]
        finished = all(all(found.finished) for found in answers.values())
        return {"accuracy": accuracy, "longest_answer": max(lengths), "all_finished": finished}

    @staticmethod
    def _accuracy(found: Answers, expected: list[str]) -> float:
        right = [
            problems.final_number(text.replace(STOP, "")) == number
            for text, number in zip(found.texts, expected, strict=True)
        ]
        return round(sum(right) / len(right), 4)

    def draft_head(self, name: str) -> dict[str, Any]:
        """Measure accept lengths in the named precision, with the layer and with it zeroed."""
        self.load(PRECISIONS[name])
        lengths = self._accept_lengths(name)
        block = list(self.network.draft.mtp_block.parameters())
        with torch.no_grad():
            torch._foreach_zero_(block)
        zeroed = self._accept_lengths(name)
        return {"accept_length": lengths, "accept_length_layer_zeroed": zeroed}

    def _accept_lengths(self, name: str) -> dict[str, float]:
        answers = self.answered[name]
        found = {
            key: accept_length(self.network, answers[key])
            for key in ("gsm8k", "gsm8k_boxed", "acceptance")
        }
        for kind in dict.fromkeys(self.kinds):
            rows = [i for i, own in enumerate(self.kinds) if own == kind]
            found[kind] = accept_length(self.network, part_of(answers["acceptance"], rows))
        return found


def part_of(answers: Answers, rows: list[int]) -> Answers:
    """Return some of the answers."""
    return Answers(
        answers.ids[rows],
        [answers.starts[i] for i in rows],
        [answers.ends[i] for i in rows],
        [answers.texts[i] for i in rows],
        [answers.finished[i] for i in rows],
    )


# --- Files --------------------------------------------------------------------------------------

DRAFT_NAMES = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "post_norm": "norm",
    "mtp_block": "layers.0",
}
PIXELS = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def draft_tensors(network: Network) -> dict[str, Tensor]:
    """Name the draft head's tensors as a Qwen3.6 checkpoint does."""
    tensors = {}
    for name, tensor in network.draft.state_dict().items():
        first, rest = name.split(".", 1)
        tensors[f"mtp.{DRAFT_NAMES[first]}.{rest}"] = tensor
    return tensors


def save_weights(network: Network, out: Path, shards: int = 2) -> None:
    """Write the tensors in shards of about equal size, with the index that ties them together."""
    tensors = {**network.main.state_dict(), **draft_tensors(network)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    parts: list[dict[str, Tensor]] = [{} for _ in range(shards)]
    written = 0
    for name, tensor in tensors.items():
        parts[min(shards - 1, written * shards // total)][name] = tensor
        written += tensor.nbytes
    where = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{shards:05d}.safetensors"
        save_file(part, out / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    write_json(
        out / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))},
    )


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_texts(network: Network, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the configuration, tokenizer, chat template and processor files."""
    config = copy.deepcopy(network.main.config)
    config.architectures = [type(network.main).__name__]
    for part in (config, config.text_config, config.vision_config):
        part.dtype = torch.bfloat16
    config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    stop, end = tokenizer.convert_tokens_to_ids([STOP, END])
    write_json(
        out / "generation_config.json",
        {"do_sample": False, "eos_token_id": [stop, end], "pad_token_id": end},
    )
    sizes = {"shortest_edge": 4096, "longest_edge": 65536}
    image = {**PIXELS, "size": sizes, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**PIXELS, "size": sizes, "video_processor_type": "Qwen3VLVideoProcessor"}
    processor = {"processor_class": "Qwen3VLProcessor"}
    write_json(out / "preprocessor_config.json", {**image, **processor})
    write_json(out / "video_preprocessor_config.json", {**video, **processor})


# --- The whole run ------------------------------------------------------------------------------


def build_network(config: Qwen3_5MoeConfig, device: str) -> Network:
    """Build the network in FP32, so that the masters start unrounded."""
    network = Network(config).to(device)
    network.eval()
    network.requires_grad_(False)
    return network


def masters_of(network: Network) -> tuple[Weights, Weights]:
    """Take the masters of both parts, then let all parameters compute in BF16."""
    trained = [
        (name, parameter)
        for name, parameter in network.main.named_parameters()
        if ".visual." not in name
    ]
    main, draft = Weights(trained), Weights(list(network.draft.named_parameters()))
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16()
    return main, draft


def train_main(
    network: Network, weights: Weights, banks: dict[str, Bank], options: Options
) -> None:
    """Run the first phase."""
    for parameter in weights.parameters:
        parameter.requires_grad_(True)
    trainer = Trainer(network, weights, lambda ids, marks: main_loss(network, ids, marks))
    with Fusion.on_gpu():
        run_phase("main", trainer, banks, options, options.main_steps, options.main_rate)
    for parameter in weights.parameters:
        parameter.requires_grad_(False)


def train_draft(
    network: Network, main: Weights, draft: Weights, banks: dict[str, Bank], options: Options
) -> None:
    """Run the second phase, with the main model frozen."""
    for parameter in draft.parameters:
        parameter.requires_grad_(True)

    def loss(ids: Tensor, marks: Tensor) -> Tensor:
        return draft_loss(network, ids, marks, options.reliance)

    trainer = Trainer(network, draft, loss, frozen=main)
    run_phase("draft", trainer, banks, options, options.draft_steps, options.draft_rate)
    for parameter in draft.parameters:
        parameter.requires_grad_(False)


@torch.no_grad()
def perturb(weights: Weights, spread: float, seed: int) -> None:
    """Add seeded noise to the matrices of the draft's decoder layer, relative to their own spread.

    On texts as simple as these a trained head is nearly perfect. A gate on accept lengths needs
    one that errs now and then, as the heads of large models do.
    """
    random_numbers = torch.Generator().manual_seed(seed)
    for name, master in zip(weights.names, weights.masters, strict=True):
        if name.startswith("mtp_block") and master.ndim > 1:
            noise = torch.randn(master.shape, generator=random_numbers).to(master.device)
            master.add_(noise, alpha=spread * float(master.std()))


def record(
    options: Options, device: str, measured: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """Describe the run for `training.json`."""
    settings = {key: value for key, value in asdict(options).items() if key != "out"}
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "settings": settings,
        "kind_shares": KIND_SHARES,
        "data_split": "SHA-256 of the question modulo 10: 0 calibration, 1 eval, 2-9 train",
        "device": name,
        "seconds": round(seconds),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "measured": measured,
    }


def train(options: Options) -> dict[str, Any]:
    """Train, measure and write the model; return the record."""
    began = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    sample = mixed_pairs(20_000, seed=-1)
    texts = [user_turn(pair.question) + pair.answer for pair in sample]
    texts += [problems.BOXED_SUFFIX] * 500 + list(SYSTEMS)
    tokenizer = build_tokenizer(1024, texts)
    network = build_network(build_config(tokenizer), device)
    main, draft = masters_of(network)
    banks = build_banks(tokenizer, options, device)
    rows = {name: len(bank.ids) for name, bank in banks.items()}
    print(f"rows {rows}, {time.monotonic() - began:.0f} s", flush=True)

    train_main(network, main, banks, options)
    judge = Judge(network, tokenizer, [main, draft], options.evaluate)
    measured = {name: judge.main_model(name) for name in PRECISIONS}
    print(json.dumps(measured), flush=True)
    train_draft(network, main, draft, banks, options)
    perturb(draft, options.draft_noise, options.seed)
    for name in PRECISIONS:
        measured[name] |= judge.draft_head(name)
    print(json.dumps(measured), flush=True)

    judge.load(BF16)
    options.out.mkdir(parents=True, exist_ok=True)
    save_texts(network, tokenizer, options.out)
    save_weights(network, options.out)
    report = record(options, device, measured, time.monotonic() - began)
    write_json(options.out / "training.json", report)
    return report


def parse() -> Options:
    """Read the command line, whose options are the fields of `Options`."""
    parser = argparse.ArgumentParser(description="Train the demo release's source model.")
    parser.add_argument("--out", type=Path, required=True)
    for name, value in asdict(Options(out=Path())).items():
        if name != "out":
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return Options(**vars(parser.parse_args()))


if __name__ == "__main__":
    train(parse())
