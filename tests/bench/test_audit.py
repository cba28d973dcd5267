"""The audit's bench at a small size: the pair it builds is right, memory stays small."""

from __future__ import annotations

from pathlib import Path

from tests.bench.audit import measure, report


def test_a_few_experts(tmp_path: Path) -> None:
    found = measure(4, tmp_path)
    assert found["beside the source"]["bytes"] > 2 * found["alone"]["bytes"]
    assert found["beside the source"]["peak_anonymous"] < 1.5 * 2**30
    assert "GB/s" in report(found)
