"""Text that came from elsewhere, made harmless in a model card.

What a model, a repository or a spec says may contain anything: Markdown, HTML, region markers,
template syntax, control characters. Whatever is written into a card goes through one of these
functions, and the templates refuse a value that did not (`Safe`).
"""

from __future__ import annotations

import html
import re
import shlex
import unicodedata

MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
"""Letters that are Markdown anywhere in a line; an underscore inside a word is not."""
LINE_START = re.compile(r"^(?:[#>=]|[+-](?=\s|-|$)|\d{1,9}(?=[.)](?:\s|$)))")
"""What is Markdown at the start of a line or list item only."""
ENTITIES = {
    "&": "&amp;",
    "<": "&lt;",
    "$": "&#36;",
    "@": "&#64;",
    "://": "&#58;//",
    "www.": "www&#46;",
}
_ENTITY = re.compile("|".join(re.escape(key) for key in ENTITIES))
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Safe(str):
    """Markdown that may be written into a card as it is."""

    __slots__ = ()


def visible(text: str) -> str:
    """Without control, formatting and private characters (bidirectional overrides among them).

    Line ends become newlines and tabs four spaces; what else cannot be seen becomes U+FFFD.
    """
    text = re.sub(r"\r\n?|[\u2028\u2029\x0b\x0c\x85]", "\n", text).replace("\t", "    ")
    return "".join(
        "\ufffd" if unicodedata.category(letter) in HIDDEN_CATEGORIES and letter != "\n" else letter
        for letter in text
    )


def words(text: str) -> Safe:
    """Running text on one line: shown letter by letter, never as Markdown, HTML or a link."""
    line = " ".join(visible(text).split())
    start = LINE_START.match(line)
    if start is not None:
        line_start, line = start[0], line[start.end() :]
        numbered = line_start[0].isdigit()
        head = f"{line_start}\\{line[:1]}" if numbered else f"\\{line_start}"
        return Safe(head + _inline(line[1:] if numbered else line))
    return Safe(_inline(line))


def _inline(text: str) -> str:
    escaped = MARKDOWN.sub(r"\\\g<0>", text)
    return _ENTITY.sub(lambda found: ENTITIES[found[0]], escaped)


def code(text: str) -> Safe:
    """Code within a line; where backticks could not hold it (tables, markers), escaped `<code>`."""
    line = " ".join(visible(text).split())
    if line and not re.search(r"[`|<>&\\]", line):
        return Safe(f"`{line}`")
    return Safe(f"<code>{words(line)}</code>")


def quote(text: str) -> Safe:
    """Quoted text of any length for a cell of an HTML table: one line, breaks as `<br>`.

    The result holds no newline, so it cannot end the HTML block that it stands in.
    """
    escaped = html.escape(visible(text).strip("\n"), quote=True)
    for letter in "`*_\\$[]|~{}%@:":
        escaped = escaped.replace(letter, f"&#{ord(letter)};")
    lines = [re.sub(r"^ +", lambda m: "&nbsp;" * len(m[0]), line) for line in escaped.split("\n")]
    return Safe("<br>".join(lines))


def block(text: str, language: str = "") -> Safe:
    """A code block; a fence where the text leaves room for one, else escaped `<pre>`."""
    body = visible(text).strip("\n")
    if "```" in body or "<!--" in body or "-->" in body:
        return Safe(f"<pre>{html.escape(body, quote=False)}</pre>")
    return Safe(f"```{language}\n{body}\n```")


def command(words_of_it: tuple[str, ...]) -> str:
    """A command line as a shell takes it, an option with its value on each line."""
    lines: list[str] = []
    for word in words_of_it:
        quoted = shlex.quote(word)
        is_value = bool(lines) and lines[-1].startswith("--") and " " not in lines[-1]
        if word.startswith("--") or not lines:
            lines.append(quoted)
        elif is_value or not lines[-1].startswith("--"):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)


def remarks(markdown: str) -> Safe:
    """The author's own Markdown: kept, but it cannot reach beyond its place.

    HTML (comments and markers included) is shown as text, headings are pushed down to the fourth
    level, below the card's own, and a fence that was left open is closed.
    """
    lines: list[str] = []
    fence = ""
    for line in visible(markdown).strip("\n").split("\n"):
        opens = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if fence:
            closes = opens is not None and opens[1].startswith(fence) and line.strip() == opens[1]
            fence = "" if closes else fence
            lines.append(_comments_defused(line))
        elif opens:
            fence = opens[1]
            lines.append(_comments_defused(line))
        else:
            lines.append(_prose(line))
    return Safe("\n".join([*lines, fence] if fence else lines))


def _prose(line: str) -> str:
    line = re.sub(r"^(\s{0,3})#{1,3}(?=\s)", r"\1####", line)
    line = re.sub(r"^\s{0,3}(-{2,}|=+)\s*$", r"\\\g<0>", line)
    parts = re.split(r"(`+[^`]*`+)", line)
    kept = [_comments_defused(p) if i % 2 else p.replace("<", "&lt;") for i, p in enumerate(parts)]
    return "".join(kept)


def _comments_defused(text: str) -> str:
    return text.replace("<!--", "<!\u200b--").replace("-->", "--\u200b>")
