"""The bars of the requantizer's bench: equal bytes, speed, memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.requant import GIB, measure, report


@pytest.mark.long
def test_the_real_size(tmp_path: Path) -> None:
    found = measure(256, tmp_path)
    print(f"\n{report(found)}")
    assert found["head_bytes"] > 1.6e9 and found["bytes_equal"]
    assert found["whole"]["peak_anonymous"] < GIB
