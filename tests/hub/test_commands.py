"""The commands on a card, taken from the published card and run as they stand there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from tasks.card.render import render_card
from tasks.hub.publish import publish_hub
from tasks.spec import PublishSpec
from tests.card.making import make_material
from tests.hub.conftest import WRITER, Emulator

PROJECT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_download_serve_and_ask_as_the_card_says(emulator: Emulator, tmp_path: Path) -> None:
    port = free_port()
    started = (sys.executable, "-m", "tests.card.stub_engine", "--model-path")
    material = make_material(
        tmp_path,
        {"publish": {"repo": "org/Tiny-MoE", "to": "hub"}},
        endpoint_command=(*started, str(tmp_path / "checkpoint"), "--port", str(port)),
    )
    card = render_card(material, tmp_path / "card")
    spec = PublishSpec(to="hub", repo="org/Tiny-MoE")
    path = material.checkpoint.path
    publish_hub(path, card, spec, "r1", tmp_path / "state", None, WRITER, emulator.url)

    blocks = re.findall(r"^```bash\n(.*?)\n```$", card.path.read_text(), re.DOTALL | re.MULTILINE)
    download, serve, ask, check = blocks
    assert download == "hf download org/Tiny-MoE --local-dir Tiny-MoE"
    home = tmp_path / "home"
    home.mkdir()
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "HF_ENDPOINT": emulator.url,
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }
    subprocess.run(["bash", "-ec", download], cwd=home, env=environment, check=True, timeout=60)
    assert {p.name for p in (home / "Tiny-MoE").iterdir()} >= {"README.md", "config.json"}
    subprocess.run(["bash", "-ec", check], cwd=home / "Tiny-MoE", check=True, timeout=60)
    engine = subprocess.Popen(["bash", "-c", f"exec {serve}"], cwd=home, env=environment)
    try:
        _wait_for(port)
        answer = subprocess.run(
            ["bash", "-ec", ask], cwd=home, check=True, capture_output=True, timeout=20
        )
    finally:
        engine.terminate()
        engine.wait()
    said = json.loads(answer.stdout)
    assert (said["path"], said["model"], said["last"]) == (
        "/v1/chat/completions",
        "release",
        "number.",
    )
    assert said["model_type"] == "qwen3_5_moe"
    (home / "Tiny-MoE" / "config.json").write_text("{}")
    again = subprocess.run(["bash", "-ec", check], cwd=home / "Tiny-MoE", check=False)
    assert again.returncode != 0


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the engine did not come up")
