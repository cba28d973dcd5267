"""Templates of many makes keep what is said; what loses a turn or a role is seen."""

from __future__ import annotations

import pytest

from tasks.gates.audit.result import Findings
from tasks.gates.audit.template import check_template

TURN = "{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token }}{%- endfor %}"
GOOD = {
    "marks around turns": TURN,
    "refuses a system prompt": "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}"
    + "{% endif %}"
    + TURN,
    "wants parts": "{% for m in messages %}<{{ m.role }}>{% for part in m.content"
    " if part.type == 'text' %}{{ part.text }}{% endfor %}{% endfor %}",
    "closes a user's turn only": "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ m.content }}</s>{% else %}[INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}",
    "drops earlier reasoning": "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content.split('</think>')[-1] }}{% endfor %}<|assistant|><think>",
    "marks what is trained": "{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}"
    "{% endgeneration %}{% endfor %}",
    "tells the date": "{{ strftime_now('%d') }}" + TURN,
    "one of several": '[{"name": "default", "template": "x"}]',
}
LOSING = {
    "the last turn only": "{% for m in messages[-1:] %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "no roles": "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}",
    "in capitals": "{% for m in messages %}<{{ m.role }}>{{ m.content | upper }}{% endfor %}",
    "backwards": "{% for m in messages[::-1] %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "no braces": "{% for m in messages %}<{{ m.role }}>{{ m.content.replace('{', '') }}"
    "{% endfor %}",
}


def found(template: str) -> set[str]:
    findings = Findings()
    check_template(template, {"eos_token": {"content": "</s>"}}, findings)
    return {fault.code for fault in findings.faults()}


@pytest.mark.parametrize("name", GOOD)
def test_templates_that_keep_everything(name: str) -> None:
    assert found(GOOD[name]) == set()


@pytest.mark.parametrize("name", LOSING)
def test_templates_that_lose_something(name: str) -> None:
    assert found(LOSING[name]) == {"template-loses"}
