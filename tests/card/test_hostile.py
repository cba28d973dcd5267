from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tasks.card.escape import Safe, block, code, command, quote, remarks, words
from tasks.card.material import Sample
from tasks.card.regions import NAMES, find_regions
from tasks.card.render import _environment, render_card
from tests.card.making import calibration, make_material

HOSTILE = (
    "<!-- END quant:preview -->",
    "<!-- BEGIN quant:remarks --> <!-- END quant:benchmarks -->",
    "# BEGIN quant:metadata\nlicense: mit",
    "{{ config }} {% include 'card.md.j2' %} {# #}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "---\nlicense: mit\n---",
    "</pre></table></td><script>alert(1)</script>",
    "```\nnot code\n```\n~~~",
    "| a | b |\n|---|---|\n| c | d |",
    "[x](javascript:alert(1)) ![y](http://evil.example/y.png)",
    "http://evil.example www.evil.example me@evil.example",
    "# Heading\n\n> quote\n\n- list\n1. one",
    "a\r\nb\rc\u2028d\u2029e\x0bf\x85g\x00h\x1b[31m",
    "\u202egnp.exe\u202c \u2066x\u2069 \ufeff",
    "`code` ``two`` \\` *b* _i_ ~~s~~ $x$ $$y$$ \\(z\\)",
    "key: [unclosed, {a: &anchor *alias !!python/object:os.system",
    "&lt;!-- END quant:preview --&gt; &#60;script&#62;",
    "?" * 3 + " None unknown",
    " " * 9 + "indented\n\n\n\nfar",
    "x" * 5000,
)
PARSER = MarkdownIt("gfm-like", {"linkify": False}).enable("table")


def plain(markdown: str) -> str:
    """What a reader sees of one line, by a Markdown parser that is not ours."""
    (inline,) = [token for token in PARSER.parse(markdown) if token.type == "inline"]
    assert inline.children is not None
    for child in inline.children:
        assert child.type in ("text", "text_special", "html_inline", "code_inline", "softbreak"), (
            child
        )
    return "".join(child.content for child in inline.children if child.type != "html_inline")


@given(st.text(alphabet=st.sampled_from("aZ9 `*_~|[]()<>!#+-=.&;:/\\$@{}\"'\n\té?"), min_size=1))
@settings(max_examples=300, deadline=None)
def test_words_are_read_as_they_were_said(text: str) -> None:
    line = " ".join(text.replace("\t", "    ").split())
    if line:
        assert plain(words(text)) == line
        assert plain(f"x {words(text)} y") == f"x {line} y"


@given(st.text(alphabet=st.sampled_from("a `|<>&\\-!*_\n"), min_size=1))
@settings(max_examples=200, deadline=None)
def test_code_is_read_as_it_was_said(text: str) -> None:
    line = " ".join(text.split())
    if line:
        assert plain(f"x {code(text)} y") == f"x {line} y"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_form_lets_text_out(text: str) -> None:
    for form in (words(text), code(text), quote(text), block(text), remarks(text)):
        assert isinstance(form, Safe)
        assert "<!-- " not in form
    for form in (words(text), code(text), quote(text)):
        assert "<script" not in form
        assert "\n" not in form and "\r" not in form
    tokens = PARSER.parse(f"| a | b |\n|---|---|\n| {words(text)} | {code(text)} |\n\nend")
    assert sum(token.type == "td_open" for token in tokens) == 2
    tokens = PARSER.parse(f"{block(text)}\n\nend")
    assert [t.type for t in tokens if t.level == 0] in (
        ["fence", "paragraph_open", "inline", "paragraph_close"],
        ["html_block", "paragraph_open", "paragraph_close"],
        ["fence", "paragraph_open", "paragraph_close"],
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in it and an honest card."""
    root = tmp_path_factory.mktemp("hostile")
    render_card(make_material(root), root / "honest")
    return root


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_its_place(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("tasks.card.render.plots_of", lambda evidence, problems: [])
    honest = (home / "honest" / "README.md").read_text().replace("![", "[")
    material = make_material(home, {"card": {"tags": [text], "notes": text, "title": text}})
    hostile = Sample(prompt=text, before=text, after=text)
    quantization = material.checkpoint.quantization.model_copy(
        update={"calibration": calibration(dataset=text, device=text)}
    )
    changed: dict[str, Any] = {
        "samples": (hostile,),
        "checkpoint": material.checkpoint.model_copy(update={"quantization": quantization}),
        "source": material.source.model_copy(update={"license_name": text, "repo": f"a/{text}"}),
        "endpoint_command": (*material.endpoint_command, text),
    }
    if _says_nothing(text):
        return
    path = render_card(material.model_copy(update=changed), tmp_path / "hostile").path
    card = path.read_bytes()
    assert set(find_regions(card)) == {"metadata", *NAMES}
    head = card.split(b"\n---\n")[0].decode().removeprefix("---\n")
    data = yaml.safe_load(head)
    assert data["license"] == "apache-2.0" and data["base_model"].startswith("a/")
    body = card.decode().split("\n---\n", 1)[1]
    kept = body.split("<!-- notes -->")[0]
    assert all(href.startswith(OURS) for href in _links(kept)), _links(kept)
    assert _headings(card.decode()) == _headings(honest)
    again = render_card(material.model_copy(update=changed), tmp_path / "hostile").path
    assert again.read_bytes() == card


OURS = ("https://huggingface.co/a/", "plots/", "evidence/", "#")


def _links(body: str) -> list[str]:
    """Where links and pictures lead."""
    inner = [c for token in PARSER.parse(body) for c in token.children or []]
    return [str(c.attrs[key]) for c in inner for key in ("href", "src") if key in c.attrs]


def _says_nothing(text: str) -> bool:
    return text.strip().lower() in ("?", "none", "unknown")


def _headings(card: str) -> list[str]:
    """Top-level headings above the author's remarks, title left out."""
    tokens = PARSER.parse(card.split("\n---\n", 1)[1])
    found = [
        tokens[place + 1].content
        for place, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag in ("h1", "h2", "h3") and token.level == 0
    ]
    return [title for title in found[1:] if title != "From the author"]


def test_a_template_cannot_write_what_was_not_escaped() -> None:
    template = _environment().from_string("{{ value }}")
    with pytest.raises(Exception, match="unescaped"):
        template.render(value="plain")
    assert template.render(value=Safe("safe")) == "safe"
    with pytest.raises(Exception, match="undefined"):
        _environment().from_string("{{ missing }}").render()
    with pytest.raises(Exception, match="unsafe"):
        _environment().from_string("{{ ''.__class__.__mro__ }}").render()


def test_a_command_survives_the_shell() -> None:
    import shlex

    given = ("python", "-m", "x", "--flag", "--name", "a b'c", "--json", '{"a": "$(rm)"}', "`id`")
    assert tuple(shlex.split(command(given).replace("\\\n", ""))) == given
