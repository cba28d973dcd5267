"""The whole run, in order."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig

from training.config import build_config
from training.files import save_texts, save_weights, write_json
from training.fusion import Fusion
from training.judge import Judge
from training.losses import draft_loss, main_loss
from training.network import Network
from training.options import Options
from training.precision import BF16, PRECISIONS
from training.steps import Trainer, run_phase
from training.texts import KIND_SHARES, SYSTEMS, Bank, build_banks, mixed_pairs
from training.tokenizer import build_tokenizer, user_turn
from training.weights import Weights
from writing import solutions


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
    texts += [solutions.BOXED_SUFFIX] * 500 + list(SYSTEMS)
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
