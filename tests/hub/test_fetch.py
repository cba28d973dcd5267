from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tasks.errors import BadInputError, TransientError
from tasks.hub.fetch import fetch, front_matter, is_needed
from tasks.spec import FolderSource, HubSource
from tests.hub.conftest import Emulator

CARD = """---
license: other
license_name: tiny
license_link: https://example.org/licence
pipeline_tag: image-text-to-text
---
# Tiny
"""


def write_source(root: Path, **config: object) -> Path:
    root.mkdir(parents=True)
    given = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe"}
    (root / "config.json").write_text(json.dumps(given | config))
    (root / "README.md").write_text(CARD)
    save_file({"a": np.ones((4, 4), np.float32)}, str(root / "model.safetensors"))
    return root


def test_folder_source_is_described_by_its_own_files(tmp_path: Path) -> None:
    root = write_source(tmp_path / "source")
    source = fetch(FolderSource(path=root, repo="org/tiny"), tmp_path / "cache")
    assert source.architecture == "Qwen3_5MoeForConditionalGeneration"
    assert (source.license, source.license_name) == ("other", "tiny")
    assert source.license_link == "https://example.org/licence"
    assert (source.repo, source.revision, source.path) == ("org/tiny", None, root)
    assert len(source.digest) == 64


def test_digest_follows_content_and_not_place(tmp_path: Path) -> None:
    first = fetch(FolderSource(path=write_source(tmp_path / "one")), tmp_path / "cache")
    other = write_source(tmp_path / "two")
    second = fetch(FolderSource(path=other), tmp_path / "cache")
    assert first.digest == second.digest
    assert fetch(FolderSource(path=other), tmp_path / "cache") == second
    save_file({"a": np.zeros((4, 4), np.float32)}, str(other / "model.safetensors"))
    assert fetch(FolderSource(path=other), tmp_path / "cache").digest != second.digest


def test_a_damaged_memory_of_the_digest_is_taken_again(tmp_path: Path) -> None:
    root = write_source(tmp_path / "source")
    before = fetch(FolderSource(path=root), tmp_path / "cache")
    (memory,) = (tmp_path / "cache" / "digests").iterdir()
    memory.write_text("{")
    assert fetch(FolderSource(path=root), tmp_path / "cache") == before


@pytest.mark.parametrize("architectures", [None, [], [3]])
def test_without_an_architecture_there_is_no_source(tmp_path: Path, architectures: object) -> None:
    root = write_source(tmp_path / "source", architectures=architectures)
    with pytest.raises(BadInputError, match="architectures") as caught:
        fetch(FolderSource(path=root), tmp_path / "cache")
    assert caught.value.code == "config-architecture"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"source\.path: .*absent") as caught:
        fetch(FolderSource(path=tmp_path / "absent"), tmp_path / "cache")
    assert caught.value.code == "source-missing"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "text", ["", "no card", "---\nopen: 1", "---\n- 1\n---\n", "---\n[: ]\n---\n"]
)
def test_front_matter_of_anything_else_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    assert front_matter(tmp_path / "README.md") == {}


def test_only_what_a_quantization_needs_is_fetched() -> None:
    wanted = ["model-00001-of-00002.safetensors", "mtp.safetensors", "config.json", "README.md"]
    wanted += ["tokenizer.json", "chat_template.jinja", "merges.txt", "LICENSE"]
    left = ["pytorch_model.bin", "consolidated.safetensors", "original/params.json", "figure.png"]
    assert all(is_needed(name) for name in wanted)
    assert not any(is_needed(name) for name in left)


def seed(emulator: Emulator, root: Path) -> str:
    source = write_source(root)
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    return emulator.seed("org/source", files | {"figure.png": b"\0png", "old/x.json": b"{}"})


def test_a_hub_source_is_fetched_at_a_commit(emulator: Emulator, tmp_path: Path, way: str) -> None:
    head = seed(emulator, tmp_path / "origin")
    asked = HubSource(repo="org/source")
    source = fetch(asked, tmp_path / "cache", endpoint=emulator.url)
    assert (source.repo, source.revision) == ("org/source", head)
    assert source.license == "other"
    assert {p.name for p in source.path.iterdir()} - {".cache"} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    local = fetch(FolderSource(path=tmp_path / "origin"), tmp_path / "cache")
    assert local.digest == source.digest
    before = len(emulator.seen["calls"])
    assert fetch(asked, tmp_path / "cache", endpoint=emulator.url) == source
    assert not [c for c in emulator.seen["calls"][before:] if "resolve" in c[1]]


def test_an_interrupted_fetch_goes_on(emulator: Emulator, tmp_path: Path) -> None:
    seed(emulator, tmp_path / "origin")
    emulator.fault("drop-before", match="GET /resolve/", at=2, times=100)
    with pytest.raises(TransientError):
        fetch(HubSource(repo="org/source"), tmp_path / "cache", endpoint=emulator.url)
    emulator.no_faults()
    fetch(HubSource(repo="org/source"), tmp_path / "cache", endpoint=emulator.url)
    got = [c for c in emulator.seen["calls"] if c[0] == "GET" and "resolve" in c[1]]
    assert len(got) == 2, "what was there already is not fetched again"


def test_bytes_that_the_hub_does_not_list_are_refused(emulator: Emulator, tmp_path: Path) -> None:
    seed(emulator, tmp_path / "origin")
    source = fetch(HubSource(repo="org/source"), tmp_path / "cache", endpoint=emulator.url)
    weights = source.path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(TransientError, match="not what the Hub lists") as caught:
        fetch(HubSource(repo="org/source"), tmp_path / "cache", endpoint=emulator.url)
    assert caught.value.code == "source-checksum"
    again = fetch(HubSource(repo="org/source"), tmp_path / "cache", endpoint=emulator.url)
    assert again == source


@pytest.mark.parametrize(
    ("repo", "revision", "code"),
    [("org/none", "main", "hub-unauthorized"), ("org/source", "v9", "hub-not-found")],
)
def test_what_is_not_there_is_a_clear_line(
    emulator: Emulator, tmp_path: Path, repo: str, revision: str, code: str
) -> None:
    seed(emulator, tmp_path / "origin")
    asked = HubSource(repo=repo, revision=revision)
    with pytest.raises(BadInputError, match=f"source {repo}@{revision}") as caught:
        fetch(asked, tmp_path / "cache", endpoint=emulator.url)
    assert caught.value.code == code
