from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.artifacts import Endpoint, GateReport, Verdict
from tasks.gates.smoke import recompute, run_smoke
from tasks.spec import ServeSpec, SmokeGate, SpeculationSpec
from tests.gates.conftest import codes, questions, timeless
from tests.servers.fake import Brain, FakeEngine, Reply, after, hang, prose, solver, status

RECORDED = Path("tests/fixtures/sglang-0.5.17")
SCALES = {"main.3": (0.0101143969, 0.00631277915), "draft.0": (0.0398000017, 0.0512)}
MAIN, DRAFT = "model.language_model.layers.3.self_attn", "mtp.layers.0.self_attn"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As little of a release checkpoint as the gate reads: config, template, scales, draft."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def write_checkpoint(folder: Path, draft: str = "nvfp4", template: bool = True) -> Path:
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if template:
        (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    tensors = {
        f"{DRAFT}.q_proj.weight": np.zeros((2, 2), np.uint8 if draft == "nvfp4" else np.float32)
    }
    for key, (k, v) in SCALES.items():
        if key == "draft.0" and draft != "nvfp4":
            continue
        module = MAIN if key == "main.3" else DRAFT
        tensors[f"{module}.k_proj.k_scale"] = np.array(k, np.float32)
        tensors[f"{module}.v_proj.v_scale"] = np.array(v, np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def kv_lines(scales: dict[str, tuple[float, float]]) -> list[str]:
    lines = []
    for key, (k, v) in scales.items():
        role, layer = key.split(".")
        pair = f"k_scale={np.float32(k):.9g} v_scale={np.float32(v):.9g}"
        lines.append(f"quantgate kv-scales: role={role} layer={layer} {pair}")
    return lines


def write_log(
    path: Path,
    scales: dict[str, tuple[float, float]] | None = None,
    recorded: str = "D_quant_patched",
    change: Callable[[str], str] = lambda text: text,
) -> Path:
    text = (RECORDED / recorded / "server.log").read_text(encoding="utf-8")
    mark = "[2026-11-30 17:04:42] INFO:     Started server process"
    if recorded == "D_quant_patched":
        assert mark in text
        added = "\n".join(kv_lines(SCALES if scales is None else scales))
        text = text.replace(mark, f"{added}\n{mark}")
    path.write_text(change(text), encoding="utf-8")
    return path


def run(
    out: Path,
    brain: Brain,
    checkpoint: Path | None = None,
    *,
    gate: dict[str, Any] | None = None,
    **fake: Any,
) -> GateReport:
    with FakeEngine(brain=brain, **fake) as engine:
        report = run_smoke(
            engine.endpoint,
            SmokeGate(**{"max_tokens": 256, **(gate or {})}),
            ServeSpec(speculation=SpeculationSpec()),
            out,
            checkpoint,
            ready_timeout=5,
        )
    assert recompute(out / "records.jsonl") == report
    return report


def test_a_good_server_passes_every_check(tmp_path: Path, brain: Brain, checkpoint: Path) -> None:
    report = run(tmp_path, brain, checkpoint, log=write_log(tmp_path / "log"))
    assert report.verdict is Verdict.PASS and not report.reasons
    assert report.measured["known_right"] > 0.9
    assert report.measured["kv_scales_compared"] == 2
    assert report.measured["long_prompt_tokens"] > 1000
    assert report.engine["algorithm"] == "EAGLE"


def test_without_log_and_checkpoint_it_says_what_was_not_measured(
    tmp_path: Path, brain: Brain
) -> None:
    strict = run(tmp_path / "a", brain)
    assert strict.verdict is Verdict.INVALID and codes(strict) == {"not-measured"}
    loose = run(tmp_path / "b", brain, gate={"require_log": False})
    assert loose.verdict is Verdict.PASS and codes(loose) == {"not-measured"}


def test_a_log_without_scale_lines_is_no_release(
    tmp_path: Path, brain: Brain, checkpoint: Path
) -> None:
    report = run(tmp_path, brain, checkpoint, log=write_log(tmp_path / "log", scales={}))
    assert report.verdict is Verdict.INVALID and codes(report) == {"not-measured"}


DROPPED = {**SCALES, "draft.0": (1.0, 1.0)}
ONE_ULP = {**SCALES, "main.3": (float(np.nextafter(np.float32(0.0101143969), 1)), 0.00631277915)}
HALF = {"main.3": SCALES["main.3"]}
STRANGE = {**SCALES, "main.7": (0.5, 0.5)}


@pytest.mark.parametrize(
    ("scales", "code", "words"),
    [
        (DROPPED, "kv-scale-mismatch", "dropped at load"),
        (ONE_ULP, "kv-scale-mismatch", "main.3 k_scale"),
        (HALF, "kv-scale-missing", "draft.0"),
        (STRANGE, "kv-scale-mismatch", "the checkpoint has none"),
    ],
)
def test_scales_that_were_not_loaded_as_they_are(
    tmp_path: Path, brain: Brain, checkpoint: Path, scales: Any, code: str, words: str
) -> None:
    report = run(tmp_path, brain, checkpoint, log=write_log(tmp_path / "log", scales))
    assert report.verdict is Verdict.FAIL and code in codes(report)
    assert any(words in reason.detail for reason in report.reasons)


def test_scales_of_one_in_the_checkpoint_prove_nothing(tmp_path: Path, brain: Brain) -> None:
    folder = write_checkpoint(tmp_path)
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    tensors[f"{DRAFT}.k_proj.k_scale"] = np.array(1, np.float32)
    save_file(tensors, folder / "model.safetensors")
    log = write_log(tmp_path / "log", {**SCALES, "draft.0": (1.0, 0.0512)})
    report = run(tmp_path / "out", brain, folder, log=log)
    assert report.verdict is Verdict.FAIL and codes(report) == {"kv-scale-mismatch"}


def test_a_draft_in_another_precision_than_the_checkpoint_s(tmp_path: Path, brain: Brain) -> None:
    quantized = write_checkpoint(tmp_path)
    log = write_log(tmp_path / "log", recorded="C_stock_unpatched")
    report = run(tmp_path / "a", brain, quantized, log=log)
    assert report.verdict is Verdict.FAIL and "draft-precision" in codes(report)
    (tmp_path / "bf16").mkdir()
    plain = write_checkpoint(tmp_path / "bf16", draft="bf16")
    log = write_log(tmp_path / "log", {"main.3": SCALES["main.3"]})
    report = run(tmp_path / "b", brain, plain, log=log)
    assert report.verdict is Verdict.FAIL and "draft-precision" in codes(report)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda text: text.replace("Qwen3_5ForCausalLMMTP", "Nothing"), "speculation-inactive"),
        (lambda text: text.replace("type=Qwen3_5Moe", "type=Other"), "other-model"),
        (
            lambda text: "x not found in params_dict\n" + text.replace("server_args=", ""),
            "log-weight-unknown",
        ),
        (lambda text: text + "Scheduler hit an exception: boom\n", "log-fatal"),
    ],
)
def test_logs_that_condemn(
    tmp_path: Path, brain: Brain, checkpoint: Path, change: Any, code: str
) -> None:
    log = write_log(tmp_path / "log", change=change)
    report = run(tmp_path, brain, checkpoint, log=log)
    assert report.verdict is Verdict.FAIL and code in codes(report)


def test_a_load_that_cannot_succeed_is_not_waited_for(tmp_path: Path, checkpoint: Path) -> None:
    log = write_log(tmp_path / "log", recorded="B_quant_unpatched")
    endpoint = Endpoint(url="http://127.0.0.1:9", engine="sglang", log=log)
    spec = ServeSpec(ready_timeout=600)
    report = run_smoke(endpoint, SmokeGate(), spec, tmp_path, checkpoint)
    assert report.verdict is Verdict.FAIL
    assert {"log-shape-mismatch", "log-fatal"} <= codes(report)


def test_a_server_that_never_becomes_ready_is_invalid(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain, ready_after=10**6) as fake:
        spec = ServeSpec(ready_timeout=0.5)
        report = run_smoke(fake.endpoint, SmokeGate(require_log=False), spec, tmp_path)
    assert report.verdict is Verdict.INVALID and "server-unreachable" in codes(report)


def never_stops(reply: Reply, _: int) -> None:
    reply.finish = "length"


def template_leaks(reply: Reply, _: int) -> None:
    reply.text += "<|im_end|>"


def no_counters(reply: Reply, _: int) -> None:
    reply.speculation = False


def unstable(reply: Reply, count: int) -> None:
    reply.text = f"Number {count}. {reply.text}"


def ignores_turns(reply: Reply, _: int) -> None:
    reply.prompt_tokens = 30


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        ({"brain": solver(questions(), wrong=lambda _: True)}, "known-answers"),
        ({"brain": prose}, "known-answers"),
        ({"brain": lambda _: "!" * 200}, "degenerate"),
        ({"brain": lambda _: ""}, "degenerate"),
        ({"brain": lambda _: "The answer is 42.\n#### 42"}, "same-answer"),
        ({"spoil": never_stops}, "never-stops"),
        ({"spoil": template_leaks}, "markup-in-answers"),
        ({"spoil": no_counters}, "speculation-inactive"),
        ({"spoil": unstable}, "greedy-unstable"),
        ({"spoil": ignores_turns}, "chat-template"),
        ({"spoil": ignores_turns}, "long-prompt"),
        ({"info": {"speculative_algorithm": None}}, "speculation-inactive"),
        ({"info": {"speculative_num_steps": 1}}, "speculation-inactive"),
    ],
)
def test_servers_that_fail(tmp_path: Path, brain: Brain, fake: Any, code: str) -> None:
    values = {"brain": brain, **fake}
    report = run(tmp_path, values.pop("brain"), gate={"require_log": False}, **values)
    assert report.verdict is Verdict.FAIL and code in codes(report), report.reasons


def test_any_lost_request_is_invalid(tmp_path: Path, brain: Brain) -> None:
    def first(reply: Reply, count: int) -> None:
        if count == 2:
            status(500)(reply, count)

    report = run(tmp_path, brain, gate={"require_log": False}, spoil=first)
    assert report.verdict is Verdict.INVALID and "lost-requests" in codes(report)


def test_a_server_that_hangs_is_invalid_in_bounded_time(
    tmp_path: Path, brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.serve.client.STALL_AFTER", 0.2)
    monkeypatch.setattr("tasks.serve.client.STALL_LIMIT", 0.6)
    report = run(tmp_path, brain, gate={"require_log": False}, spoil=after(5, hang))
    assert report.verdict is Verdict.INVALID and "server-hung" in codes(report)


def test_a_log_of_another_server_proves_nothing(
    tmp_path: Path, brain: Brain, checkpoint: Path
) -> None:
    log = write_log(tmp_path / "log")
    report = run(tmp_path, brain, checkpoint, log=log, info={"model_path": "/models/other"})
    assert report.verdict is Verdict.INVALID and codes(report) == {"log-of-another-server"}


def test_a_missing_chat_template_fails(tmp_path: Path, brain: Brain) -> None:
    folder = write_checkpoint(tmp_path, template=False)
    report = run(tmp_path / "out", brain, folder, log=write_log(tmp_path / "log"))
    assert report.verdict is Verdict.FAIL and codes(report) == {"chat-template-missing"}


def test_without_speculation_none_is_asked_for(tmp_path: Path, brain: Brain) -> None:
    with FakeEngine(brain=brain, spoil=no_counters, info={"speculative_algorithm": None}) as fake:
        spec = ServeSpec(speculation=SpeculationSpec(algorithm="none"))
        report = run_smoke(fake.endpoint, SmokeGate(require_log=False), spec, tmp_path)
    assert report.verdict is Verdict.PASS


def test_a_smoke_run_is_repeated_from_its_records(
    tmp_path: Path, brain: Brain, checkpoint: Path
) -> None:
    log = write_log(tmp_path / "log")
    with FakeEngine(brain=brain, log=log) as fake:
        spec = ServeSpec()
        first = run_smoke(fake.endpoint, SmokeGate(), spec, tmp_path, checkpoint)
        asked = fake.count
        again = run_smoke(fake.endpoint, SmokeGate(), spec, tmp_path, checkpoint)
        assert fake.count == asked
    assert timeless(again) == timeless(first)


class Thinking(FakeEngine):
    """Thinks at length before every answer; the thoughts are billed and kept apart."""

    def _reply(self, body: dict[str, Any]) -> Reply:
        reply = super()._reply(body)
        reply.reasoning = " ".join(prose(f"{reply.text}{part}") for part in range(4))
        reply.tokens += len(reply.reasoning.split(" "))
        self._speculate(reply)
        return reply


def test_a_model_that_thinks_gets_its_long_prompts_too(tmp_path: Path, brain: Brain) -> None:
    with Thinking(brain=brain, max_model_len=6000) as fake:
        gate = SmokeGate(max_tokens=1024, require_log=False)
        report = run_smoke(fake.endpoint, gate, ServeSpec(), tmp_path)
    assert report.verdict is Verdict.PASS, report.reasons
    assert report.measured["long_prompt_tokens"] > 1000
