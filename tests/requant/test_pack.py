"""The packer equals ModelOpt's NVFP4QTensor and its exporter, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tasks.architectures import ARCHITECTURES, amax_group, classify
from tasks.checkpoint.files import CheckpointFiles
from tasks.errors import BadInputError
from tasks.requant import pack as packing
from tasks.requant.pack import BF16, amax_of, pack, scale_2_of
from tests import exports

MOE = ARCHITECTURES["Qwen3_5MoeForConditionalGeneration"]
ROWS, COLUMNS = 96, 256


def _array(weight: torch.Tensor) -> Any:
    return weight.contiguous().view(torch.int16).numpy().view(BF16)


def _modelopt(weight: torch.Tensor, amax: np.float32) -> tuple[Any, Any, Any]:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    scale_2 = torch.tensor(float(amax)).float() / (6.0 * 448.0)
    packed, scale, scale_2 = NVFP4QTensor.quantize(
        weight.clone(), 16, weights_scaling_factor_2=scale_2
    )
    return (
        packed._quantized_data.numpy(),
        scale.view(torch.uint8).numpy(),
        scale_2.numpy(),
    )


def _equal(weight: torch.Tensor, amax: np.float32) -> bool:
    ours, theirs = pack(_array(weight), amax), _modelopt(weight, amax)
    return (
        np.array_equal(ours.weight, theirs[0])
        and np.array_equal(ours.weight_scale.view(np.uint8), theirs[1])
        and ours.weight_scale_2.tobytes() == theirs[2].tobytes()
    )


def _random() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(ROWS, COLUMNS, generator=generator) * 0.02).bfloat16()


def _zero_blocks() -> torch.Tensor:
    weight = _random()
    weight[::3, 32:64] = 0
    weight[5] = -0.0
    return weight


def _wide_blocks() -> torch.Tensor:
    """Blocks from 2^-40 to 2^20 of one another: scales clamp at both ends."""
    generator = torch.Generator().manual_seed(2)
    power = torch.randint(-40, 20, (ROWS, COLUMNS // 16, 1), generator=generator).float()
    return (_random().float().view(ROWS, -1, 16) * power.exp2()).view(ROWS, COLUMNS).bfloat16()


def _every_bit_pattern() -> torch.Tensor:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    weight = bits.view(torch.bfloat16)
    weight = torch.where(weight.isfinite(), weight, torch.zeros((), dtype=torch.bfloat16))
    order = torch.randperm(2**16, generator=torch.Generator().manual_seed(3))
    return weight[order].view(256, 256)


def _ties() -> torch.Tensor:
    """Every midpoint and value of the E2M1 grid, in blocks whose scale is exactly 1."""
    grid = [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 5.5]
    return torch.tensor([grid, [-value for value in grid]] * 16).repeat(1, 4).bfloat16()


def _subnormal() -> torch.Tensor:
    return (_random().float() * 2.0**-120).bfloat16()


WEIGHTS = {
    "random": _random,
    "zero blocks": _zero_blocks,
    "huge and tiny blocks": _wide_blocks,
    "every bit pattern": _every_bit_pattern,
    "ties": _ties,
    "subnormal": _subnormal,
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("share", [1.0, 3.7])
def test_bytes_are_modelopt_s(name: str, share: float) -> None:
    weight = WEIGHTS[name]()
    amax = amax_of([_array(weight)], name)
    amax = np.float32(min(float(amax) * share, float(ml_dtypes.finfo(BF16).max)))
    assert _equal(weight, amax)


def test_ties_hit_scale_one() -> None:
    packed = pack(_array(_ties()), np.float32(6 * 448))
    assert set(packed.weight_scale.astype(np.float32).ravel()) == {1.0}


def test_a_wrong_byte_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = _ties()
    amax = np.float32(6 * 448)
    assert _equal(weight, amax)
    reached = np.array([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    monkeypatch.setattr(packing, "_STEPS", np.nextafter(reached, np.float32(0)))  # ties away
    assert not _equal(weight, amax)


def test_a_value_over_the_amax_is_an_error() -> None:
    weight = _array(_random())
    with pytest.raises(ValueError, match="larger than amax"):
        pack(weight, amax_of([weight], "x") / np.float32(2))


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_the_chunk_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK", chunk)
    weight = _random()
    assert _equal(weight[:, :96].contiguous(), amax_of([_array(weight)], "x"))


def test_a_row_slice_of_a_fused_tensor_packs_the_same() -> None:
    fused = _array(torch.stack([_random(), _random() * 2]))
    part = fused[1][32:64]
    amax = amax_of([part], "x")
    assert np.array_equal(pack(part, amax).weight, pack(part.copy(), amax).weight)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    weight = _random()
    weight[3, 17] = bad
    with pytest.raises(BadInputError) as error:
        amax_of([_array(_random()), _array(weight)], "mtp.layers.0.mlp.gate")
    assert error.value.code == "weight-nonfinite" and "mtp.layers.0.mlp.gate" in str(error.value)


def test_all_zero_is_refused_and_names_the_weight() -> None:
    with pytest.raises(BadInputError) as error:
        amax_of([_array(torch.zeros(2, 16).bfloat16())], "an.expert")
    assert error.value.code == "weight-zero" and "an.expert" in str(error.value)


@pytest.mark.parametrize("weight", [np.zeros((2, 24), BF16), np.zeros((2, 16), np.float32)])
def test_wrong_shapes_and_dtypes_are_errors(weight: Any) -> None:
    with pytest.raises(ValueError, match="want bfloat16"):
        pack(weight, np.float32(1))


def _source_weight(files: CheckpointFiles, module: str) -> Any:
    """The BF16 weight of a main-model module, cut out of the fused experts where it lies there."""
    match = classify(MOE, module)
    assert match is not None
    if match.expert is None:
        return files.array(f"{module}.weight")
    stem, leaf = module.rsplit(f".{match.expert}.", 1)
    if leaf == "down_proj":
        return files.array(f"{stem}.down_proj")[match.expert]
    gate, up = np.split(files.array(f"{stem}.gate_up_proj")[match.expert], 2)
    return gate if leaf == "gate_proj" else up


def _repack(shared: bool) -> tuple[int, int]:
    """(equal, all) modules of the export, packed again from the source."""
    files = CheckpointFiles.open(exports.source(), as_source=True)
    export = CheckpointFiles.open(exports.exported().path)
    modules = [
        n.removesuffix(".weight") for n, info in export.tensors.items() if info.dtype == "U8"
    ]
    equal = 0
    for module in modules:
        group = amax_group(MOE, module) if shared else (module,)
        amax = amax_of([_source_weight(files, name) for name in group], module)
        ours = pack(_source_weight(files, module), amax)
        equal += all(
            getattr(ours, leaf).tobytes() == export.array(f"{module}.{leaf}").tobytes()
            for leaf in ("weight", "weight_scale", "weight_scale_2")
        )
    return equal, len(modules)


def test_the_export_s_own_weights_pack_to_its_own_bytes() -> None:
    equal, total = _repack(shared=True)
    assert equal == total == 121


def test_without_sharing_the_amax_they_do_not() -> None:
    equal, total = _repack(shared=False)
    assert equal < total


def test_scale_2_is_one_float32_division() -> None:
    assert scale_2_of(np.float32(2688)) == np.float32(1)
    expected = torch.tensor(0.1, dtype=torch.float32) / (6.0 * 448.0)
    assert scale_2_of(np.float32(0.1)) == np.float32(expected.item())


def test_the_smallest_amax_there_is() -> None:
    weight = torch.zeros(16, 32, dtype=torch.int16)
    weight[::2, ::3] = 1  # the smallest BF16 magnitude
    weight[1::2, 1::5] = -(2**15) + 2
    weight[:, 0] = 1  # no block of zeros: ModelOpt divides zero by zero there
    weight[:, 16] = 1
    assert _equal(weight.view(torch.bfloat16), amax_of([_array(weight.view(torch.bfloat16))], "x"))
