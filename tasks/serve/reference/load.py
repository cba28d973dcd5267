"""From a checkpoint's folder to models ready to run, with the log lines that a load leaves."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tasks.checkpoint.files import CheckpointFiles
from tasks.serve.reference.kv import KvCache, KvScales
from tasks.serve.reference.log import say
from tasks.serve.reference.model import (
    DRAFT_PREFIX,
    DraftModel,
    MainModel,
    kv_scales,
    read_text_config,
)
from tasks.serve.reference.options import Options
from tasks.serve.reference.text import Text
from tasks.serve.reference.weights import PlainTensors, kv_is_fp8

DRAFT_TYPE = "Qwen3_5ForCausalLMMTP"


@dataclass(frozen=True)
class Loaded:
    """What serves, and what is true of it.

    Attributes:
        context_length: tokens a request, at most.
        quantization: `modelopt_fp4` when the main model has packed weights, else None.
        draft_quantization: likewise of the draft head.
        kv_dtypes: what K and V are rounded to, of the main model and of the draft head.
        seconds: by phase.
    """

    main: MainModel
    draft: DraftModel | None
    text: Text
    config: dict[str, Any]
    context_length: int
    quantization: str | None
    draft_quantization: str | None
    kv_dtypes: tuple[str, ...]
    weight_bytes: int
    device_name: str
    seconds: dict[str, float] = field(default_factory=dict)


def load(options: Options) -> Loaded:
    """Load everything.

    Raises:
        QuantgateError: what is missing or does not fit, in one line.
    """
    begin = time.monotonic()
    torch.set_grad_enabled(False)
    like = torch.empty(0, dtype=getattr(torch, options.dtype), device=options.device)
    config_only = CheckpointFiles.open(options.checkpoint, as_source=True)
    quantized = config_only.quant_config is not None or any(
        info.dtype == "U8" for info in config_only.tensors.values()
    )
    # What will be published must be whole by its own index; a source may come as the Hub's cache.
    files = CheckpointFiles.open(options.checkpoint) if quantized else config_only
    tensors = PlainTensors(files)
    text = read_text_config(options.checkpoint)
    fp8 = kv_is_fp8(files)
    main = _load_main(files, tensors, text, fp8, options, like)
    quantization = "modelopt_fp4" if tensors.quantized("model.") else None
    draft, draft_quantization = None, None
    if options.speculates:
        packed = tensors.quantized("mtp.")
        draft_quantization = "modelopt_fp4" if packed else None
        draft = _load_draft(main, tensors, fp8 and packed, options)
    loaded = time.monotonic()
    tokens = Text(options.checkpoint, files.config)
    longest = int(getattr(text, "max_position_embeddings", 32768))
    return Loaded(
        main=main,
        draft=draft,
        text=tokens,
        config=files.config,
        context_length=options.context_length or min(longest, 32768),
        quantization=quantization,
        draft_quantization=draft_quantization,
        kv_dtypes=_log_caches(main.kv, draft.kv if draft else None, options),
        weight_bytes=_weight_bytes(main, draft),
        device_name=device_name(options.device),
        seconds={
            "load_weight": loaded - begin,
            "tokenizer_e2e": time.monotonic() - loaded,
        },
    )


def _load_main(
    files: CheckpointFiles,
    tensors: PlainTensors,
    text: Any,
    fp8: bool,
    options: Options,
    like: torch.Tensor,
) -> MainModel:
    begin = time.monotonic()
    say("Load weight begin. avail mem=%.2f GB", available_gb(options.device))
    main = MainModel(text, tensors, fp8, options.max_batch, like)
    for layer, scales in main.kv.scales.items():
        _log_scales("main", layer, scales)
    architecture = (files.config.get("architectures") or ["none"])[0]
    _log_end(begin, str(architecture), tensors.quantized("model."), options.device)
    return main


def _load_draft(main: MainModel, tensors: PlainTensors, fp8: bool, options: Options) -> DraftModel:
    begin = time.monotonic()
    say("Load weight begin. avail mem=%.2f GB", available_gb(options.device))
    scales = kv_scales(tensors, f"{DRAFT_PREFIX}self_attn", fp8)
    if scales is not None and options.draft_kv_scales == "ignore":
        scales = KvScales()
    draft = DraftModel(main, tensors, scales)
    _log_scales("draft", 0, scales)
    _log_end(begin, DRAFT_TYPE, tensors.quantized("mtp."), options.device)
    return draft


def _log_scales(role: str, layer: int, scales: KvScales | None) -> None:
    shown = scales or KvScales()
    say(
        "quantgate kv-scales: role=%s layer=%d k_scale=%.9g v_scale=%.9g",
        role,
        layer,
        shown.k,
        shown.v,
    )


def _log_end(begin: float, kind: str, packed: bool, device: str) -> None:
    quant = " quant=modelopt_fp4, quant_algo=NVFP4," if packed else ""
    say(
        "Load weight end. elapsed=%.2f s, type=%s,%s avail mem=%.2f GB.",
        time.monotonic() - begin,
        kind,
        quant,
        available_gb(device),
    )


def _log_caches(main: KvCache, draft: KvCache | None, options: Options) -> tuple[str, ...]:
    dtypes = []
    for cache in (main, draft):
        if cache is not None:
            fp8 = any(scales is not None for scales in cache.scales.values())
            dtypes.append("float8_e4m3fn" if fp8 else options.dtype)
            say(
                "KV Cache is allocated. dtype: torch.%s, #tokens: grows on demand, values kept in"
                " torch.%s",
                dtypes[-1],
                options.dtype,
            )
    return tuple(dtypes)


def _weight_bytes(main: MainModel, draft: DraftModel | None) -> int:
    modules = [main.model, main.lm_head, *([draft.head] if draft else [])]
    return sum(p.numel() * p.element_size() for module in modules for p in module.parameters())


def available_gb(device: str) -> float:
    """Free memory of the device, GB."""
    if device.startswith("cuda"):
        return float(torch.cuda.mem_get_info(torch.device(device))[0]) / 2**30
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def device_name(device: str) -> str:
    """The device's own name: the GPU's, or the CPU model's."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names and names[0] else platform.machine()
