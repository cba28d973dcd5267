"""The patches against the real sources of every SGLang version that they know."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.image.patches import runner
from tasks.image.patching import has_drifted, patches
from tasks.serve.flags import RENAMES, engine_command, parse_version
from tasks.spec import ServeSpec
from tests.image import isolated, wheels

pytestmark = pytest.mark.network

OLD = ("0.5.15.post1", "0.5.16")
DOCS = Path(__file__).parents[2] / "docs" / "patches.md"
QUANTIZED = ["lm_head", "mtp.fc", "mtp.norm", "mtp.layers.0.mlp.gate", "model.visual*"]
QUANTIZED += ["mtp.layers.0.mlp.shared_expert_gate", "mtp.layers.0.input_layernorm"]
BF16 = (
    ["mtp*"],
    ["mtp.layers.0*", "mtp.fc"],
    ["mtp.layers.0.mlp.experts"],
    ["mtp.layers.0.mlp.experts*"],
    ["mtp.layers.0.mlp.experts.0.gate_proj", "mtp.layers.0.mlp.experts.1.gate_proj"],
)
LOADERS = (
    ("qwen3_5.py", "Qwen3_5ForCausalLM"),
    ("qwen3_5.py", "Qwen3_5MoeForCausalLM"),
    ("qwen3_5.py", "Qwen3_5ForConditionalGeneration"),
    ("qwen3_5.py", "Qwen3_5MoeForConditionalGeneration"),
    ("qwen3_5_mtp.py", "Qwen3_5ForCausalLMMTP"),
)


def expected(version: str) -> dict[str, str]:
    """The row of docs/patches.md: states before anything is applied."""
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in DOCS.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    names = next(row for row in rows if row[0] == "SGLang")
    (found,) = [row for row in rows if row[0] == version]
    return dict(zip(names[1:], found[1:], strict=True))


SITES = {
    "attention-quant": 2,
    "kv-scales": 5,
    "mtp-quant": 1,
    "mtp-kv-scales": 1,
    "fp4-archs": 2,
    "log-kv-scales": 2,
}


@pytest.fixture(scope="session", params=wheels.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def stock(version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return wheels.site_packages(version, tmp_path_factory.mktemp(f"stock-{version}"))
    except wheels.UnreachableError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"SGLang {version} is not to be had here: {error}")


@pytest.fixture(scope="session")
def patched(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("patched") / "site-packages"
    shutil.copytree(stock, root)
    report = patches(root)
    assert not has_drifted(report), report
    assert "needed" not in states(report).values()
    return root


@pytest.fixture
def copy(stock: Path, tmp_path: Path) -> Path:
    root = tmp_path / "site-packages"
    shutil.copytree(stock, root)
    return root


def states(report: dict[str, Any]) -> dict[str, str]:
    return {patch["name"]: patch["state"] for patch in report["patches"]}


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


TABLE: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def printed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints the matrix once all versions were seen."""
    yield
    if not TABLE:
        return
    manager = request.config.pluginmanager.getplugin("capturemanager")
    names = list(SITES)
    with manager.global_and_fixture_disabled():
        print("\n\nSGLang       " + "".join(f"{name:>16}" for name in names))
        for version, found in TABLE.items():
            print(f"{version:13}" + "".join(f"{found[name]:>16}" for name in names))


def test_states_and_what_is_applied(version: str, stock: Path, patched: Path) -> None:
    before = digests(stock)
    report = patches(stock, check=True)
    assert report["sglang_version"] == version
    assert states(report) == expected(version)
    assert digests(stock) == before  # a check writes nothing
    TABLE[version] = states(report)
    for patch in report["patches"]:
        if patch["state"] == "needed":
            assert patch["sites"] == SITES[patch["name"]], patch
    once = digests(patched)
    changed = {name for name, digest in once.items() if before[name] != digest}
    assert changed == set(_targets(version))
    for name in changed:
        compile((patched / name).read_bytes(), name, "exec", dont_inherit=True)
    again = patches(patched)
    assert states(again) == {
        name: "applied" if state == "needed" else state for name, state in expected(version).items()
    }
    assert digests(patched) == once  # twice gives the same bytes


def _targets(version: str) -> Iterator[str]:
    states = expected(version)
    if states["kv-scales"] == "needed":
        yield "sglang/srt/models/qwen3_5.py"
    yield "sglang/srt/models/qwen3_5_mtp.py"
    yield "sglang/srt/layers/quantization/kv_cache.py"
    yield "sglang/srt/layers/radix_attention.py"
    if states["fp4-archs"] == "needed":
        rest = "cutlass/cute/nvgpu/tcgen05/mma.py"
        yield f"nvidia_cutlass_dsl/python_packages/{rest}"
        yield f"flashinfer/data/cutlass/python/CuTeDSL/{rest}"


DRIFTS = (
    ("sglang/srt/models/qwen3_5_mtp.py", "modelopt_fp4", "modelopt_fp5", "mtp-quant"),
    ("sglang/srt/models/qwen3_5_mtp.py", "for name, loaded_weight in weights", "for a, b in other",
     "mtp-kv-scales"),
    ("sglang/srt/models/qwen3_5.py", "RadixAttention(", "OtherAttention(", "kv-scales"),
    ("sglang/srt/models/qwen3_5.py", "Qwen3_5GatedDeltaNet", "Renamed", "attention-quant"),
    ("sglang/srt/layers/quantization/kv_cache.py", "v_scale_float", "value_scale", "log-kv-scales"),
    ("sglang/srt/layers/radix_attention.py", "prefix", "name", "log-kv-scales"),
    ("sglang/srt/models/qwen3_5.py", "import", "import (", "attention-quant"),
)  # fmt: skip


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.23"], indirect=True)
def test_a_drifted_source_is_refused_and_nothing_is_touched(copy: Path) -> None:
    for file, old, new, name in DRIFTS:
        path = copy / file
        kept = path.read_bytes()
        text = kept.decode().replace(old, new, 1 if old == "import" else -1)
        assert text.encode() != kept
        path.write_text(text)
        before = digests(copy)
        report = patches(copy)
        assert states(report)[name] == "drifted", (file, new, report)
        assert "applied" not in states(report).values()
        assert digests(copy) == before, (file, new)
        path.write_bytes(kept)
    assert not has_drifted(patches(copy, check=True))


def test_the_draft_is_quantized_as_the_checkpoint_says(stock: Path, patched: Path) -> None:
    quantized = isolated.nvfp4_config(patched, QUANTIZED)
    assert isolated.mtp_choice(patched, quantized) is quantized
    assert isolated.mtp_choice(stock, quantized) is None  # what the patch is for
    for exclude in BF16:
        config = isolated.nvfp4_config(patched, [*QUANTIZED, *exclude])
        assert isolated.mtp_choice(patched, config) is None, exclude
        assert isolated.mtp_choice(stock, config) is None
    other = SimpleNamespace(get_name=lambda: "fp8")
    assert isolated.mtp_choice(patched, other) is other
    mixed = SimpleNamespace(get_name=lambda: "modelopt_mixed", quantized_layers=[])
    assert isolated.mtp_choice(patched, mixed) is None
    assert isolated.mtp_choice(patched, None) is None


def test_attention_is_quantized_as_the_checkpoint_says(
    version: str, stock: Path, patched: Path
) -> None:
    config = isolated.nvfp4_config(patched, QUANTIZED)
    assert isolated.attention_choices(patched, config) == [config, config]
    assert isolated.attention_choices(patched, None) == [None, None]
    before = [None, None] if version in OLD else [config, config]
    assert isolated.attention_choices(stock, config) == before


@pytest.mark.parametrize(("file", "owner"), LOADERS)
def test_kv_scales_reach_the_attention(
    version: str, stock: Path, patched: Path, file: str, owner: str
) -> None:
    draft = file == "qwen3_5_mtp.py"
    layer = "model.layers.0" if draft else "model.layers.3"
    prefix = "mtp.layers.0" if draft else "model.language_model.layers.3"
    weights = [
        (f"{prefix}.self_attn.k_proj.weight", "K"),
        (f"{prefix}.self_attn.k_proj.k_scale", 0.25),
        (f"{prefix}.self_attn.v_proj.v_scale", 0.5),
        ("mtp.layers.0.other.weight" if not draft else "model.layers.3.other.weight", "other"),
    ]
    names = [f"{layer}.attn.k_scale", f"{layer}.attn.v_scale", f"{layer}.qkv_proj.weight"]
    got = isolated.loaded(patched, file, owner, names, weights)
    assert got[names[2]] == "K"
    if names[0] in got:
        assert (got[names[0]], got[names[1]]) == (0.25, 0.5)
    else:
        pytest.fail(f"{version}: {owner} loaded {sorted(got)}")
    without = isolated.loaded(patched, file, owner, names, weights[:1])
    assert set(without) == {names[2]}  # a checkpoint without scales loads none
    unpatched = isolated.loaded(stock, file, owner, names, weights)
    state = expected(version)["mtp-kv-scales" if draft else "kv-scales"]
    assert (names[0] in unpatched) == (state == "upstream")


def test_loaded_scales_are_printed(patched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    tree = isolated.tree_of(patched, "sglang/srt/layers/quantization/kv_cache.py")
    done = isolated.method(tree, "BaseKVCacheMethod", "process_weights_after_loading")
    scope = isolated.run([*isolated.helpers(tree), done], is_fp8_fnuz=lambda: False)
    radix = isolated.tree_of(patched, "sglang/srt/layers/radix_attention.py")
    init = isolated.method(radix, "RadixAttention", "__init__")
    base = SimpleNamespace(__init__=lambda: None)
    build = isolated.run([init], super=lambda: base)["__init__"]
    for prefix, layer_id, k_scale, v_scale in (
        ("model.language_model.layers.3.self_attn.attn", 3, 0.0398, 0.0512),
        ("mtp.layers.0.self_attn.attn", 0, -1.0, -1.0),
    ):
        layer = SimpleNamespace()
        build(layer, 4, 64, 1.0, 2, layer_id, prefix=prefix)
        layer.k_scale, layer.v_scale = torch.tensor(k_scale), torch.tensor(v_scale)
        scope["process_weights_after_loading"](None, layer)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "quantgate kv-scales: role=main layer=3 k_scale=0.0397999994 v_scale=0.0511999987",
        "quantgate kv-scales: role=draft layer=0 k_scale=1 v_scale=1",
    ]


def test_archs_are_admitted_where_the_author_needs_them(version: str, patched: Path) -> None:
    reports = {patch["name"]: patch for patch in patches(patched, check=True)["patches"]}
    found = reports["fp4-archs"]
    if version != "0.5.15.post1":
        assert "warp instruction already admits sm_121a" in found["reason"]
        return
    for path in patched.rglob("tcgen05/mma.py"):
        body = re.findall(
            r"class BlockScaledMmaOp.*?admissible_archs = \[(.*?)\]", path.read_text(), re.S
        )
        assert len(body) == 1
        assert re.findall(r"sm_\d+\w", body[0]) == ["sm_100a", "sm_103a", "sm_120a", "sm_121a"]


@pytest.mark.parametrize("version", ["0.5.15.post1"], indirect=True)
def test_without_the_dsl_it_is_not_applicable_but_no_image(copy: Path) -> None:
    shutil.rmtree(copy / "nvidia_cutlass_dsl")
    report = patches(copy, check=True)
    found = {patch["name"]: patch for patch in report["patches"]}["fp4-archs"]
    assert found["state"] == "not-applicable"
    assert "not installed" in found["reason"]
    before = digests(copy)
    assert runner.main(["--sglang", str(copy), "--image"]) == 3
    assert digests(copy) == before
    assert runner.main(["--sglang", str(copy)]) == 0


def test_every_flag_that_is_set_exists_in_that_version(version: str, stock: Path) -> None:
    files = [
        stock / "sglang/srt/server_args.py",
        *(stock / "sglang/srt").glob("arg_groups/**/*.py"),
    ]
    text = "\n".join(path.read_text() for path in files)
    flags = ("--mamba-scheduler-strategy", "x", "--cuda-graph-max-bs", "8")
    flags += ("--disable-piecewise-cuda-graph", "--fp4-gemm-backend", "flashinfer_cutlass")
    flags += ("--moe-runner-backend", "flashinfer_cutlass", "--kv-cache-dtype", "fp8_e4m3")
    command = engine_command(
        ServeSpec(flags=flags), python="py", checkpoint="/m", port=1, version=version, nvfp4=True
    )
    assert len(command) > 20
    for word in command:
        if word.startswith("--"):
            field = word[2:].replace("-", "_")
            assert f'"{word}"' in text or re.search(rf"^ +{field}: ", text, re.M), (version, word)
    for rename in RENAMES:
        number = parse_version(version)
        assert number is not None
        if number >= (0, 5, 21):
            assert f'"{rename.old}"' not in text, (version, rename.old)
