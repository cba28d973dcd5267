"""`python -m tests.card.screenshot CARD.md OUT.png`: how a card looks, with Debian's chromium.

Not a test: makes the picture in the README. The style is plain and close to the Hub's.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt

STYLE = """
body { font: 16px/1.5 'DejaVu Sans', sans-serif; color: #1f2937; max-width: 900px;
       margin: 24px auto; padding: 0 28px; }
h1 { font-size: 30px; } h2 { border-bottom: 1px solid #e5e7eb; padding-bottom: 6px; }
table { border-collapse: collapse; margin: 12px 0; font-size: 14px; }
th, td { border: 1px solid #e5e7eb; padding: 6px 10px; text-align: left; }
th { background: #f9fafb; } code { background: #f3f4f6; padding: 1px 4px; font-size: 13px; }
pre { background: #f3f4f6; padding: 12px; } pre code { padding: 0; } img { max-width: 100%; }
.meta span { background: #eef6f5; border-radius: 6px; padding: 2px 8px; margin-right: 6px;
             font-size: 13px; color: #0f766e; }
"""
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"
    " --disable-background-networking --disable-component-update --disable-sync"
)


def page(card: Path) -> str:
    """The card as one HTML page; pictures are looked up beside it."""
    head, body = re.match(r"---\n(.*?)\n---\n(.*)", card.read_text(), re.DOTALL).groups()
    tags = re.search(r"^tags:\n((?:- .*\n)+)", head, re.MULTILINE)
    labels = re.findall(r"- (.*)", tags[1]) if tags else []
    meta = "".join(f"<span>{label}</span>" for label in labels)
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(body)
    base = f'<base href="{card.parent.resolve().as_uri()}/">'
    style = f"<meta charset=utf-8>{base}<style>{STYLE}</style>"
    return f"{style}<p class=meta>{meta}</p>{html}"


def main(card: Path, out: Path, height: int = 2400) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder) / "card.html"
        html.write_text(page(card))
        size = f"--window-size=980,{height}"
        target = [f"--screenshot={out.resolve()}", size, f"--user-data-dir={folder}/profile"]
        subprocess.run(["chromium", *FLAGS.split(), *target, html.as_uri()], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *(int(n) for n in sys.argv[3:]))
