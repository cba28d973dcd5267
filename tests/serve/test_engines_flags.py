from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.errors import BadInputError
from tasks.serve.flags import engine_command, parse_version, says_nvfp4, translate
from tasks.spec import ServeSpec, SpeculationSpec

OLD = (
    "--mamba-scheduler-strategy",
    "extra_buffer",
    "--cuda-graph-max-bs=8",
    "--disable-piecewise-cuda-graph",
    "--fp4-gemm-backend",
    "flashinfer_cutlass",
)


def test_flags_keep_their_words_up_to_the_version_that_changed_them() -> None:
    assert translate(OLD, "0.5.15.post1") == OLD
    assert translate(OLD, "0.5.19") == OLD
    assert translate(OLD, None) == OLD


def test_flags_are_translated_for_newer_versions() -> None:
    assert translate(OLD, "0.5.20")[:3] == (
        "--mamba-radix-cache-strategy",
        "extra_buffer",
        "--cuda-graph-max-bs=8",
    )
    assert translate(OLD, "0.5.23") == (
        "--mamba-radix-cache-strategy",
        "extra_buffer",
        "--cuda-graph-max-bs-decode",
        "8",
        "--cuda-graph-backend-prefill",
        "disabled",
        "--fp4-gemm-backend",
        "flashinfer_cutlass",
    )


def test_a_renamed_flag_without_its_value() -> None:
    with pytest.raises(BadInputError, match="stands without its value"):
        translate(("--cuda-graph-max-bs",), "0.5.23")


def test_sglang_command() -> None:
    spec = ServeSpec(engine="sglang", model_name="tiny", flags=OLD)
    command = engine_command(
        spec, python="py", checkpoint="/m", port=5, version="0.5.23", nvfp4=True
    )
    assert command[:3] == ("py", "-m", "sglang.launch_server")
    text = " ".join(command)
    assert "--model-path /m --host 127.0.0.1 --port 5 --served-model-name tiny" in text
    assert "--quantization modelopt_fp4" in text
    assert (
        "--speculative-algorithm NEXTN --speculative-num-steps 2 --speculative-eagle-topk 1"
        " --speculative-num-draft-tokens 3" in text
    )
    assert "--cuda-graph-max-bs-decode 8" in text


def test_a_flag_of_the_spec_replaces_the_default() -> None:
    spec = ServeSpec(flags=("--context-length=64", "--quantization", "w8a8"))
    command = engine_command(spec, python="py", checkpoint="/m", port=5, nvfp4=True)
    assert "--context-length" not in command and "--context-length=64" in command
    assert command.count("--quantization") == 1 and "modelopt_fp4" not in command


def test_no_speculation() -> None:
    off = SpeculationSpec(algorithm="none")
    for engine, word in (("sglang", "--speculative-algorithm"), ("vllm", "--speculative-config")):
        spec = ServeSpec.model_validate({"engine": engine, "speculation": off})
        assert word not in engine_command(spec, python="py", checkpoint="/m", port=5)
    spec = ServeSpec(engine="reference", speculation=off)
    command = engine_command(spec, python="py", checkpoint="/m", port=5)
    assert "--no-speculation" in command and "--num-steps" not in command


def test_reference_command() -> None:
    spec = ServeSpec(engine="reference", model_name="tiny", context_length=512)
    assert engine_command(spec, python="py", checkpoint="/m", port=5) == (
        *("py", "-m", "tasks.serve.reference", "--checkpoint", "/m", "--port", "5"),
        *("--served-model-name", "tiny", "--context-length", "512", "--num-steps", "2"),
    )


def test_vllm_command_has_the_draft_as_json() -> None:
    command = engine_command(ServeSpec(engine="vllm"), python="py", checkpoint="/m", port=5)
    config = json.loads(command[command.index("--speculative-config") + 1])
    assert config == {"method": "mtp", "num_speculative_tokens": 2}


@pytest.mark.parametrize("flag", ["--port", "--host=0.0.0.0", "--model-path"])
def test_what_this_program_sets_may_not_be_set_again(flag: str) -> None:
    with pytest.raises(BadInputError, match="is set by this program"):
        engine_command(ServeSpec(flags=(flag,)), python="py", checkpoint="/m", port=5)


def test_versions_and_formats(tmp_path: Path) -> None:
    assert parse_version("0.5.15.post1") == (0, 5, 15)
    assert parse_version("unknown") is None and parse_version(None) is None
    assert not says_nvfp4(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert says_nvfp4(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text("[")
    assert not says_nvfp4(tmp_path)
