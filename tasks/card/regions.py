"""The marker regions of a card: everything between two markers is ours, everything else is not.

    <!-- BEGIN quant:NAME -->
    ...
    <!-- END quant:NAME -->

In the metadata at the top, which is YAML, the markers are comments:

    # BEGIN quant:metadata
    ...
    # END quant:metadata
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.errors import BadInputError

NAMES = ("preview", "remarks", "benchmarks")
METADATA = "metadata"

_HTML = re.compile(rb"<!--[ \t]*(BEGIN|END)[ \t]+quant:([^\s>]*)[ \t]*-->")
_YAML = re.compile(rb"^#[ \t]*(BEGIN|END)[ \t]+quant:(\S+)[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Region:
    """Where a region's content lies, in bytes; the markers themselves are outside."""

    name: str
    start: int
    end: int


def find_regions(card: bytes, origin: str = "README.md") -> dict[str, Region]:
    """The four regions of a card.

    Raises:
        BadInputError: `card-markers`: one is missing, doubled, nested, unclosed or strange; names
            the line.
    """
    regions: dict[str, Region] = {}
    opened: tuple[str, int, int] | None = None
    for at, end, kind, name in _markers(card):
        line = card.count(b"\n", 0, at) + 1
        if name not in (*NAMES, METADATA):
            raise _error(origin, line, f"there is no region `{name}`")
        if kind == "BEGIN":
            if opened is not None:
                raise _error(origin, line, f"`{name}` begins inside `{opened[0]}`")
            if name in regions:
                raise _error(origin, line, f"`{name}` begins a second time")
            opened = (name, end, line)
        elif opened is None:
            raise _error(origin, line, f"`{name}` ends but has not begun")
        elif opened[0] != name:
            raise _error(origin, line, f"`{name}` ends inside `{opened[0]}`")
        else:
            regions[name] = Region(name, opened[1], at)
            opened = None
    if opened is not None:
        raise _error(origin, opened[2], f"`{opened[0]}` begins and never ends")
    for name in (METADATA, *NAMES):
        if name not in regions:
            last = card.count(b"\n") + 1
            raise _error(origin, last, f"the file ends without the region `{name}`")
    return regions


def replace_regions(card: bytes, contents: Mapping[str, str], origin: str = "README.md") -> bytes:
    """The card with new content in its regions; every byte outside them is kept.

    The card's own line ends are used: CRLF where its first line has them.

    Raises:
        BadInputError: as `find_regions`.
    """
    regions = find_regions(card, origin)
    newline = line_end(card)
    for region in sorted(regions.values(), key=lambda item: item.start, reverse=True):
        text = f"\n{contents[region.name].strip()}\n".replace("\n", newline)
        card = card[: region.start] + text.encode("utf-8") + card[region.end :]
    find_regions(card, origin)
    return card


def renew(card: bytes, rendered: bytes, origin: str = "README.md") -> bytes:
    """What people wrote in `card`, with the regions of the card `rendered`.

    Raises:
        BadInputError: as `find_regions`.
    """
    contents = {
        name: rendered[region.start : region.end].decode("utf-8")
        for name, region in find_regions(rendered).items()
    }
    return replace_regions(card, contents, origin)


def line_end(card: bytes) -> str:
    """`\\r\\n` where the first line ends so, else `\\n`."""
    first = card.find(b"\n")
    return "\r\n" if first > 0 and card[first - 1 : first] == b"\r" else "\n"


def _markers(card: bytes) -> list[tuple[int, int, str, str]]:
    """(start, end, BEGIN or END, name) of all markers, in the order of the file."""
    head = _front_matter_end(card)
    found = [
        (m.start(), _line_content_end(card, m.end()), m) for m in _YAML.finditer(card[:head])
    ] + [(m.start(), m.end(), m) for m in _HTML.finditer(card, head)]
    return [(start, end, m[1].decode(), m[2].decode("utf-8", "replace")) for start, end, m in found]


def _line_content_end(card: bytes, end: int) -> int:
    return end - 1 if card[end - 1 : end] == b"\r" else end


def _front_matter_end(card: bytes) -> int:
    """Byte at which the metadata block ends; 0 without one."""
    if not re.match(rb"---[ \t]*\r?\n", card):
        return 0
    found = re.compile(rb"^---[ \t]*\r?$", re.MULTILINE).search(card, 4)
    return found.end() if found else 0


def _error(origin: str, line: int, what: str) -> BadInputError:
    return BadInputError(
        "card-markers",
        f"{origin}: line {line}: {what}.",
        "Restore the markers, or move the file away to write a new card.",
    )
