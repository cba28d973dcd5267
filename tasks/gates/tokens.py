"""A second count of the tokens, by the checkpoint's own tokenizer and chat template.

The server bills prompt and completion tokens; counted again from the files they must agree. They do
not when the template is another or lost, when the model is another, or when text was cut, doubled
or left out behind the counters' back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.artifacts import Reason
from tasks.gates.records import Line
from tasks.serve.dialects import Prompt

PROMPT_SLACK = 3
"""Tokens by which a prompt may differ: a token of beginning, a line end."""
TEXT_SLACK = 6
"""Tokens by which a text may differ besides a tenth: end of text, reasoning marks, respelling."""
OPENS = ("<think>", "<thinking>", "[THINK]")
"""Ends of a rendered prompt after which a model reasons before it answers."""
ODD = 0.1
"""Share of requests that may differ before it counts."""


class Tokens:
    """Counts tokens as the checkpoint's files say; `open` gives None where they say nothing."""

    def __init__(self, tokenizer: Any, template: Any, special: dict[str, str]) -> None:
        self._tokenizer, self._template, self._special = tokenizer, template, special

    @classmethod
    def open(cls, checkpoint: Path | None) -> Tokens | None:
        """Read tokenizer.json and the chat template; None where either is missing or unusable."""
        if checkpoint is None:
            return None
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
            config = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
            return cls(tokenizer, _template(checkpoint, config), _special(config))
        except Exception:  # whatever is wrong with the files is the audit's to say
            return None

    def count(self, prompt: Prompt, line: Line) -> dict[str, int | bool | None]:
        """{prompt, text}: tokens of a request and of its answer (text and reasoning).

        `thinks`: whether the template opens the reasoning, so that the answer begins with it.
        """
        text = str(line.get("text") or "")
        reasoning = str(line.get("reasoning") or "")
        read = self._read(prompt)
        return {
            "prompt": None if read is None else self._size(read),
            "text": self._size(text) + self._size(reasoning),
            "thinks": read is not None and read.rstrip().endswith(OPENS),
        }

    def _size(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids) if text else 0

    def _read(self, prompt: Prompt) -> str | None:
        """What the model reads of a prompt."""
        values: dict[str, Any] = {**self._special, "add_generation_prompt": True}
        if prompt.sampling.thinking != "default":
            values["enable_thinking"] = prompt.sampling.thinking == "on"
        try:
            return str(self._template.render(messages=list(prompt.messages), **values))
        except Exception:  # a template may refuse any conversation it likes
            return None


def _template(checkpoint: Path, config: dict[str, Any]) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    file = checkpoint / "chat_template.jinja"
    text = file.read_text(encoding="utf-8") if file.is_file() else config["chat_template"]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(text)


def _refuse(words: str) -> None:
    raise ValueError(words)


def _special(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def other_prompts(lines: Sequence[Line]) -> list[Reason]:
    """Whether the server read other prompts than the checkpoint's template makes."""
    pairs = _pairs(lines, "prompt", "prompt_tokens")
    odd = [(own, said) for own, said in pairs if abs(own - said) > PROMPT_SLACK]
    if len(odd) <= ODD * len(pairs):
        return []
    detail = f"{len(odd)} of {len(pairs)} prompts have other lengths than the checkpoint's template"
    detail += f" and tokenizer give (first: {odd[0][1]} tokens, {odd[0][0]} expected)"
    return [Reason(code="prompt-tokens", detail=detail)]


def other_texts(lines: Sequence[Line]) -> list[Reason]:
    """Whether the texts hold other numbers of tokens than the server counted."""
    pairs = _pairs(lines, "text", "completion_tokens")
    odd = [(own, said) for own, said in pairs if abs(own - said) > TEXT_SLACK + 0.1 * said]
    if len(odd) <= ODD * len(pairs):
        return []
    detail = f"{len(odd)} of {len(pairs)} answers hold other numbers of tokens than were counted"
    detail += f" (first: {odd[0][1]} counted, {odd[0][0]} in the text)"
    return [Reason(code="text-tokens", detail=detail)]


def _pairs(lines: Sequence[Line], own: str, said: str) -> list[tuple[int, int]]:
    found = []
    for line in lines:
        mine, theirs = (line.get("own_tokens") or {}).get(own), line.get(said)
        if line["status"] == "ok" and mine is not None and theirs is not None:
            found.append((mine, theirs))
    return found
