from __future__ import annotations

import pytest

from tasks.card.regions import METADATA, NAMES, find_regions, replace_regions
from tasks.errors import BadInputError

CARD = (
    "---\n# BEGIN quant:metadata\nlicense: mit\n# END quant:metadata\nmine: 1\n---\n# Title\n"
    "before\n<!-- BEGIN quant:preview -->\na\n<!-- END quant:preview --> "
    "<!-- BEGIN quant:remarks -->\nb\n<!-- END quant:remarks -->\nbetween\n"
    "<!-- BEGIN quant:benchmarks -->c<!-- END quant:benchmarks -->\n"
)
NEW = dict.fromkeys((METADATA, *NAMES), "new")


def test_only_regions_change() -> None:
    card = replace_regions(CARD.encode(), NEW).decode()
    assert card == (
        "---\n# BEGIN quant:metadata\nnew\n# END quant:metadata\nmine: 1\n---\n# Title\n"
        "before\n<!-- BEGIN quant:preview -->\nnew\n<!-- END quant:preview --> "
        "<!-- BEGIN quant:remarks -->\nnew\n<!-- END quant:remarks -->\nbetween\n"
        "<!-- BEGIN quant:benchmarks -->\nnew\n<!-- END quant:benchmarks -->\n"
    )
    assert replace_regions(card.encode(), NEW).decode() == card


def test_line_ends_are_kept() -> None:
    card = replace_regions(CARD.replace("\n", "\r\n").encode(), NEW)
    assert card == replace_regions(CARD.encode(), NEW).replace(b"\n", b"\r\n")


def test_bytes_outside_need_not_be_text() -> None:
    card = CARD.encode().replace(b"between", b"\xff\xfe\x00")
    assert b"\xff\xfe\x00" in replace_regions(card, NEW)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("<!-- END quant:remarks -->", "", 15, "`benchmarks` begins inside `remarks`"),
        ("<!-- BEGIN quant:remarks -->", "", 13, "`remarks` ends but has not begun"),
        ("<!-- END quant:benchmarks -->", "", 15, "`benchmarks` begins and never ends"),
        ("between", "<!-- BEGIN quant:preview -->", 14, "`preview` begins a second time"),
        ("between", "<!-- BEGIN quant:other -->", 14, "there is no region `other`"),
        ("\na\n", "\n<!-- END quant:remarks -->\n", 10, "`remarks` ends inside `preview`"),
        ("# END quant:metadata\n", "", 8, "`preview` begins inside `metadata`"),
        ("# BEGIN quant:metadata\n", "", 3, "`metadata` ends but has not begun"),
    ],
)
def test_a_wrong_marker_is_named_with_its_line(old: str, new: str, line: int, what: str) -> None:
    with pytest.raises(BadInputError) as caught:
        find_regions(CARD.replace(old, new).encode(), "README.md")
    assert caught.value.code == "card-markers"
    assert str(caught.value).startswith("README.md: line ")
    assert what in caught.value.message
    if line:
        assert f"line {line}:" in caught.value.message


def test_a_card_without_markers_is_refused() -> None:
    with pytest.raises(BadInputError, match="without the region `metadata`"):
        find_regions(b"# Mine\n")


def test_content_that_holds_a_marker_is_refused() -> None:
    with pytest.raises(BadInputError):
        replace_regions(CARD.encode(), {**NEW, "preview": "<!-- END quant:preview -->"})
