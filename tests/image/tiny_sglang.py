"""A few lines in SGLang's shape, enough for every patch to find its place: no registry needed."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "sglang/_version.py": '__version__ = version = "0.0.1"\n',
    "sglang/srt/models/qwen3_5.py": """\
import logging

logger = logging.getLogger(__name__)  # für alle


class Qwen3_5GatedDeltaNet:
    def __init__(self, config, layer_id, quant_config=None, prefix=""):
        self.proj = RowParallelLinear(config, quant_config=quant_config)


class Linear:
    def __init__(self, config, layer_id, quant_config=None, prefix=""):
        linear_quant = (
            None if quant_config and quant_config.get_name() == "modelopt_fp4" else quant_config
        )
        self.attn = Qwen3_5GatedDeltaNet(config, layer_id, linear_quant, prefix)


class Full:
    def __init__(self, config, layer_id, quant_config=None, prefix=""):
        quant = None if quant_config and quant_config.get_name() == "modelopt_fp4" else quant_config
        self.qkv = QKVParallelLinear(config, quant_config=quant)
        self.out = RowParallelLinear(config, quant_config=quant)
        self.attn = RadixAttention(config, layer_id=layer_id, prefix=prefix)
"""
    + "".join(
        f'''

class Model{number}:
    def load_weights(self, weights):
        """Loads."""
        for name, weight in weights:
            self.take(name, weight)
'''
        for number in range(4)
    ),
    "sglang/srt/models/qwen3_5_mtp.py": """\
import logging


def _mtp_quant_config(quant_config):
    if quant_config and quant_config.get_name() == "modelopt_fp4":
        return None
    return quant_config


class Qwen3_5ForCausalLMMTP:
    def __init__(self, config, quant_config=None, prefix=""):
        quant_config = _mtp_quant_config(quant_config)
        self.model = Qwen3_5ForCausalLM(config, quant_config, prefix="mtp")

    def load_weights(self, weights, is_mtp=False):
        for name, weight in weights:
            self.take(name, weight)
""",
    "sglang/srt/layers/quantization/kv_cache.py": """\
class BaseKVCacheMethod:
    def process_weights_after_loading(self, layer):
        layer.k_scale_float = 1.0
        layer.v_scale_float = 1.0
""",
    "sglang/srt/layers/radix_attention.py": """\
class RadixAttention:
    def __init__(self, layer_id, quant_config=None, prefix=""):
        super().__init__()
        self.layer_id = layer_id
""",
    "nvidia_cutlass_dsl/python_packages/cutlass/cute/nvgpu/tcgen05/mma.py": """\
class BlockScaledMmaOp:
    admissible_archs = [Arch.sm_100a, Arch.sm_103a]
""",
    "flashinfer/data/cutlass/python/CuTeDSL/cutlass/cute/nvgpu/tcgen05/mma.py": """\
class BlockScaledMmaOp:
    admissible_archs = [
        base_dsl.Arch.sm_100a,
    ]
""",
}


def write(root: Path) -> Path:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
