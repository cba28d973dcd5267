"""Several processes calibrate as one does, alike to the byte; one that dies stops them all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from tasks.artifacts import Source
from tasks.child import call_in_child
from tasks.errors import QuantgateError
from tasks.progress import Progress, silent
from tasks.quantize.ranks import Ranks
from tasks.quantize.task import torchrun
from tasks.serve.ports import free_port
from tasks.spec import CalibrationSpec, LaunchSpec, QuantizeSpec
from tasks.store import PROJECT
from tests.tiny import write_calibration, write_tiny_source


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_every_batch_is_run_and_each_rank_runs_as_many(size: int, count: int) -> None:
    batches = list(range(count))
    parts = [Ranks(rank, size).part(batches) for rank in range(size)]
    assert {batch for part in parts for batch in part} == set(batches)
    assert len({len(part) for part in parts}) == 1
    assert sum(map(len, parts)) < count + size


def test_one_process_needs_no_torchrun() -> None:
    assert torchrun(LaunchSpec()) == ()
    assert "--standalone" in torchrun(LaunchSpec(processes=2))
    several = torchrun(LaunchSpec(nodes=4, address="first:29500"))
    assert several[several.index("--node-rank") :][:2] == ("--node-rank", "0")


def test_several_nodes_need_an_address() -> None:
    with pytest.raises(ValidationError, match="several nodes need"):
        LaunchSpec(nodes=2)
    with pytest.raises(ValidationError, match="address"):
        LaunchSpec(nodes=2, address="--rdzv-conf evil")


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny model and ten batches of text, the last one short."""
    room = tmp_path_factory.mktemp("ranks")
    text = write_calibration(room / "text.jsonl", rows=19)
    calibration = CalibrationSpec(file=text, rows=19, sequence_length=48, batch_size=2)
    source = write_tiny_source(room / "source")
    record = Source(path=source, repo=None, revision=None, digest="-", architecture="-")
    return {"source": record, "calibration": calibration}


def run(
    order: dict[str, Any], launch: LaunchSpec, out: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Quantize as the flow's task does; the checkpoint's record."""
    out.mkdir(parents=True)
    spec = QuantizeSpec(calibration=order["calibration"], device="cpu", launch=launch)
    arguments = {"source": order["source"], "spec": spec, "out": out}
    made: dict[str, Any] = call_in_child(
        "tasks.quantize.quantize:quantize",
        arguments,
        out.with_suffix(".log"),
        progress,
        torchrun(launch),
    )
    return made


@pytest.fixture(scope="module")
def alone(order: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(order, LaunchSpec(), tmp_path_factory.mktemp("alone") / "out")


def assert_alike(made: dict[str, Any], alone: dict[str, Any], processes: int) -> None:
    assert made["digest"] == alone["digest"]
    calibrated, reference = (r["quantization"]["calibration"] for r in (made, alone))
    assert calibrated["processes"] == processes and reference["processes"] == 1
    assert calibrated["rows"] == reference["rows"] == 19
    assert calibrated["tokens"] == reference["tokens"]


@pytest.mark.long
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("shard", ["replicate", "fsdp2"])
def test_several_processes(
    order: dict[str, Any], alone: dict[str, Any], processes: int, shard: Any, tmp_path: Path
) -> None:
    launch = LaunchSpec(processes=processes, shard=shard)
    assert_alike(run(order, launch, tmp_path / "out"), alone, processes)


@pytest.mark.long
def test_two_nodes(order: dict[str, Any], alone: dict[str, Any], tmp_path: Path) -> None:
    """The second node is told by the first what to quantize."""
    port = free_port(0)
    with subprocess.Popen(
        join_command(port), env={**os.environ, "PYTHONPATH": str(PROJECT)}
    ) as other:
        launch = LaunchSpec(nodes=2, address=f"127.0.0.1:{port}")
        assert_alike(run(order, launch, tmp_path / "out"), alone, 2)
        assert other.wait(60) == 0


def join_command(port: int) -> Sequence[str]:
    return (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "1"),
        *("--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "1"),
        *("-m", "tasks.quantize.join"),
    )


@pytest.mark.slow
def test_a_rank_that_dies_stops_all_and_says_which(order: dict[str, Any], tmp_path: Path) -> None:
    seen: list[psutil.Process] = []

    def kill_the_second(fraction: float, words: str) -> None:
        if "calibrating" in words and not seen:
            seen.extend(ranks_below(psutil.Process()))
            second = next(process for process in seen if process.environ()["RANK"] == "1")
            second.kill()

    with pytest.raises(QuantgateError, match=r"rank 1 ended first \(signal 9\)") as caught:
        run(order, LaunchSpec(processes=2), tmp_path / "out", kill_the_second)
    assert caught.value.code == "rank-died"
    assert not psutil.wait_procs(seen, timeout=30)[1]


def ranks_below(parent: psutil.Process) -> list[psutil.Process]:
    return [child for child in parent.children(recursive=True) if "RANK" in child.environ()]
