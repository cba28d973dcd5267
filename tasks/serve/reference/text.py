"""From messages to ids and back, with the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import BadInputError


class Text:
    """A checkpoint's tokenizer, chat template and end tokens.

    Attributes:
        ends: tokens that end an answer: those of generation_config.json, config.json and the
            tokenizer together, as SGLang takes them.
        defaults: sampling of generation_config.json.
    """

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(root)
        generation = _json(root / "generation_config.json")
        texts = config.get("text_config") or {}
        found = [
            generation.get("eos_token_id"),
            config.get("eos_token_id"),
            texts.get("eos_token_id"),
            self._tokenizer.eos_token_id,
        ]
        self.ends = frozenset(
            int(one)
            for entry in found
            if entry is not None
            for one in (entry if isinstance(entry, list) else [entry])
        )
        names = ("temperature", "top_p", "top_k", "min_p")
        self.defaults = {n: generation[n] for n in names if generation.get(n) is not None}

    def prompt(self, messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[int]:
        """The conversation's ids, ready for an answer.

        Args:
            options: more variables of the template, e.g. `enable_thinking`.

        Raises:
            BadInputError: there is no template, or it refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise BadInputError(
                "chat-template-missing",
                "The checkpoint has no chat template.",
                "Serve one that has.",
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [_plain(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **options,
            )
        except BadInputError:
            raise
        except Exception as error:
            words = " ".join(str(error).split())
            raise BadInputError(
                "chat-template", f"The chat template refuses the messages: {words}.", "Check them."
            ) from error
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, special tokens in it recognised, none added."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str] | None:
    """(text before the earliest stop string, that string); None when there is none."""
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return None
    place, stop = min(found)
    return text[:place], stop


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise BadInputError(
                "content-not-text",
                "messages: only text content is served by this engine.",
                "Leave out images and video.",
            )
        parts.append(str(part.get("text", "")))
    return {**message, "content": "".join(parts)}


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
