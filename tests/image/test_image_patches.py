from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.errors import BadInputError
from tasks.image.patches import PATCHES_FOLDER, runner
from tasks.image.patches.source import Edit, Source, Workspace, edited
from tasks.image.patching import has_drifted, patches
from tests.image import tiny_sglang

NAMES = [
    "attention-quant",
    "kv-scales",
    "mtp-quant",
    "mtp-kv-scales",
    "fp4-archs",
    "log-kv-scales",
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tiny_sglang.write(tmp_path / "site-packages")


def states(root: Path, check: bool = True) -> dict[str, str]:
    return {patch["name"]: patch["state"] for patch in patches(root, check)["patches"]}


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_report_is_the_contract(site: Path) -> None:
    report = patches(site, check=True)
    assert list(report) == ["sglang_version", "patches"]
    assert report["sglang_version"] == "0.0.1"
    assert [patch["name"] for patch in report["patches"]] == NAMES
    assert {tuple(patch) for patch in report["patches"]} == {("name", "state", "reason", "sites")}
    assert [patch["sites"] for patch in report["patches"]] == [2, 5, 1, 1, 2, 2]
    json.dumps(report)


def test_check_applies_nothing_and_apply_does_it_once(site: Path) -> None:
    before = contents(site)
    assert set(states(site).values()) == {"needed"}
    assert contents(site) == before
    assert set(states(site, check=False).values()) == {"applied"}
    once = contents(site)
    assert len([path for path in once if once[path] != before[path]]) == 6
    assert set(states(site, check=False).values()) == {"applied"}
    assert contents(site) == once
    text = (
        site / "flashinfer/data/cutlass/python/CuTeDSL/cutlass/cute/nvgpu/tcgen05/mma.py"
    ).read_text()
    assert "        base_dsl.Arch.sm_100a,\n        base_dsl.Arch.sm_120a,\n" in text
    assert "# für alle" in (site / "sglang/srt/models/qwen3_5.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(4))
def test_half_a_patch_is_no_patch(site: Path, number: int) -> None:
    """A tree in which one of several sites went back is not `applied`."""
    patches(site)
    path = site / "sglang/srt/models/qwen3_5.py"
    parts = path.read_text().split("        weights = _quantgate_kv_scales(weights)\n")
    assert len(parts) == 5
    parts[number] += "".join(parts[number + 1 : number + 2])
    del parts[number + 1]
    path.write_text("        weights = _quantgate_kv_scales(weights)\n".join(parts))
    report = {patch["name"]: patch for patch in patches(site, check=True)["patches"]}
    assert (report["kv-scales"]["state"], report["kv-scales"]["sites"]) == ("needed", 1)
    assert states(site, check=False)["kv-scales"] == "applied"
    assert path.read_text().count("def _quantgate_kv_scales") == 1


def test_one_drift_leaves_every_file_alone(site: Path) -> None:
    path = site / "sglang/srt/layers/radix_attention.py"
    path.write_text(path.read_text().replace("super().__init__()", "pass"))
    before = contents(site)
    found = states(site, check=False)
    assert found.pop("log-kv-scales") == "drifted"
    assert set(found.values()) == {"needed"}
    assert contents(site) == before


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("for name, weight in weights", "for name, weight in sorted(weights)", "kv-scales"),
        ("self.attn = RadixAttention", "self.attn = Elsewhere", "kv-scales"),
        ('"modelopt_fp4" else quant_config', '"modelopt_fp8" else quant_config', "attention-quant"),
        ("def load_weights", "def load", "kv-scales"),
    ],
)
def test_what_is_not_known_is_drift(site: Path, old: str, new: str, name: str) -> None:
    path = site / "sglang/srt/models/qwen3_5.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert states(site)[name] == "drifted"


def test_a_comment_does_not_count_as_applied(site: Path) -> None:
    path = site / "sglang/srt/models/qwen3_5_mtp.py"
    path.write_text(
        "# weights = _quantgate_kv_scales(weights), _quantgate_mtp_quantized\n" + path.read_text()
    )
    assert states(site)["mtp-kv-scales"] == "needed"
    assert states(site)["mtp-quant"] == "needed"


def test_a_guard_without_its_function_is_drift(site: Path) -> None:
    patches(site)
    path = site / "sglang/srt/models/qwen3_5_mtp.py"
    for name, patch in (
        ("_quantgate_mtp_quantized", "mtp-quant"),
        ("_quantgate_kv_scales", "mtp-kv-scales"),
    ):
        kept = path.read_text()
        path.write_text(kept.replace(f"def {name}", "def gone"))
        assert states(site)[patch] == "drifted"
        path.write_text(kept.replace(f"def {name}(", f"def {name}(one, "))
        assert states(site)[patch] == "drifted"
        path.write_text(kept)
    assert not has_drifted(patches(site, check=True))


def test_a_write_that_fails_half_way_is_undone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(site)
    real, writes = runner._replace, []

    def failing(path: Path, data: bytes) -> None:
        writes.append(path)
        if len(writes) == 3:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(runner, "_replace", failing)
    found = states(site, check=False)
    assert set(found.values()) == {"drifted"}
    assert contents(site) == before
    assert len(writes) == 6  # three on the way, three back


def test_modes_stay_and_stale_bytecode_goes(site: Path) -> None:
    path = site / "sglang/srt/layers/radix_attention.py"
    path.chmod(0o640)
    cache = path.parent / "__pycache__"
    cache.mkdir()
    (cache / "radix_attention.cpython-312.pyc").write_bytes(b"old")
    (cache / "other.cpython-312.pyc").write_bytes(b"kept")
    patches(site)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [item.name for item in cache.iterdir()] == ["other.cpython-312.pyc"]


def test_no_sglang(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="holds no sglang folder"):
        patches(tmp_path)
    with pytest.raises(BadInputError, match="is no folder"):
        patches(tmp_path / "absent")


def test_runs_alone_and_isolated(site: Path, tmp_path: Path) -> None:
    """As in an image: no project on the path, no site packages, a manifest at the end."""
    manifest = tmp_path / "out" / "manifest.json"
    command = [sys.executable, "-I", "-S", str(PATCHES_FOLDER), "--sglang", str(site)]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*command, "--image", "--manifest", str(manifest), "--expect", runner.patch_digest()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    assert "patch kv-scales: applied" in done.stdout
    written = json.loads(manifest.read_text())
    assert written["patch_digest"] == runner.patch_digest()
    assert len(written["files"]) == 6
    assert {patch["state"] for patch in written["patches"]} == {"applied"}
    other = subprocess.run([*command, "--expect", "0" * 64], capture_output=True, check=False)
    assert other.returncode == 3
    (site / "sglang/srt/models/qwen3_5_mtp.py").unlink()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 3
    none = [*command[:-1], str(tmp_path)]
    assert subprocess.run(none, capture_output=True, check=False).returncode == 2


def test_only_the_standard_library_is_imported() -> None:
    for path in PATCHES_FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names, (path.name, name)


def test_every_patch_says_what_it_is_about() -> None:
    for patch in runner.PATCHES:
        assert patch.NAME in NAMES
        assert all((patch.HOLDS, patch.VERSIONS, patch.REFERENCE, patch.__doc__))


def test_edits_are_in_bytes_and_may_not_overlap() -> None:
    source = Source("é = 'ü'\nx = 1\n".encode())
    one, two = source.tree.body
    assert source.text(one) == "é = 'ü'"
    assert edited(source.data, [source.after(two, "y = 2"), source.before(two, "z = 3")]) == (
        "é = 'ü'\nz = 3\nx = 1\ny = 2\n".encode()
    )
    with pytest.raises(ValueError, match="overlap"):
        edited(b"abcdef", [Edit(0, 3, ""), Edit(2, 4, "")])


def test_several_roots_are_searched_in_order(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.py").write_text("b = 1\n")
    work = Workspace(tmp_path / "a", tmp_path / "b")
    assert work.locate("x.py") == tmp_path / "b" / "x.py"
    (tmp_path / "a" / "x.py").write_text("a = 1\n")
    assert work.locate("x.py") == tmp_path / "a" / "x.py"
    assert work.locate("y.py") is None
