"""Everything that can be wrong with a source is one line, exit 2, in a second, without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import BadInputError
from tasks.quantize import sizes
from tasks.quantize.preflight import check_source
from tasks.spec import ReleaseSpec, parse_spec
from tests import exports


def _spec(tmp_path: Path, **parts: Any) -> ReleaseSpec:
    tree: dict[str, Any] = {
        "name": "tiny",
        "source": {"at": "folder", "path": str(tmp_path)},
        "quantize": {"calibration": {"file": str(exports.calibration())}},
        "publish": {"repo": "someone/tiny"},
    }
    for name, part in parts.items():
        tree[name] = tree.get(name, {}) | part
    return parse_spec(tree, "test")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(exports.source(), tmp_path / "model"))


def _edit(path: Path, **changes: Any) -> None:
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(tree | changes))


def _refused(spec: ReleaseSpec, model: Path, out: Path | None = None) -> BadInputError:
    with pytest.raises(BadInputError) as error:
        check_source(spec, model, out)
    assert "\n" not in str(error.value) and error.value.remedy and error.value.exit_code == 2
    return error.value


def test_a_good_source_passes_in_a_second(tmp_path: Path, model: Path) -> None:
    started = time.perf_counter()
    check_source(_spec(tmp_path), model, tmp_path / "not" / "there" / "yet")
    assert time.perf_counter() - started < 1


def test_no_torch_is_imported(tmp_path: Path, model: Path) -> None:
    code = (
        "import sys, tasks.quantize.preflight, tasks.requant.requant, tasks.requant.standalone\n"
        "assert not {'torch', 'transformers', 'modelopt', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_architecture_is_named(tmp_path: Path, model: Path) -> None:
    _edit(model / "config.json", architectures=["LlamaForCausalLM"])
    error = _refused(_spec(tmp_path), model)
    assert error.code == "architecture-unsupported" and "LlamaForCausalLM" in str(error)


def test_missing_config(tmp_path: Path, model: Path) -> None:
    (model / "config.json").unlink()
    assert _refused(_spec(tmp_path), model).code == "config-missing"


def test_missing_folder(tmp_path: Path) -> None:
    assert _refused(_spec(tmp_path), tmp_path / "none").code == "not-a-folder"


@pytest.mark.parametrize("precision", ["nvfp4", "bf16"])
def test_no_draft_head_though_asked_for(tmp_path: Path, precision: str) -> None:
    bare = exports.source(mtp="none")
    error = _refused(_spec(tmp_path, draft={"precision": precision}), bare)
    assert error.code == "draft-missing" and "mtp" in str(error)


def test_no_draft_head_is_fine_when_none_is_asked_for(tmp_path: Path) -> None:
    spec = _spec(
        tmp_path,
        draft={"precision": "none"},
        serve={"speculation": {"algorithm": "none"}},
        gates={"acceptance": None},
    )
    check_source(spec, exports.source(mtp="none"))


def test_missing_shard(tmp_path: Path, model: Path) -> None:
    next(model.glob("model-00001*.safetensors")).unlink()
    assert _refused(_spec(tmp_path), model).code == "shard-missing"


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "a/../x.safetensors"])
def test_shard_names_that_lead_out(tmp_path: Path, model: Path, name: str) -> None:
    index = model / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    weight_map["lm_head.weight"] = name
    _edit(index, weight_map=weight_map)
    assert _refused(_spec(tmp_path), model).code == "shard-name"


def test_truncated_shard(tmp_path: Path, model: Path) -> None:
    shard = next(model.glob("model-00002*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-10])
    assert _refused(_spec(tmp_path), model).code == "shard-truncated"


def test_no_space(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, needed = _spec(tmp_path), []
    monkeypatch.setattr(sizes, "require_space", lambda folder, size: needed.append(size))
    monkeypatch.setattr("tasks.quantize.preflight.require_space", sizes.require_space)
    check_source(spec, model, tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(sizes, "free_bytes", lambda folder: needed[0] - 1)
    error = _refused(spec, model, tmp_path)
    assert error.code == "no-space" and "GiB" in str(error)
    monkeypatch.setattr(sizes, "free_bytes", lambda folder: needed[0])
    check_source(spec, model, tmp_path)


def test_a_quantized_source_is_refused(tmp_path: Path, model: Path) -> None:
    _edit(model / "config.json", quantization_config={"quant_method": "fp8"})
    assert _refused(_spec(tmp_path), model).code == "source-quantized"


def test_a_source_that_lacks_a_layer(tmp_path: Path, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    text = config["text_config"]
    text["num_hidden_layers"], text["layer_types"] = 5, [*text["layer_types"], "linear_attention"]
    (model / "config.json").write_text(json.dumps(config))
    error = _refused(_spec(tmp_path), model)
    assert error.code == "source-incomplete" and "layers.4" in str(error)


def test_calibration_file(tmp_path: Path, model: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    spec = _spec(tmp_path, quantize={"calibration": {"file": str(empty)}})
    assert _refused(spec, model).code == "calibration-empty"


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("*layers.9.self_attn*", "exclude-unmatched"),
        ("*lm_head*", "exclude-unmatched"),
        ("*layers.3.self_attn.q_proj", "exclude-splits"),
        ("*layers.0.mlp.experts.3.*", "exclude-splits"),
        ("*layers.0.mlp.shared_expert.up_proj", "exclude-splits"),
    ],
)
def test_excludes_that_cannot_be_served(
    tmp_path: Path, model: Path, pattern: str, code: str
) -> None:
    spec = _spec(tmp_path, quantize={"exclude": [pattern]})
    error = _refused(spec, model)
    assert error.code == code and "quantize.exclude" in str(error)


def test_excludes_that_can(tmp_path: Path, model: Path) -> None:
    good = ["*layers.3.self_attn.*", "*layers.0.mlp.experts.*", "*linear_attn.out_proj"]
    check_source(_spec(tmp_path, quantize={"exclude": good}), model)


@pytest.mark.parametrize("qformat", ["nvfp4", "nvfp4_mlp_only", "nvfp4_experts_only"])
def test_the_estimate_is_near_the_real_size(tmp_path: Path, qformat: str) -> None:
    from tasks.architectures import architecture_of
    from tasks.checkpoint.files import CheckpointFiles
    from tasks.spec import DraftSpec

    files = CheckpointFiles.open(exports.source(), as_source=True)
    architecture = architecture_of(files.config, "test")
    guess = sizes.estimate_bytes(files, architecture, qformat, DraftSpec(precision="none"))  # type: ignore[arg-type]
    export = CheckpointFiles.open(exports.exported(qformat=qformat).path)
    real = sum(info.nbytes for info in export.tensors.values())
    assert real <= guess <= 1.1 * real
