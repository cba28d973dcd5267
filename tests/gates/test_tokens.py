from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tasks.artifacts import GateReport, Verdict
from tasks.gates.gsm8k import run_gsm8k
from tasks.gates.tokens import Tokens
from tasks.serve.dialects import Prompt, Sampling
from tasks.spec import Gsm8kGate
from tests.gates.conftest import GSM8K, codes
from tests.servers.fake import Brain, FakeEngine, Reply

TEMPLATE = (
    "{% for m in messages %}[ {{ m.role }} ] {{ m.content }} [/]\n{% endfor %}"
    "{% if add_generation_prompt %}[ assistant ]{% if enable_thinking is defined %} <think>"
    "{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that splits at white space, and a template."""
    folder = tmp_path_factory.mktemp("tokens")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "[/]"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def prompt(**sampling: Any) -> Prompt:
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "one two"})
    return Prompt("1", messages, Sampling(8, **sampling))


def test_prompts_are_counted_through_the_template(checkpoint: Path) -> None:
    tokens = Tokens.open(checkpoint)
    assert tokens is not None
    line = {"text": "a b c", "reasoning": "d e"}
    assert tokens.count(prompt(), line) == {"prompt": 15, "text": 5, "thinks": False}
    assert tokens.count(prompt(thinking="on"), line) == {"prompt": 16, "text": 5, "thinks": True}


def test_files_that_say_nothing_give_no_count(tmp_path: Path) -> None:
    assert Tokens.open(None) is None
    assert Tokens.open(tmp_path) is None


def test_a_template_that_refuses_gives_no_count(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no') }}", encoding="utf-8")
    tokens = Tokens.open(tmp_path)
    assert tokens is not None and tokens.count(prompt(), {})["prompt"] is None


class Honest(FakeEngine):
    """Bills what the template of this file makes of a prompt."""

    lost_template = False

    def _reply(self, body: dict[str, Any]) -> Reply:
        reply = super()._reply(body)
        overhead = 0 if self.lost_template else 4
        words = sum(len(m["content"].split()) + overhead for m in body["messages"])
        reply.prompt_tokens = words + (0 if self.lost_template else 3)
        reply.tokens = len(reply.text.split())
        self._speculate(reply)
        return reply


class Untemplated(Honest):
    lost_template = True


def run(
    kind: type[FakeEngine], out: Path, brain: Brain, checkpoint: Path, **fake: Any
) -> GateReport:
    gate = Gsm8kGate(data=GSM8K, limit=60, min_accuracy=0.5, max_tokens=256)
    with kind(brain=brain, **fake) as engine:
        return run_gsm8k(engine.endpoint, gate, out, checkpoint)


def test_an_honest_server_agrees(tmp_path: Path, brain: Brain, checkpoint: Path) -> None:
    report = run(Honest, tmp_path, brain, checkpoint)
    assert report.verdict is Verdict.PASS, report.reasons


def test_another_template_is_seen(tmp_path: Path, brain: Brain, checkpoint: Path) -> None:
    report = run(Untemplated, tmp_path, brain, checkpoint)
    assert report.verdict is Verdict.INVALID and codes(report) == {"prompt-tokens"}


def half(reply: Reply, _: int) -> None:
    reply.text = "#### " + reply.text.rpartition("#### ")[2]


def twice(reply: Reply, _: int) -> None:
    reply.text = reply.text.replace("####", "so. " * 20 + "####")


@pytest.mark.parametrize("spoil", [half, twice])
def test_text_cut_or_added_behind_the_counters(
    tmp_path: Path, brain: Brain, checkpoint: Path, spoil: Any
) -> None:
    report = run(Honest, tmp_path, brain, checkpoint, spoil=spoil)
    assert report.verdict is Verdict.INVALID and codes(report) == {"text-tokens"}
