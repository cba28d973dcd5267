"""Requantize: layouts, dtypes, recipes, files and lists; and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.architectures import architecture_of, classify, expected_modules
from tasks.checkpoint.files import CheckpointFiles
from tasks.checkpoint.manifest import take_manifest
from tasks.checkpoint.write import write_shard
from tasks.errors import BadInputError
from tasks.requant.head import DraftSource
from tasks.requant.pack import BF16, amax_of, pack
from tasks.requant.requant import SHARD, requant
from tasks.requant.standalone import requant_folder
from tasks.spec import DraftSpec
from tests import exports

LAST = "model.language_model.layers.3"
LAYER = "mtp.layers.0"
HEURISTIC = DraftSpec()
BARE = DraftSpec(precision="bf16")


def _requant(out: Path, source: Path, export: Path, spec: DraftSpec = HEURISTIC) -> CheckpointFiles:
    requant(source, export, spec, None, out)
    return CheckpointFiles.open(out)


def _bytes(files: CheckpointFiles, prefix: str = "mtp.") -> dict[str, bytes]:
    return {name: files.array(name).tobytes() for name in files.tensors if name.startswith(prefix)}


def _as_per_expert(folder: Path, origin: Path) -> Path:
    """The fused source with its draft head under per-expert names, in an mtp.safetensors."""
    files = CheckpointFiles.open(origin, as_source=True)
    head = DraftSource(files, architecture_of(files.config, "test"))
    shutil.copytree(origin, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = {f"{module}.weight": head.weight(module) for module in head.modules()}
    plan = [(name, "BF16", array.shape) for name, array in names.items()]
    write_shard(folder / "mtp.safetensors", plan, names.items())
    last = max(set(index["weight_map"].values()))
    main = {
        n: a
        for n in files.tensors
        if not n.startswith("mtp.") and files.tensors[n].file == last
        for a in [files.array(n)]
    }
    write_shard(
        folder / last, [(n, files.tensors[n].dtype, a.shape) for n, a in main.items()], main.items()
    )
    weight_map = {n: f for n, f in index["weight_map"].items() if not n.startswith("mtp.")}
    index["weight_map"] = weight_map | dict.fromkeys(names, "mtp.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFiles:
    out = tmp_path_factory.mktemp("made") / "out"
    return _requant(out, exports.source(), exports.exported().path)


def test_the_export_s_shards_are_linked_unchanged(made: CheckpointFiles) -> None:
    export = exports.exported().path
    old, new = export / "model.safetensors", made.root / "model.safetensors"
    assert old.stat().st_ino == new.stat().st_ino
    assert made.shards == (SHARD, "model.safetensors")
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (made.root / name).read_bytes() == (export / name).read_bytes()


def test_the_index_is_made_and_right(made: CheckpointFiles) -> None:
    index = json.loads((made.root / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: info.file for name, info in made.tensors.items()}
    total = sum(info.nbytes for info in made.tensors.values())
    assert index["metadata"]["total_size"] == total


def test_every_module_of_the_head_is_there(made: CheckpointFiles) -> None:
    architecture = architecture_of(made.config, "test")
    for name, item in expected_modules(architecture, made.config, draft=True):
        info = made.tensors[name if item.bare else f"{name}.weight"]
        assert (info.dtype == "U8") == bool(item.quantized_in), name
    assert all(classify(architecture, name) for name in made.tensors)


def test_amax_is_shared_and_bytes_are_the_packer_s(made: CheckpointFiles) -> None:
    files = CheckpointFiles.open(exports.source(), as_source=True)
    head = DraftSource(files, architecture_of(files.config, "test"))
    for group in (
        [f"{LAYER}.self_attn.{leaf}_proj" for leaf in "qkv"],
        [f"{LAYER}.self_attn.o_proj"],
        [f"{LAYER}.mlp.experts.5.gate_proj", f"{LAYER}.mlp.experts.5.up_proj"],
        [f"{LAYER}.mlp.experts.5.down_proj"],
        [f"{LAYER}.mlp.shared_expert.gate_proj", f"{LAYER}.mlp.shared_expert.up_proj"],
    ):
        weights = [head.weight(name) for name in group]
        amax = amax_of(weights, "group")
        for name, weight in zip(group, weights, strict=True):
            packed = pack(weight, amax)
            assert made.array(f"{name}.weight").tobytes() == packed.weight.tobytes()
            assert made.array(f"{name}.weight_scale").tobytes() == packed.weight_scale.tobytes()
            assert made.array(f"{name}.weight_scale_2").tobytes() == packed.weight_scale_2.tobytes()


def test_scales_are_borrowed_byte_for_byte(made: CheckpointFiles) -> None:
    for leaf in (
        "self_attn.k_proj.k_scale",
        "self_attn.v_proj.v_scale",
        "mlp.experts.7.up_proj.input_scale",
    ):
        assert made.array(f"{LAYER}.{leaf}").tobytes() == made.array(f"{LAST}.{leaf}").tobytes()
    assert float(made.array(f"{LAYER}.self_attn.k_proj.k_scale")) != 1.0


def test_the_record_tells_how(tmp_path: Path) -> None:
    record = requant(exports.source(), exports.exported(), HEURISTIC, None, tmp_path / "out")
    assert (record.precision, record.scales, record.layout) == (
        "nvfp4",
        "heuristic",
        "qwen3.6-fused",
    )
    assert record.borrowed_from == f"{LAST}.self_attn" and record.quantized_modules == 31
    files = CheckpointFiles.open(tmp_path / "out")
    assert record.k_scale == float(files.array(f"{LAST}.self_attn.k_proj.k_scale"))
    assert record.rule and "k_scale" in record.rule and record.calibration is None


def test_the_same_inputs_give_the_same_bytes(made: CheckpointFiles, tmp_path: Path) -> None:
    again = _requant(tmp_path / "out", exports.source(), exports.exported().path)
    assert take_manifest(again.root).digest == take_manifest(made.root).digest


def test_layouts_of_the_same_weights_give_the_same_head(
    made: CheckpointFiles, tmp_path: Path
) -> None:
    source = _as_per_expert(tmp_path / "source", exports.source())
    record = requant(source, exports.exported().path, HEURISTIC, None, tmp_path / "out")
    assert record.layout == "qwen3.5-per-expert"
    assert _bytes(CheckpointFiles.open(tmp_path / "out")) == _bytes(made)


def test_a_head_that_the_index_does_not_list(made: CheckpointFiles, tmp_path: Path) -> None:
    source = _as_per_expert(tmp_path / "source", exports.source())
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    sizes = CheckpointFiles.open(source, as_source=True).tensors
    index["weight_map"] = {n: f for n, f in index["weight_map"].items() if "mtp" not in n}
    index["metadata"]["total_size"] = sum(sizes[name].nbytes for name in index["weight_map"])
    path.write_text(json.dumps(index))
    again = _requant(tmp_path / "out", source, exports.exported().path)
    assert _bytes(again) == _bytes(made)


@pytest.mark.parametrize("layout", ["fused", "per-expert"])
def test_block_fp8_is_dequantized_first(layout: Any, tmp_path: Path) -> None:
    source = exports.source(layout, mtp_dtype="fp8", mtp="apart", shards=1)
    files = CheckpointFiles.open(source, as_source=True)
    head = DraftSource(files, architecture_of(files.config, "test"))
    plain = CheckpointFiles.open(exports.source(layout), as_source=True)
    original = DraftSource(plain, head.architecture)
    for name in (f"{LAYER}.mlp.experts.3.up_proj", f"{LAYER}.self_attn.q_proj"):
        ours, wanted = (h.weight(name).astype(np.float32) for h in (head, original))
        error = np.abs(ours - wanted).max() / np.abs(wanted).max()
        assert 0 < error < 0.04, name  # half a step of three mantissa bits
    q_proj = f"{LAYER}.self_attn.q_proj.weight"
    value = files.array(q_proj)[130, 200].astype(np.float32)
    value *= files.array(f"{q_proj}_scale_inv")[1, 1]
    assert head.weight(q_proj.removesuffix(".weight"))[130, 200] == BF16.type(value)
    made = _requant(tmp_path / "out", source, exports.exported().path)
    packed = pack(
        head.weight(f"{LAYER}.self_attn.o_proj"),
        amax_of([head.weight(f"{LAYER}.self_attn.o_proj")], "o"),
    )
    assert made.array(f"{LAYER}.self_attn.o_proj.weight").tobytes() == packed.weight.tobytes()
    assert not any("scale_inv" in name for name in made.tensors)


@pytest.mark.parametrize(
    ("layout", "qformat", "kv_cache"),
    [
        ("fused", "nvfp4_mlp_only", "fp8"),
        ("fused", "nvfp4_experts_only", "none"),
        ("dense", "nvfp4", "fp8"),
    ],
)
def test_the_head_mirrors_the_last_full_attention_layer(
    layout: Any, qformat: str, kv_cache: str, tmp_path: Path
) -> None:
    export = exports.exported(layout, qformat, kv_cache).path
    made = _requant(tmp_path / "out", exports.source(layout), export)
    seen = set()
    for name, info in made.tensors.items():
        if name.startswith(f"{LAYER}."):
            twin = made.tensors[name.replace(LAYER, LAST)]
            assert info.dtype == twin.dtype and info.shape == twin.shape, name
            seen.add(info.dtype)
    mine = {name for name in made.tensors if name.startswith(f"{LAYER}.")}
    theirs = {n.replace(LAST, LAYER) for n in made.tensors if n.startswith(f"{LAST}.")}
    assert mine == theirs and {"U8", "BF16"} <= seen
    assert made.tensors["mtp.fc.weight"].dtype == "BF16"


def _lists(files: CheckpointFiles) -> tuple[list[str], list[str]]:
    quant = files.quant_config["quantization"]["exclude_modules"]  # type: ignore[index]
    return quant, files.config["quantization_config"]["ignore"]


def test_both_lists_tell_the_same_of_the_head(made: CheckpointFiles) -> None:
    first, second = _lists(made)
    assert first == second and "mtp.fc" in first and f"{LAYER}.mlp.gate" in first
    assert not any(entry.startswith("mtp") and "*" in entry for entry in first)
    before, _ = _lists(CheckpointFiles.open(exports.exported().path))
    assert [entry for entry in first if not entry.startswith("mtp")] == before


def test_a_blanket_entry_of_the_export_goes(tmp_path: Path) -> None:
    export = Path(shutil.copytree(exports.exported().path, tmp_path / "export"))
    for name, outer, inner in (
        ("hf_quant_config.json", "quantization", "exclude_modules"),
        ("config.json", "quantization_config", "ignore"),
    ):
        tree = json.loads((export / name).read_text())
        tree[outer][inner] += ["mtp*", "mtp.layers.0*"]
        (export / name).write_text(json.dumps(tree))
    for entries in _lists(_requant(tmp_path / "out", exports.source(), export)):
        assert "mtp*" not in entries and "mtp.layers.0*" not in entries


@pytest.mark.parametrize("layout", ["fused", "dense"])
def test_bf16_is_carried_through_and_excluded(layout: Any, tmp_path: Path) -> None:
    export = exports.exported(layout, "nvfp4", "fp8").path
    source = exports.source(layout)
    record = requant(source, export, BARE, None, tmp_path / "out")
    made = CheckpointFiles.open(tmp_path / "out")
    assert _bytes(made) == _bytes(CheckpointFiles.open(source, as_source=True))
    assert record.precision == "bf16" and record.scales == "none" and record.k_scale is None
    first, second = _lists(made)
    assert first == second and "mtp.fc" in first and f"{LAYER}.self_attn*" in first
    assert (f"{LAYER}.mlp.experts*" in first) == (layout == "fused")


def test_bf16_of_an_fp8_source_is_dequantized(tmp_path: Path) -> None:
    source = exports.source("fused", mtp_dtype="fp8", mtp="apart", shards=1)
    made = _requant(tmp_path / "out", source, exports.exported().path, BARE)
    assert {i.dtype for n, i in made.tensors.items() if n.startswith("mtp.")} == {"BF16"}


def _refused(code: str, *arguments: Any) -> str:
    with pytest.raises(BadInputError) as error:
        requant(*arguments)
    assert error.value.code == code and "\n" not in str(error.value)
    return str(error.value)


def test_what_does_not_fit_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    export, out = exports.exported().path, tmp_path / "out"
    _refused("draft-missing", exports.source(mtp="none"), export, HEURISTIC, None, out)
    _refused("source-mismatch", exports.source("dense"), export, HEURISTIC, None, out)
    _refused("not-nvfp4", exports.source(), exports.source(), HEURISTIC, None, out)
    _refused(
        "calibration-missing", exports.source(), export, DraftSpec(scales="calibrated"), None, out
    )
    other = exports.source(num_experts=4)
    _refused("source-mismatch", other, export, HEURISTIC, None, out)
    assert not out.exists()


def test_an_export_with_a_head_is_refused(made: CheckpointFiles, tmp_path: Path) -> None:
    _refused("draft-present", exports.source(), made.root, HEURISTIC, None, tmp_path / "out")


def test_an_export_that_lost_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    export = Path(shutil.copytree(exports.exported().path, tmp_path / "export"))
    tensors = load_file(export / "model.safetensors")
    del tensors[f"{LAST}.mlp.experts.2.up_proj.weight"]
    save_file(tensors, export / "model.safetensors")
    text = _refused(
        "quantized-incomplete", exports.source(), export, HEURISTIC, None, tmp_path / "out"
    )
    assert "experts.2.up_proj" in text


def test_unknown_layout_is_refused_by_name(tmp_path: Path) -> None:
    source = _as_per_expert(tmp_path / "source", exports.source())
    files = CheckpointFiles.open(source, as_source=True)
    head = {n: files.array(n) for n in files.tensors if n.startswith("mtp.")}
    head["mtp.eh_proj.weight"] = head.pop("mtp.fc.weight")
    plan = [(n, "BF16", a.shape) for n, a in head.items()]
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {n: i.file for n, i in files.tensors.items() if "mtp" not in n}})
    )
    write_shard(source / "mtp.safetensors", plan, head.items())
    text = _refused(
        "draft-layout", source, exports.exported().path, HEURISTIC, None, tmp_path / "out"
    )
    assert "mtp.eh_proj.weight" in text or "mtp.fc.weight" in text


def test_out_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    export = exports.exported().path
    _refused("out-not-empty", exports.source(), export, HEURISTIC, None, tmp_path)
    with pytest.raises(BadInputError):
        requant_folder(exports.source(), export, tmp_path)


def test_standalone_leaves_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, export = tmp_path / "new" / "out", exports.exported().path
    record = requant_folder(exports.source(), export, out)
    assert record.precision == "nvfp4" and CheckpointFiles.open(out).shards
    assert [path.name for path in out.parent.iterdir()] == ["out"]

    def die(*_: Any) -> None:
        raise OSError("disk")

    monkeypatch.setattr("tasks.requant.requant.write_index", die)
    with pytest.raises(OSError, match="disk"):
        requant_folder(exports.source(), export, tmp_path / "late")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    with pytest.raises(BadInputError) as error:
        requant_folder(exports.source(), export, tmp_path / "late", scales="guessed")
    assert "--scales guessed" in str(error.value)
