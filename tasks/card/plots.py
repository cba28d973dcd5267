"""The card's two plots: accuracy with its interval, and how many draft tokens were accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.card.escape import Safe
from tasks.card.evidence import Evidence
from tasks.card.styles import method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, ACCENT, BAR = "#22303c", "#8a97a3", "#0f766e", "#5eaaa8"
SIZE = (7.0, 2.3)
DPI = 150


@dataclass(frozen=True)
class Plot:
    """A plot that the evidence has the numbers for.

    Attributes:
        path: where it lies in the repository.
        alt: what it shows, in words.
        draw: draws it to the file given; the same bytes each time.
    """

    path: Safe
    alt: Safe
    draw: Callable[[Path], None]


def plots_of(evidence: Evidence, problems: str) -> list[Plot]:
    """The plots of a release; nothing is drawn yet. `problems`: what accuracy was measured on."""
    plots = []
    report = evidence.trees.get("gates/gsm8k", {})
    if evidence.has("gates/gsm8k", "measured", "accuracy") and report["interval"]:
        shown = evidence.show("percent", "gates/gsm8k", "measured", "accuracy")
        alt = Safe(f"Accuracy {shown} with its interval")
        plots.append(Plot(Safe("plots/accuracy.png"), alt, partial(_accuracy, report, problems)))
    counts = accepted_histogram(evidence)
    if counts and evidence.has("gates/acceptance", "measured", "accept_length"):
        shown = evidence.show("fixed3", "gates/acceptance", "measured", "accept_length")
        alt = Safe(f"Accepted draft tokens, mean accept length {shown}")
        mean = float(evidence.value("gates/acceptance", "measured", "accept_length"))
        plots.append(Plot(Safe("plots/acceptance.png"), alt, partial(_accept, mean, counts)))
    return plots


def accepted_histogram(evidence: Evidence) -> list[int]:
    """Verifications by number of draft tokens accepted (0, 1, ...); empty when not measured."""
    if not evidence.has("gates/acceptance", "measured", "histogram"):
        return []
    found = evidence.value("gates/acceptance", "measured", "histogram")
    if isinstance(found, Mapping):
        found = [found[key] for key in sorted(found, key=int)]
    return [int(count) for count in found] if isinstance(found, Sequence) else []


def _accuracy(report: Mapping[str, Any], problems: str, path: Path) -> None:
    figure, axes = _canvas()
    interval, share = report["interval"], 100 * report["measured"]["accuracy"]
    low, high = 100 * interval["low"], 100 * interval["high"]
    bar = 100 * report["threshold"]["min_accuracy"]
    axes.plot([low, high], [0, 0], color=BAR, linewidth=9, solid_capstyle="round", zorder=2)
    axes.plot([share], [0], "o", color=INK, markersize=11, zorder=3)
    axes.axvline(bar, color=ACCENT, linewidth=1.6, linestyle=(0, (4, 3)), zorder=1)
    margin = max(1.0, 0.25 * (max(high, bar) - min(low, bar)))
    axes.set_xlim(min(low, bar) - margin, min(100.4, max(high, bar) + margin))
    axes.set_ylim(-1, 1)
    axes.annotate(
        f"{share:.2f} %", (share, 0.24), ha="center", color=INK, fontsize=12, weight="bold"
    )
    axes.annotate(
        f"required {bar:.2f} %",
        (bar, -0.82),
        xytext=(6 if bar <= share else -6, 0),
        textcoords="offset points",
        color=ACCENT,
        fontsize=9,
        ha="left" if bar <= share else "right",
    )
    axes.set_yticks([])
    _title(
        axes,
        f"Accuracy on {problems}",
        f"{method(interval['method'])}, {interval['confidence']:.0%}",
    )
    _save(figure, path)


def _accept(mean: float, histogram: list[int], path: Path) -> None:
    figure, axes = _canvas()
    total = max(1, sum(histogram))
    shares = [100 * count / total for count in histogram]
    places = range(1, len(shares) + 1)
    axes.bar(places, shares, width=0.62, color=BAR, zorder=2)
    for place, share in zip(places, shares, strict=True):
        axes.annotate(f"{share:.1f} %", (place, share + 2), ha="center", color=INK, fontsize=10)
    axes.set_ylim(0, max(shares) * 1.25)
    axes.set_xticks(list(places))
    axes.set_yticks([])
    axes.set_xlabel("tokens gained in one verification", color=FAINT, fontsize=9)
    axes.axvline(mean, color=INK, linewidth=1.4, linestyle=(0, (4, 3)), zorder=3)
    _title(axes, "Draft acceptance", f"mean {mean:.3f}, {total:,} verifications")
    _save(figure, path)


def _canvas() -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=FAINT, labelsize=9, length=3)
    return figure, axes


def _title(axes: Axes, title: str, detail: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=11, weight="bold", pad=10)
    axes.set_title(detail, loc="right", color=FAINT, fontsize=9, pad=10)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
