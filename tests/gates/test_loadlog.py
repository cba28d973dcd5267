from __future__ import annotations

from pathlib import Path

import pytest

from tasks.gates.degenerate import degenerate
from tasks.gates.loadlog import LoadLog, doom, read_log, scan

RECORDED = Path("tests/fixtures/sglang-0.5.17")


def load(folder: str) -> LoadLog:
    log = read_log(RECORDED / folder / "server.log")
    assert log is not None
    return log


def test_the_patched_server_loaded_both_models_in_fp8() -> None:
    log = load("D_quant_patched")
    assert [item.type for item in log.loaded] == [
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5ForCausalLMMTP",
    ]
    assert {item.quant for item in log.loaded} == {"modelopt_fp4"}
    assert log.kv_dtypes == ("float8_e4m3fn", "float8_e4m3fn")
    assert not log.condemned and not log.fatal
    assert log.model_path == "/models/nvfp4_mtp_quant"


def test_a_bf16_head_shows_only_in_the_cache_lines() -> None:
    assert load("C_stock_unpatched").kv_dtypes == ("float8_e4m3fn", "bfloat16")
    assert load("C_stock_unpatched").loaded == load("D_quant_patched").loaded
    assert load("A_bf16").kv_dtypes == ("bfloat16", "bfloat16")
    assert load("A_bf16").loaded[1].quant is None


def test_the_unpatched_server_is_condemned_and_doomed() -> None:
    log = load("B_quant_unpatched")
    assert log.condemned[0][0] == "shape-mismatch"
    assert "must match" in log.condemned[0][1]
    assert "Scheduler hit an exception" in str(doom(RECORDED / "B_quant_unpatched" / "server.log"))
    assert doom(RECORDED / "D_quant_patched" / "server.log") is None
    assert doom(RECORDED / "no.log") is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("Parameter model.x.weight_packed not found in params_dict", "weight-unknown"),
        ("start (0) + length (2) exceeds dimension size (1)", "shape-mismatch"),
        (
            "Ignore import error when loading sglang.srt.models.qwen3_5_mtp: no",
            "model-import-failed",
        ),
    ],
)
def test_lines_that_condemn(line: str, code: str) -> None:
    assert [found for found, _ in scan([line]).condemned] == [code]


@pytest.mark.parametrize(
    "line",
    [
        "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0.",
        "Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'",
        "'--disable-cuda-graph' is deprecated and will be removed in a future release.",
    ],
)
def test_lines_that_mean_nothing(line: str) -> None:
    assert not scan([line]).condemned and not scan([line]).fatal


def test_what_users_write_once_it_is_ready_condemns_nothing() -> None:
    ready = "The server is fired up and ready to roll!"
    assert not scan([ready, "tensor sizes must match, says a prompt"]).condemned
    assert scan(["tensor sizes must match", ready]).condemned
    assert scan([ready, "Scheduler hit an exception: CUDA error"]).fatal


def test_only_the_last_start_in_a_log_counts() -> None:
    lines = ["server_args=ServerArgs()", "x must match y", "server_args=ServerArgs()", "fine"]
    assert not scan(lines).condemned


def test_kv_scale_lines() -> None:
    log = scan(
        [
            "[2026-11-30] quantgate kv-scales: role=main layer=3 k_scale=0.0398000017 v_scale=0.05",
            "quantgate kv-scales: role=draft layer=0 k_scale=1 v_scale=1",
        ]
    )
    assert [(s.role, s.layer, s.k) for s in log.kv_scales] == [
        ("main", 3, "0.0398000017"),
        ("draft", 0, "1"),
    ]
    assert LoadLog.from_dict(log.as_dict()) == log


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("!" * 40, "single-character"),
        ("The the " + "and so on and so on, " * 20, "repetition"),
        ("\ufffd\ufffd9sw*la\ufffd\u000f\ufffd Bd", "unreadable"),
        ("Это совершенно другой алфавит, которого никто не просил.", "other-script"),
    ],
)
def test_degenerate_text(text: str, kind: str) -> None:
    assert degenerate(text, "What is 2 + 2?") == kind


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "#### 1,000,000",
        "There are 12 * 3 = 36 eggs. He sells 6, so 36 - 6 = 30 are left.\n#### 30",
        "Step 1: add 3. Step 2: add 3. Step 3: add 3. The sum is 9.",
        "ha ha ha, no.",
    ],
)
def test_sound_text(text: str) -> None:
    assert degenerate(text, "What is 2 + 2?") is None


def test_a_question_in_another_script_may_be_answered_in_it() -> None:
    russian = "Это совершенно нормальный ответ на вопрос."
    assert degenerate(russian, "Сколько будет два плюс два, скажите пожалуйста?") is None
