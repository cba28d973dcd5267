"""The matrix of faults, printed when the run ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.matrix import Row, table

ROWS: list[Row] = []


@pytest.fixture(scope="session")
def matrix() -> list[Row]:
    return ROWS


@pytest.fixture(scope="session")
def scratch(demo_release: Path) -> Iterator[Path]:
    """A folder on the good checkpoint's file system, so that hard links work."""
    folder = demo_release.parent / "faults-scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ROWS:
        terminalreporter.section("faults x codes")
        terminalreporter.write_line(table(ROWS))
