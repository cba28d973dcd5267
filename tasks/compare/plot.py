"""The comparison as one picture: accept length with its interval, and speed with its range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.compare.rows import Row

INK, ACCENT = "#22303c", "#0f766e"


def draw(heads: Sequence[Row], steps: Sequence[Row], path: Path) -> None:
    """Write a PNG: left the heads side by side, right the sweep over steps; speed below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex="col", squeeze=False)
    for column, (rows, title) in enumerate(
        ((heads, "Draft heads"), (steps, "Draft steps a verification"))
    ):
        names = [row.draft_head if column == 0 else str(row.num_steps) for row in rows]
        _points(axes[0][column], names, [_length(row) for row in rows])
        _points(axes[1][column], names, [_speed(row) for row in rows])
        axes[0][column].set_title(title, loc="left", color=INK, fontsize=11, weight="bold")
    axes[0][0].set_ylabel("accept length", color=INK)
    axes[1][0].set_ylabel("output tokens a second", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


Point = tuple[float, float, float] | None
"""(low, middle, high); None where nothing was measured."""


def _length(row: Row) -> Point:
    if row.accept_length is None or row.low is None or row.high is None:
        return None
    return row.low, row.accept_length, row.high


def _speed(row: Row) -> Point:
    if row.tokens_per_second is None or row.slowest_round is None or row.fastest_round is None:
        return None
    return row.slowest_round, row.tokens_per_second, row.fastest_round


def _points(axes: Any, names: Sequence[str], points: Sequence[Point]) -> None:
    for place, point in enumerate(points):
        if point is None:
            continue
        low, middle, high = point
        axes.plot([place, place], [low, high], color=ACCENT, linewidth=5, solid_capstyle="round")
        axes.plot([place], [middle], "o", color=INK, markersize=7)
        axes.annotate(f"{middle:.3g}", (place, middle), xytext=(9, 0), textcoords="offset points")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, max(len(names), 1) - 0.2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
