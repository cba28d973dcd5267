"""Calibrated scales are the real maxima; the weights do not move; no expert gets a zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.architectures import architecture_of
from tasks.artifacts import DraftRecord
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError, QuantgateError
from tasks.requant import standalone
from tasks.requant.calibrated import _inputs, _key, build_head, measured_scales
from tasks.requant.head import DraftSource
from tasks.requant.pack import scale_2_of
from tasks.requant.plan import HeadPlan, mirror
from tasks.requant.requant import requant
from tasks.requant.standalone import requant_folder, shipped_text
from tasks.spec import CalibrationSpec, DraftSpec
from tests import exports

LAYER = "mtp.layers.0"
TEXT = {"rows": 6, "sequence_length": 48, "batch_size": 4}
CALIBRATED = DraftSpec(scales="calibrated")


def _spec() -> CalibrationSpec:
    return CalibrationSpec(file=exports.calibration(), **TEXT)


def _head(source: Path) -> DraftSource:
    files = CheckpointFiles.open(source, as_source=True)
    return DraftSource(files, architecture_of(files.config, "test"))


def _plan(head: DraftSource) -> HeadPlan:
    return mirror(head, CheckpointFiles.open(exports.exported().path), head.architecture)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointFiles, DraftRecord]:
    out = tmp_path_factory.mktemp("calibrated") / "out"
    record = requant(exports.source(), exports.exported().path, CALIBRATED, _spec(), out)
    return CheckpointFiles.open(out), record


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """Input maxima by plain hooks, and those of K and V: the same text, none of ModelOpt."""
    return _measure(exports.source())


def _measure(source: Path) -> dict[str, float]:
    from tasks.quantize.calibration import batches, read_rows, tokenize
    from tasks.quantize.quantize import load_model

    tokenizer, model = load_model(source, torch.device("cpu"), small=True)
    draft = build_head(_head(source), model.config.get_text_config(), torch.device("cpu"))
    largest: dict[str, float] = {}

    def note(name: str, value: torch.Tensor) -> None:
        largest[name] = max(largest.get(name, 0.0), float(value.abs().amax()))

    for name, module in draft.linears().items():
        module.register_forward_pre_hook(lambda _, args, name=name: note(name, args[0]))

    class Cache:
        def update(self, k: Any, v: Any, layer_idx: int) -> tuple[Any, Any]:
            note("k", k)
            note("v", v)
            return k, v

    ids = tokenize(read_rows(_spec()).rows, tokenizer, TEXT["sequence_length"])
    with torch.inference_mode():
        for batch in batches(ids, TEXT["batch_size"]):
            tokens = torch.tensor(batch)
            hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state
            embeddings = model.get_input_embeddings()(tokens)
            first = draft(embeddings[:, 1:], hidden[:, :-1], _positions(tokens, 1), cache=Cache())
            draft(embeddings[:, 2:], first[:, :-1], _positions(tokens, 2), cache=Cache())
    return largest


def _positions(tokens: torch.Tensor, start: int) -> torch.Tensor:
    return torch.arange(start, tokens.shape[1]).expand(len(tokens), -1)


def _input_scale(files: CheckpointFiles, module: str) -> float:
    return float(files.array(f"{module}.input_scale"))


def test_inputs_are_the_real_maxima(
    made: tuple[CheckpointFiles, DraftRecord], measured: dict[str, float]
) -> None:
    files, _ = made
    for name in (
        f"{LAYER}.self_attn.q_proj",
        f"{LAYER}.self_attn.k_proj",
        f"{LAYER}.self_attn.o_proj",
        f"{LAYER}.mlp.shared_expert.up_proj",
        f"{LAYER}.mlp.shared_expert.down_proj",
    ):
        assert _input_scale(files, name) == scale_2_of(np.float32(measured[name])), name


@pytest.mark.parametrize("leaf", ["gate_proj", "up_proj", "down_proj"])
def test_experts_share_one_input_scale_a_projection(
    made: tuple[CheckpointFiles, DraftRecord], measured: dict[str, float], leaf: str
) -> None:
    files, _ = made
    names = [f"{LAYER}.mlp.experts.{number}.{leaf}" for number in range(8)]
    largest = max(measured.get(name, 0.0) for name in names)
    assert {_input_scale(files, name) for name in names} == {scale_2_of(np.float32(largest))}


def test_k_and_v_are_the_real_maxima(
    made: tuple[CheckpointFiles, DraftRecord], measured: dict[str, float]
) -> None:
    files, record = made
    for leaf in "kv":
        scale = files.array(f"{LAYER}.self_attn.{leaf}_proj.{leaf}_scale")
        assert scale == np.float32(measured[leaf]) / np.float32(448)
        assert getattr(record, f"{leaf}_scale") == float(scale)
    assert record.k_scale != record.v_scale


def test_weights_are_those_of_the_heuristic_build(
    made: tuple[CheckpointFiles, DraftRecord], tmp_path: Path
) -> None:
    files, record = made
    other = requant(exports.source(), exports.exported().path, DraftSpec(), None, tmp_path / "out")
    heuristic = CheckpointFiles.open(tmp_path / "out")
    moved = {
        name
        for name in files.tensors
        if files.array(name).tobytes() != heuristic.array(name).tobytes()
    }
    assert moved and all(name.endswith(("input_scale", "k_scale", "v_scale")) for name in moved)
    assert record.scales == "calibrated" and other.scales == "heuristic"
    assert record.borrowed_from is None and other.borrowed_from is not None


def test_the_record_holds_the_calibration_s_own(
    made: tuple[CheckpointFiles, DraftRecord],
) -> None:
    _, record = made
    calibration = record.calibration
    assert calibration is not None and calibration.rows == 6
    assert calibration.dataset == "calibration.jsonl" and len(calibration.sha256) == 64
    assert calibration.tokens > 6 * 20 and "nvidia-modelopt" in calibration.packages
    assert record.rule and "BF16 main model" in record.rule


def test_unseen_experts_are_listed_and_get_their_neighbours_scale() -> None:
    head = _head(exports.source())
    plan = _plan(head)
    dead = {f"{LAYER}.mlp.experts.2", f"{LAYER}.mlp.experts.6"}
    linears = _linears(plan, lambda name: None if name.rpartition(".")[0] in dead else 2.0)
    scales, unseen = _inputs(linears, plan, head.architecture)
    assert set(unseen) == dead
    assert set(scales) == set(plan.analogues)
    assert set(scales.values()) == {scale_2_of(np.float32(2))}


def test_a_module_without_any_input_is_an_error() -> None:
    head = _head(exports.source())
    plan = _plan(head)
    for amax in (None, 0.0):
        linears = _linears(plan, lambda name, a=amax: a if name.endswith("o_proj") else 2.0)
        with pytest.raises(QuantgateError) as error:
            _inputs(linears, plan, head.architecture)
        assert error.value.code == "calibration-unseen" and "o_proj" in str(error.value)


def _linears(plan: HeadPlan, amax: Any) -> torch.nn.ModuleDict:
    """Modules whose input quantizer has seen what `amax(name)` says."""

    class Quantizer:
        def __init__(self, name: str) -> None:
            seen = amax(name)
            self.amax = None if seen is None else torch.tensor(seen)

    modules = torch.nn.ModuleDict()
    for name in plan.analogues:
        module = torch.nn.Module()
        module.input_quantizer = Quantizer(name)  # type: ignore[assignment]
        modules[_key(name)] = module
    return modules


def test_rows_too_short_for_a_draft_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.jsonl"
    file.write_text(json.dumps({"text": "T"}) + "\n")
    head = _head(exports.source())
    spec = CalibrationSpec(file=file)
    with pytest.raises(BadInputError) as error:
        measured_scales(head, _plan(head), spec, lambda *_: None)
    assert error.value.code == "calibration-empty"


def test_standalone_has_text_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "ROWS", 3)
    rows = shipped_text().read_text(encoding="utf-8").splitlines()
    assert len(rows) == 32
    record = requant_folder(
        exports.source(), exports.exported().path, tmp_path / "out", scales="calibrated"
    )
    assert record.calibration is not None and record.calibration.rows == 3
