"""Scales for a draft head measured on text: the first NEXTN steps, as a server runs them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import torch

from tasks.architectures import Architecture, amax_group, classify
from tasks.draft_head import DraftHead, KvWatch, load_draft
from tasks.errors import BadInputError, QuantgateError
from tasks.progress import Progress
from tasks.quantize.calibration import batches, read_rows, tokenize
from tasks.quantize.quantize import calibration_record, load_model, pick_device, small
from tasks.requant.head import DraftSource
from tasks.requant.pack import E4M3_MAX, scale_2_of
from tasks.requant.plan import HeadPlan
from tasks.requant.scales import HeadScales
from tasks.spec import CalibrationSpec

STEPS = 2
"""Applications of the head a token: the first on the main model's hidden state, then its own."""

RULE = (
    "measured: the source's BF16 main model ran the calibration text, its final hidden states and"
    " the following tokens went through the BF16 draft head, {steps} steps deep as NEXTN feeds it;"
    " every input_scale is the largest input over 6*448, the routed experts of a layer sharing one"
    " per projection (so an expert that no token reached has its neighbours'), k_scale and v_scale"
    " the largest K and V over 448"
)


def measured_scales(
    head: DraftSource, plan: HeadPlan, spec: CalibrationSpec, progress: Progress
) -> HeadScales:
    """Run the text through main model and draft head, with ModelOpt watching the head's linears.

    Args:
        head: the source's draft head; its folder is the main model too, loaded in BF16.
        plan: which of the head's modules are quantized.
        spec: the calibration text.
        progress: told how far it is.

    Raises:
        BadInputError: no calibration text, or no row of enough tokens.
        QuantgateError: a quantized module saw no input.
    """
    rows = read_rows(spec)
    device = pick_device("auto")
    progress(0.0, "loading the source")
    tokenizer, model = load_model(head.files.root, device, small(head.files))
    ids = batches(tokenize(rows.rows, tokenizer, spec.sequence_length), spec.batch_size)
    ids = [batch for batch in ids if len(batch[0]) > STEPS]
    if not ids:
        raise BadInputError(
            "calibration-empty",
            f"{rows.dataset}: no row has more than {STEPS} tokens.",
            "Give longer text.",
        )
    draft = build_head(head, model.config.get_text_config(), device)
    linears, watch = _watched(plan, draft), KvWatch()
    started = datetime.now(UTC)

    def run(_: Any) -> None:
        for number, batch in enumerate(ids):
            progress(0.1 + 0.9 * number / len(ids), f"calibrating the head, batch {number + 1}")
            _steps(model, draft, torch.tensor(batch, device=device), watch)

    with torch.inference_mode():
        mtq.quantize(linears, _watch_inputs(), run)
    inputs, unseen = _inputs(linears, plan, head.architecture)
    return HeadScales(
        inputs=inputs,
        k=np.float32(watch.k_amax) / np.float32(E4M3_MAX) if plan.kv else None,
        v=np.float32(watch.v_amax) / np.float32(E4M3_MAX) if plan.kv else None,
        rule=RULE.format(steps=STEPS),
        unseen_experts=unseen,
        calibration=calibration_record(rows, spec, ids, device, started),
    )


def build_head(head: DraftSource, text_config: Any, device: torch.device) -> DraftHead:
    """The draft head in BF16 on `device`, its routed experts one by one."""
    with torch.device("meta"):
        draft = DraftHead(text_config, per_expert=True)
    tensors = {f"{name}.weight": _tensor(head.weight(name)) for name in head.modules()}
    load_draft(draft, tensors, torch.bfloat16)
    return draft.to(device).eval()


def _tensor(values: Any) -> torch.Tensor:
    """bfloat16 array -> tensor of its own memory."""
    return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)


def _watched(plan: HeadPlan, draft: DraftHead) -> torch.nn.ModuleDict:
    """The quantized linears by name, outside of the head that they stay part of.

    ModelOpt converts modules in place. Given the bare linears it cannot take the head for a
    mixture of experts and send every token to every expert.
    """
    linears = draft.linears()
    return torch.nn.ModuleDict({_key(name): linears[name] for name in plan.analogues})


def _key(name: str) -> str:
    return name.replace(".", "/")


def _watch_inputs() -> dict[str, Any]:
    """ModelOpt's NVFP4 activation calibration, and nothing else."""
    nvfp4 = {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
    return {
        "quant_cfg": [
            {"quantizer_name": "*", "enable": False},
            {"quantizer_name": "*input_quantizer", "cfg": nvfp4},
        ],
        "algorithm": "max",
    }


def _steps(model: Any, draft: DraftHead, ids: torch.Tensor, watch: KvWatch) -> None:
    """[B, S] token ids through the main model, then STEPS times through the head."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    embeddings = model.get_input_embeddings()(ids)
    for step in range(1, STEPS + 1):
        length = ids.shape[1] - step
        positions = torch.arange(step, ids.shape[1], device=ids.device).expand(len(ids), length)
        hidden = draft(embeddings[:, step:], hidden[:, :length], positions, cache=watch)


def _inputs(
    linears: torch.nn.ModuleDict, plan: HeadPlan, architecture: Architecture
) -> tuple[dict[str, np.float32], tuple[str, ...]]:
    """(input_scale of every quantized module, experts without a token)."""
    amax: dict[str, np.float32] = {}
    shared: dict[str, str] = {}
    unseen: set[str] = set()
    for name in plan.analogues:
        shared[name] = key = _shared_input(architecture, name)
        quantizer: Any = linears[_key(name)].input_quantizer
        found = quantizer.amax
        if found is None:
            unseen.add(name.rpartition(".")[0])
            continue
        amax[key] = max(amax.get(key, np.float32(0)), np.float32(found.float().max().item()))
    missing = [name for name in plan.analogues if not amax.get(shared[name], 0) > 0]
    if missing:
        raise QuantgateError(
            "calibration-unseen",
            f"{missing[0]}: no calibration token gave it an input other than zero.",
            "Give more, or longer, calibration text.",
        )
    scales = {name: scale_2_of(amax[shared[name]]) for name in plan.analogues}
    return scales, tuple(sorted(unseen, key=_by_number))


def _shared_input(architecture: Architecture, name: str) -> str:
    """What shares an input_scale: q, k and v; gate and up; a projection over all experts."""
    group = amax_group(architecture, name)[0]
    match = classify(architecture, name)
    if match is None or match.expert is None:
        return group
    return ".*.".join(group.rsplit(f".{match.expert}.", 1))


def _by_number(name: str) -> tuple[str, int]:
    stem, _, last = name.rpartition(".")
    return (stem, int(last)) if last.isdigit() else (name, -1)
