"""The qformats as ModelOpt's own configuration."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Literal

import modelopt.torch.quantization as mtq
from modelopt.torch.quantization.utils import update_quant_cfg_with_kv_cache_quant

from tasks.architectures import Architecture
from tasks.quantize.exclude import experts_prefix
from tasks.spec import QFormat

PRESETS: dict[QFormat, str] = {
    "nvfp4": "NVFP4_DEFAULT_CFG",
    "nvfp4_mlp_only": "NVFP4_MLP_ONLY_CFG",
    "nvfp4_experts_only": "NVFP4_EXPERTS_ONLY_CFG",
}
"""ModelOpt's presets. They leave BF16: router, shared-expert gate, lm_head, conv1d, in_proj_a and
in_proj_b, the vision tower, the draft head."""


def quant_config(
    architecture: Architecture,
    qformat: QFormat,
    kv_cache: Literal["fp8", "none"],
    excluded: Iterable[str] = (),
) -> dict[str, Any]:
    """ModelOpt's configuration: the preset, calibrated FP8 K and V if asked for, less `excluded`.

    `excluded` are module names; routed experts are named one by one and taken out by layer.
    """
    config: dict[str, Any] = copy.deepcopy(getattr(mtq, PRESETS[qformat]))
    if kv_cache == "fp8":
        rules = copy.deepcopy(mtq.FP8_KV_CFG["quant_cfg"])
        config = update_quant_cfg_with_kv_cache_quant(config, rules)
    off = {f"*{architecture.vision.strip('*')}*"}
    for name in excluded:
        prefix = experts_prefix(architecture, name)
        off |= {f"{prefix}.*"} if prefix else {f"{name}.*"}
    config["quant_cfg"] += [{"quantizer_name": name, "enable": False} for name in sorted(off)]
    return config
