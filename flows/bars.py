"""Progress bars in a terminal; nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from tasks.progress import Progress, silent


@contextmanager
def bars() -> Iterator[Callable[[str], Progress]]:
    """Yield `bar(stage) -> listener`: one line a stage on stderr, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: silent
        return
    columns = (
        TextColumn("{task.fields[stage]:>12}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}% {task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True) as shown:
        lines: dict[str, TaskID] = {}

        def bar(stage: str) -> Progress:
            def tell(fraction: float, words: str) -> None:
                if stage not in lines:
                    lines[stage] = shown.add_task("", total=1.0, stage=stage, words="")
                shown.update(lines[stage], completed=fraction, words=words)

            return tell

        yield bar
