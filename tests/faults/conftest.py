"""The matrix of faults, printed when the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.matrix import Row, table

ROWS: list[Row] = []


@pytest.fixture(scope="session")
def matrix() -> list[Row]:
    return ROWS


@pytest.fixture(scope="session")
def scratch(demo_release: Path) -> Iterator[Path]:
    """A folder on the good checkpoint's file system, so that hard links work."""
    with TemporaryDirectory(prefix="faults-", dir=demo_release.parent) as folder:
        yield Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ROWS:
        terminalreporter.section("faults x codes")
        terminalreporter.write_line(table(ROWS))
