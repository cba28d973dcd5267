"""Good releases are not stopped: two runs in every test run, twenty under the marker `long`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tasks.artifacts import Endpoint, Verdict
from tasks.gates.acceptance import run_acceptance
from tasks.gates.audit import audit
from tasks.gates.gsm8k import run_gsm8k
from tasks.gates.smoke import run_smoke
from tasks.spec import ReleaseSpec, load_spec

DEMO = Path("deployments/demo")
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64)


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    """The demo's own generator of problems."""
    described = importlib.util.spec_from_file_location("demo_problems", DEMO / "problems.py")
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    yield module
    del sys.modules[described.name]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "width"), [(101, 4), (102, 64)])
def test_fresh_problems_at_any_concurrency(
    seed: int,
    width: int,
    generator: ModuleType,
    demo_engine: Endpoint,
    demo_release: Path,
    demo_spec: ReleaseSpec,
    tmp_path: Path,
) -> None:
    data = write(tmp_path / "data.jsonl", generator.gsm8k_rows("eval", 64, seed))
    gate = demo_spec.gates.gsm8k.model_copy(
        update={"data": data, "limit": 64, "concurrency": width}
    )
    gate = gate.model_copy(update={"min_accuracy": 0.85})
    report = run_gsm8k(demo_engine, gate, tmp_path / "gsm8k", demo_release)
    assert report.verdict is Verdict.PASS, report.reasons


@pytest.mark.long
@pytest.mark.parametrize("place", range(20))
def test_a_good_release_with_other_seeds_passes_every_gate(
    place: int, generator: ModuleType, tmp_path: Path
) -> None:
    from tasks.hub.task import fetch_source
    from tasks.quantize.task import quantize_checkpoint
    from tasks.requant.task import requantize_draft
    from tasks.run import Run
    from tasks.serve.engines import serve

    seed = 200 + place
    spec = load_spec(DEMO / "release.yaml", {"quantize.calibration.seed": seed})
    run = Run.start(spec, tmp_path / "root")
    source = fetch_source.fn(run)
    release = requantize_draft.fn(run, source, quantize_checkpoint.fn(run, source)).path
    gates = spec.gates
    assert gates.acceptance is not None
    assert not audit(release, source.path).faults
    width = WIDTHS[place]
    questions = write(tmp_path / "smoke.jsonl", generator.smoke_rows("eval", 12, seed))
    problems = write(tmp_path / "gsm8k.jsonl", generator.gsm8k_rows("eval", 400, seed))
    prompts = write(tmp_path / "acceptance.jsonl", generator.acceptance_rows("eval", 240, seed))
    smoke = gates.smoke.model_copy(update={"prompts": questions})
    gsm8k = gates.gsm8k.model_copy(update={"data": problems, "concurrency": width})
    acceptance = gates.acceptance.model_copy(update={"prompts": prompts, "concurrency": width})
    with serve(release, spec.serve, None, tmp_path / "engine.log", f"good-{place}") as endpoint:
        reports = [
            run_smoke(endpoint, smoke, spec.serve, tmp_path / "s", release),
            run_gsm8k(endpoint, gsm8k, tmp_path / "g", release),
            run_acceptance(endpoint, acceptance, spec.serve.speculation, tmp_path / "a"),
        ]
    stopped = [(r.gate, r.verdict, r.reasons) for r in reports if r.verdict is not Verdict.PASS]
    assert not stopped
