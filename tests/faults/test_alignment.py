"""Scales beside other blocks than their own are seen; strange but right weights are left alone."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tasks.gates.audit.alignment import fit
from tasks.gates.audit.nvfp4 import (
    bf16_bits_to_f32,
    block_amax_bits,
    encode,
    scale_2_of,
    scales_of,
    step_of,
)
from tasks.gates.audit.result import Findings
from tasks.gates.audit.values import check_strangers
from tests.faults.inject import Array

ROWS, COLUMNS = 256, 512
Draw = Callable[[np.random.Generator], Array]


def normal(random: np.random.Generator) -> Array:
    return random.standard_normal((ROWS, COLUMNS))


def pruned(random: np.random.Generator, below: float) -> Array:
    weight = normal(random)
    return np.where(np.abs(weight) > below, weight, 0)


WEIGHTS: dict[str, Draw] = {
    "normal": normal,
    "laplace": lambda r: r.laplace(size=(ROWS, COLUMNS)),
    "student": lambda r: r.standard_t(3, (ROWS, COLUMNS)),
    "cauchy": lambda r: r.standard_cauchy((ROWS, COLUMNS)),
    "uneven columns": lambda r: normal(r) * np.exp(r.standard_normal(COLUMNS)),
    "uneven rows": lambda r: normal(r) * np.exp(r.standard_normal((ROWS, 1))),
    "outlier columns": lambda r: normal(r) * np.where(r.random(COLUMNS) < 0.01, 30, 1),
    "half pruned": lambda r: pruned(r, 0.67),
    "low rank": lambda r: r.standard_normal((ROWS, 4)) @ r.standard_normal((4, COLUMNS)),
}
SILENT: dict[str, Draw] = {
    "uniform": lambda r: r.uniform(-1, 1, (ROWS, COLUMNS)),
    "nine tenths pruned": lambda r: pruned(r, 1.64),
    "smooth": lambda r: np.cumsum(normal(r), axis=1),
    "one magnitude": lambda r: np.sign(normal(r)),
    "constant": lambda r: np.ones((ROWS, COLUMNS)),
    "quiet blocks with spikes": lambda r: np.where(
        (r.random((ROWS, COLUMNS // 16)) < 0.5).repeat(16, axis=1),
        5 * r.uniform(-1, 1, (ROWS, COLUMNS)),
        r.standard_t(3, (ROWS, COLUMNS)) / 10,
    ),
}


def packed(draw: Draw) -> tuple[Array, Array]:
    """(codes, block scales) of a random weight."""
    weight = draw(np.random.default_rng(7)).astype(ml_dtypes.bfloat16)
    bits = weight.view(np.uint16)
    amax = bf16_bits_to_f32(block_amax_bits(bits))
    scale_2 = scale_2_of(float(amax.max()))
    scale = scales_of(amax, scale_2)
    return encode(bits, step_of(scale, scale_2)), scale


@pytest.mark.parametrize("name", [*WEIGHTS, *SILENT])
def test_scales_in_their_place(name: str) -> None:
    assert fit(*packed((WEIGHTS | SILENT)[name])) == (None, True if name in WEIGHTS else None)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(
    ("step", "axis", "where"),
    [
        (1, 1, "one block after"),
        (-1, 1, "one block before"),
        (1, 0, "one row after"),
        (-1, 0, "one row before"),
    ],
)
def test_shifted(name: str, step: int, axis: int, where: str) -> None:
    codes, scale = packed(WEIGHTS[name])
    assert fit(codes, np.roll(scale, step, axis=axis)).elsewhere == where


def test_in_the_order_of_a_kernel() -> None:
    codes, scale = packed(normal)
    tiles = scale.reshape(ROWS // 128, 4, 32, -1, 4).transpose(0, 3, 2, 1, 4)
    stored = np.ascontiguousarray(tiles).reshape(scale.shape)
    assert fit(codes, stored).elsewhere == "in the order of a GEMM kernel"


def test_too_few_blocks_prove_nothing() -> None:
    codes, scale = packed(normal)
    assert fit(codes[:2, :64], np.roll(scale[:2, :8], 1, axis=1)) == (None, None)


STRANGE: dict[str, Callable[[Array], Array]] = {
    "shuffled": lambda scale: np.random.default_rng(1).permutation(scale.ravel()).reshape(ROWS, -1),
    "all the same": lambda scale: np.full_like(scale, 0x7E),
    "one for each row": lambda scale: np.repeat(scale.max(1, keepdims=True), scale.shape[1], 1),
    "two blocks on": lambda scale: np.roll(scale, 2, axis=1),
    "backwards": lambda scale: scale[:, ::-1],
    "column by column": lambda scale: np.ascontiguousarray(scale.T).reshape(scale.shape),
}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", ["normal", "laplace", "student"])
def test_scales_that_know_nothing_of_their_codes(name: str, strange: str) -> None:
    codes, scale = packed(WEIGHTS[name])
    assert fit(codes, STRANGE[strange](scale)) == (None, False)


def test_strangers_are_those_that_most_are_not() -> None:
    few, most = Findings(), Findings()
    check_strangers({"a": True, "b": True, "c": False}, few)
    assert [(f.code, f.tensor) for f in few.faults()] == [("scales-misaligned", "c.weight_scale")]
    check_strangers({"a": True, "b": False, "c": False}, most)
    assert most.faults() == ()
