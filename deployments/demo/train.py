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

`training/` holds the parts, of which `run.py` is the whole run in order.

    python deployments/demo/train.py --out deployments/demo/model

On a GPU every kind of step is one CUDA graph. On a CPU the same code runs eagerly and slowly.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from training.options import Options
from training.run import train


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
