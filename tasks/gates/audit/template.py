"""The chat template: what is said reaches the model as it was said, in order, and by whom."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.gates.audit.result import Findings

TEMPLATE = "chat_template.jinja"
SAID = (
    ("system", "Kiwi 17 is Ripe"),
    ("user", "Fig 2 of {Red}"),
    ("assistant", "Plum 5, Pear 80"),
    ("user", "What of Date 31?"),
)
"""A conversation that any template takes, in words that it has no reason to change."""


def check_template(template: str, tokenizer: Mapping[str, Any] | None, findings: Findings) -> None:
    """Parse a template, and render a conversation whose every turn must be found again.

    A template may refuse a system prompt, or want its content in parts; one that refuses every
    form is not judged, nor is a list of several templates.
    """
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"],
    )
    environment.globals |= {"generation": None, "raise_exception": _refuse}
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    if not template.strip():
        findings.add("sidecar-unreadable", TEMPLATE, "It is empty.")
        return
    try:
        environment.parse(template)
    except TemplateSyntaxError as error:
        if "generation" not in str(error):
            what = f"Line {error.lineno}: {error.message}."
            findings.add("sidecar-unreadable", TEMPLATE, what)
        return
    if template.startswith('[{"'):
        return
    special = _special(tokenizer or {})
    lost: list[str | None] = []
    for parts in (False, True):
        for turns in (SAID, SAID[1:]):
            try:
                text = environment.from_string(template).render(
                    messages=_messages(turns, parts), add_generation_prompt=True, **special
                )
            except Exception:  # a template may refuse any conversation it likes
                continue
            lost.append(_lost(text, turns))
            break
    if lost and None not in lost:
        findings.add("template-loses", TEMPLATE, str(lost[0]))


def _messages(turns: Sequence[tuple[str, str]], parts: bool) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": [{"type": "text", "text": said}] if parts else said}
        for role, said in turns
    ]


def _lost(text: str, turns: Sequence[tuple[str, str]]) -> str | None:
    """What of a conversation is not in its rendering; None when all of it is."""
    between, rest = [], text
    for role, said in turns:
        before, found, rest = rest.partition(said)
        if not found:
            return f"The {role}'s `{said}` is not in what the model reads, or not in its place."
        between.append(before)
    if between[-2] == between[-1]:
        return "The same marks stand before an assistant's turn and before a user's."
    return None


def _special(tokenizer: Mapping[str, Any]) -> dict[str, str]:
    held = {name: value for name, value in tokenizer.items() if name.endswith("_token")}
    texts = {n: v.get("content") if isinstance(v, dict) else v for n, v in held.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _refuse(words: str) -> None:
    raise ValueError(words)
