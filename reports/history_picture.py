"""The history of one figure as a picture: every run, change points, the anchor, what is let pass, other versions."""

from __future__ import annotations

import hashlib
import itertools
import re
import statistics
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waveproof.perf.change_points import ChangePoint
from waveproof.perf.history import Point
from waveproof.perf.night import DRIFT
from waveproof.perf.records import Measurement, version_changes
from waveproof.reports.picture_style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    QUIET,
    VERMILLION,
    figure,
    png_of,
    short_number,
    short_seconds,
    style,
)
from waveproof.reports.sections import Picture
from waveproof.reports.summary import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 60
"""Up to so many runs each has a marker and a bar from its smallest to its largest sample."""

MOST_LABELS = 10
"""Of versions; more would lie on each other."""


MOST_TITLE = 92
"""Letters of a line of the title."""

MOST_NAME = 120
"""Letters of a picture's name; a digest follows where it is longer."""


class NoHistory(ValueError):
    """There is no run to draw."""


def history_picture(
    points: Sequence[Point],
    changes: Sequence[ChangePoint] = (),
    baseline: Measurement | None = None,
    anchor: Measurement | None = None,
    tolerance: float = 0.0,
) -> Picture:
    """Medians over runs, evenly spaced, since nights without a run say nothing.

    Args:
        points: of one key, the oldest first.
        changes: of these points.
        baseline: the figure in force, with a band of the tolerance round it.
        anchor: the frozen figure; a line besides it shows where cumulative drift is no longer let pass.
        tolerance: relative.

    Raises:
        NoHistory: no point.
    """
    if not points:
        raise NoHistory("no run to draw: import one first")
    medians = [point.measurement.median for point in points]
    quantity = points[0].measurement.quantity
    with style():
        drawn = figure(9, 4.5)
        axes = drawn.subplots()
        _runs(axes, points, medians)
        if not quantity.exact:
            _levels(axes, medians, changes)
        if baseline is not None:
            level = baseline.median
            axes.axhspan(level / (1 + tolerance), level * (1 + tolerance), color=GREEN, alpha=0.15, linewidth=0)
            axes.axhline(level, color=GREEN, linewidth=1, label=f"baseline ± {100 * tolerance:g} %")
        if anchor is not None:
            worst = anchor.median * (1 + DRIFT) if not quantity.higher_is_better else anchor.median / (1 + DRIFT)
            axes.axhline(anchor.median, color=INK, linewidth=1.2, linestyle="--", label="anchor")
            if max(abs(one - anchor.median) for one in medians) > abs(worst - anchor.median) / 2:  # else far off
                told = f"anchor, {100 * DRIFT:g} % worse"
                axes.axhline(worst, color=VERMILLION, linewidth=1, linestyle=":", label=told)
        axes.margins(x=0.02, y=0.22 if changes else 0.12)
        if len(set(medians)) == 1 and baseline is None:
            axes.set_ylim(medians[0] * 0.95 - 1e-12, medians[0] * 1.05 + 1e-12)
        _changes(axes, medians, changes)
        _versions(axes, points)
        _ticks(axes, points)
        axes.set_ylabel(f"{quantity.name}{'' if quantity.unit in ('1', 's') else f' ({quantity.unit})'}")
        better = "higher" if quantity.higher_is_better else "lower"
        place = " ".join(filter(None, points[0].measurement.place.without_versions()))
        # Kernels' names are part of cases: in one line, some are three times as wide as the picture and leave no room.
        case = "\n".join(textwrap.wrap(points[0].measurement.case, MOST_TITLE))
        axes.set_title(f"{case}\n{place}, {better} is better", fontsize=10)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=5)
        png = png_of(drawn)
    return Picture(_name(points[0].measurement), png, _caption(points, medians, changes))


def _name(measured: Measurement) -> str:
    """Of a file: file systems take 255 bytes, and what is cut off is told apart by its digest."""
    place = " ".join(filter(None, measured.place.without_versions()))
    text = f"history_{measured.case}_{measured.quantity.name}_{place}"
    name = re.sub(r"[^\w.=-]+", "_", text).strip("_")
    return name if len(name) <= MOST_NAME else f"{name[:MOST_NAME]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def change_text(change: ChangePoint) -> str:
    """``+5.2 % (4.8 to 5.6) worse``; exact quantities have no interval."""
    told = f"{100 * (change.effect - 1):+.3g} %"
    if change.confidence < 1:
        told += f" ({100 * (change.low - 1):+.3g} to {100 * (change.high - 1):+.3g})"
    return f"{told} {'worse' if change.worse else 'better'}"


def _runs(axes: Axes, points: Sequence[Point], medians: Sequence[float]) -> None:
    numbers = range(len(points))
    few = len(points) <= FEW
    if few and any(len(point.measurement.values) > 1 for point in points):
        low = [min(point.measurement.values) for point in points]
        high = [max(point.measurement.values) for point in points]
        axes.vlines(numbers, low, high, color=BLUE, alpha=0.25, linewidth=2, label="samples, all")
    kind: dict[str, Any] = (
        {"marker": "o", "linewidth": 1.0} if few else {"marker": ".", "linewidth": 0.5, "markersize": 4}
    )
    axes.plot(numbers, medians, color=BLUE, label="median of a run", **kind)


def _levels(axes: Axes, medians: Sequence[float], changes: Sequence[ChangePoint]) -> None:
    """The median between changes."""
    ends = [0, *(change.index for change in changes), len(medians)]
    for number, (begin, end) in enumerate(itertools.pairwise(ends) if changes else ()):
        level = statistics.median(medians[begin:end])
        told = "between changes" if not number else "_nolegend_"
        axes.hlines(level, begin - 0.5, end - 0.5, color=INK, linewidth=1.6, alpha=0.7, label=told)


def _changes(axes: Axes, medians: Sequence[float], changes: Sequence[ChangePoint]) -> None:
    """A line between two runs, with the size; heights alternate, so that neighbours do not lie on each other."""
    for number, change in enumerate(changes):
        colour = VERMILLION if change.worse else GREEN
        axes.axvline(change.index - 0.5, color=colour, linewidth=1.6)
        if len(changes) <= MOST_LABELS:
            right = change.index > 0.7 * len(medians)
            axes.annotate(
                f"{'▲' if change.worse else '▼'} {100 * (change.effect - 1):+.3g} %",
                (change.index - 0.5, 0.97 - 0.06 * (number % 3)), xycoords=("data", "axes fraction"),
                xytext=(-4 if right else 4, 0), textcoords="offset points", ha="right" if right else "left",
                va="top", fontsize=9, color=colour, fontweight="bold",
            )  # fmt: skip


def _versions(axes: Axes, points: Sequence[Point]) -> None:
    """A dotted line where something else was installed, with what is new."""
    places = [point.measurement.place.versions for point in points]
    found = [(i, told) for i in range(1, len(places)) if (told := version_changes(places[i - 1], places[i]))]
    for number, (index, told) in enumerate(found):
        axes.axvline(
            index - 0.5, color=ORANGE, linewidth=1.2, linestyle=":", label=None if number else "other versions"
        )
        if len(found) <= MOST_LABELS:
            new = ", ".join(re.sub(r" \S+ -> ", " ", one) for one in told[:2])
            more = f" +{len(told) - 2}" if len(told) > 2 else ""
            axes.annotate(
                f"{new}{more}", (index - 0.5, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0),
                textcoords="offset points", rotation=90, fontsize=7.5, color=QUIET, va="bottom",
            )  # fmt: skip


def _ticks(axes: Axes, points: Sequence[Point]) -> None:
    """At most eight dates; commits too where there are few runs."""
    from matplotlib.ticker import FuncFormatter

    step = max(1, -(-len(points) // 8))
    at = list(range(0, len(points), step))
    axes.set_xticks(at)
    commits = len(points) <= 8
    axes.set_xticklabels(
        [f"{points[i].when:%Y-%m-%d}" + (f"\n{points[i].commit[:8]}" if commits else "") for i in at], fontsize=8
    )
    form = short_seconds if points[0].measurement.quantity.unit == "s" else short_number
    low, high = axes.get_ylim()
    # Counts that differ in the fifth digit would all read the same.
    close = high < 1.02 * low
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}" if close else form(value)))


def _caption(points: Sequence[Point], medians: Sequence[float], changes: Sequence[ChangePoint]) -> str:
    first, last = points[0], points[-1]
    unit = points[0].measurement.quantity.unit
    told = (
        f"{count(len(points), 'run')} from {first.when:%Y-%m-%d} to {last.when:%Y-%m-%d}, "
        f"{medians[0]:.6g} to {medians[-1]:.6g}"
    )
    told += "" if unit == "1" else f" {unit}"
    found = "; ".join(f"{change.after.when:%Y-%m-%d} {change_text(change)}" for change in changes)
    return f"{last.measurement.case}: {told}. Changes: {found or 'none found'}."
