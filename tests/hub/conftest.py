"""The emulated Hub as a process of its own, and a release to publish to it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tasks.artifacts import Card
from tasks.hub import patience
from tasks.hub.publish import begin_upload, preflight_publish, publish_hub
from tasks.spec import PublishSpec

WRITER = SecretStr("hf_writer")


@dataclass
class Emulator:
    """Steers the emulator from a test."""

    url: str

    def control(self, what: str, body: Any = None) -> Any:
        data = None if what == "seen" else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/__emulator__/{what}", data)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def fault(self, kind: str, **rule: Any) -> None:
        self.control("faults", [{"kind": kind, **rule}])

    def no_faults(self) -> None:
        self.control("faults", [])

    def seed(
        self, repo: str, files: dict[str, bytes], private: bool = False, history: int = 0
    ) -> str:
        encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
        body = {"id": repo, "private": private, "files": encoded, "history": history}
        return str(self.control("seed", body)["head"])

    @property
    def seen(self) -> Any:
        return self.control("seen")

    def repo(self, name: str = "org/model") -> Any:
        return self.seen["repos"].get(name)


@pytest.fixture(scope="session")
def emulator_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("emulator")
    log = (root / "log").open("w")
    command = [sys.executable, "-m", "tests.hub.emulator", "--root", str(root / "state")]
    (root / "state").mkdir()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("export HF_ENDPOINT="), (root / "log").read_text()
    yield line.split("=")[1].split()[0]
    process.terminate()
    process.wait()


@pytest.fixture
def emulator(
    emulator_process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Emulator]:
    """A fresh Hub; a call that it does not know fails the test."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(patience, "PATIENCE", patience.Patience(first=0.0, longest=0.01))
    for module in ("utils._http", "file_download"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", _hurried())
    hub = Emulator(emulator_process)
    hub.control("reset")
    yield hub
    assert hub.seen["violations"] == []


def _hurried() -> Any:
    import time

    names = {name: getattr(time, name) for name in dir(time) if not name.startswith("_")}
    return SimpleNamespace(**{**names, "sleep": lambda seconds: None})


@pytest.fixture(params=["xet", "lfs"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How large files travel: through hf_xet, or as plain LFS."""
    set_way(request.param, monkeypatch)
    return str(request.param)


def set_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", way == "lfs")


@dataclass
class Release:
    """A small release, and the whole of its publication."""

    root: Path
    url: str
    id: str = "r1"
    spec: PublishSpec = field(default_factory=lambda: PublishSpec(to="hub", repo="org/model"))
    token: SecretStr | None = WRITER

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def card(self) -> Card:
        base = self.root / "card"
        files = sorted(p for p in base.rglob("*") if p.is_file() and p.name != "README.md")
        return Card(path=base / "README.md", files=tuple(files))

    @property
    def state(self) -> Path:
        return self.root / "state"

    def with_spec(self, **changed: Any) -> Release:
        spec = self.spec.model_copy(update=changed)
        return Release(self.root, self.url, self.id, spec, self.token)

    def publish(self) -> Any:
        """All that a release does on the Hub, in its order."""
        preflight_publish(self.spec, self.token, self.url)
        upload = begin_upload(self.checkpoint, self.spec, self.state, self.token, self.url)
        upload.wait()
        return publish_hub(
            self.checkpoint,
            self.card,
            self.spec,
            self.id,
            self.state,
            upload,
            self.token,
            self.url,
        )

    def contents(self) -> dict[str, Path]:
        """Path in the repository -> local file, the mark of the release left out."""
        found = {p.relative_to(self.checkpoint).as_posix(): p for p in self.checkpoint.rglob("*")}
        base = self.card.path.parent
        found |= {p.relative_to(base).as_posix(): p for p in (self.card.path, *self.card.files)}
        return {name: path for name, path in found.items() if path.is_file()}


def make_release(root: Path, url: str, salt: bytes = b"") -> Release:
    """Two shards, one of them sent in parts, and a card with its evidence."""
    checkpoint, card = root / "checkpoint", root / "card"
    checkpoint.mkdir(parents=True)
    (card / "evidence").mkdir(parents=True)
    (card / ".eval_results").mkdir()
    for number, size in enumerate((300_000, 5_000)):
        content = (salt + os.urandom(64)) * (size // 64)
        (checkpoint / f"model-{number}.safetensors").write_bytes(content)
    (checkpoint / "config.json").write_text('{"a": 1}')
    (card / "README.md").write_text(card_text("Model"))
    (card / "evidence" / "provenance.json").write_text("{}\n")
    (card / ".eval_results" / "gsm8k.yaml").write_text(
        "- dataset: {id: openai/gsm8k, task_id: gsm8k}\n  value: 96.5\n"
    )
    return Release(root, url)


def card_text(title: str, region: str = "x") -> str:
    regions = [
        f"<!-- BEGIN quant:{name} -->\n{region}\n<!-- END quant:{name} -->\n"
        for name in ("preview", "remarks", "benchmarks")
    ]
    head = "---\n# BEGIN quant:metadata\nlicense: mit\n# END quant:metadata\n---\n"
    return f"{head}\n# {title}\n\n{''.join(regions)}"


@pytest.fixture
def release(tmp_path: Path, emulator: Emulator) -> Release:
    return make_release(tmp_path / "release", emulator.url)
