"""Every fault, on the demo's good checkpoint, is found under its code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tasks.gates.audit import audit
from tasks.gates.audit.codes import CODES
from tests.faults.inject import Copy, Injected
from tests.faults.matrix import FAULTS, Row, inject

LAST_RESORT = {"audit-stopped"}


def test_the_checkpoint_that_all_start_from_is_good(
    demo_release: Path, demo_source: Path, scratch: Path
) -> None:
    assert audit(demo_release).faults == ()
    result = audit(demo_release, demo_source)
    assert result.faults == ()
    assert result.summary["relative_error"]["tensors"] == result.summary["quantized_modules"]
    copy = Copy(demo_release, scratch / "untouched")
    copy.edit(copy.find(".weight_scale"), lambda array: array)
    assert audit(copy.root, demo_source).faults == ()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_fault(
    fault: Injected, demo_release: Path, demo_source: Path, scratch: Path, matrix: list[Row]
) -> None:
    row = inject(fault, demo_release, demo_source, scratch)
    matrix.append(row)
    assert row.caught, f"found {dict(row.alone or row.beside or {})}"


def test_every_code_has_a_fault_and_every_fault_a_name_of_its_own() -> None:
    assert {fault.code for fault in FAULTS} | LAST_RESORT == set(CODES)
    twice = [name for name, count in Counter(f.name for f in FAULTS).items() if count > 1]
    assert twice == []
    assert len(CODES) >= 40
