"""Times beside the floor that bytes and FLOP set: pictures over the context's length, and tables for terminal and page.

Whether points were measured, and where, is the caller's to say: :func:`speed_over_context` writes it into the picture
and into its caption, and refuses to draw without.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from waveproof.reports.sections import Picture, Section, Table

if TYPE_CHECKING:
    from waveproof.fixtures.products import Product
    from waveproof.kernels.operators.contract import Call
    from waveproof.perf.gpu_day import Day, Reached, Result


MOST_TOLD = 300
"""Characters of what there is to know of a trial in its row; the JSON has all."""


class NothingToDraw(ValueError):
    """A picture would show nothing, or would not say what it shows; the message says which."""


@dataclass(frozen=True)
class Point:
    """A time at a context length."""

    series: str
    """Who: ``waveproof, cold``."""
    context: float
    """Keys, tokens."""
    seconds: float
    """Median."""
    low: float
    """Smallest sample; as ``seconds`` where there is one."""
    high: float
    """Largest sample."""


@dataclass(frozen=True)
class FloorPoint:
    """The least time at a context length."""

    context: float
    seconds: float
    by: str = ""
    """``HBM`` or ``matrix``: what sets it."""


def speed_over_context(
    points: Sequence[Point],
    floor: Sequence[FloorPoint],
    source: str,
    title: str = "Time over context length",
    name: str = "speed-over-context",
) -> Picture:
    """Time over context length, both logarithmic, each series with its smallest and largest sample, above the floor.

    Args:
        points: at least two lengths.
        floor: of the same work; may be empty.
        source: what the points are: device, versions, date; or that they are composed and not measured.
        title: above.
        name: of the file.

    Raises:
        NothingToDraw: fewer than two lengths, a time that is not positive, or a source that is not given.
    """
    from waveproof.reports.picture_style import BLACK, figure, footnote, line, plain_log, png_of, short_seconds, style

    if not source.strip():
        raise NothingToDraw("source = '': a picture of speed says where its points come from")
    lengths = sorted({one.context for one in points})
    if len(lengths) < 2:
        raise NothingToDraw(f"points at {len(lengths)} context lengths: two are the fewest that show anything")
    marks: tuple[Point | FloorPoint, ...] = (*points, *floor)
    for mark in marks:
        if not (mark.seconds > 0 and mark.context > 0):
            raise NothingToDraw(f"{mark.seconds} s at a context of {mark.context}: both must be positive")
    names = list(dict.fromkeys(one.series for one in points))
    with style():
        drawn = figure(8, 4.8)
        axes = drawn.subplots()
        for number, series in enumerate(names):
            mine = sorted((one for one in points if one.series == series), key=lambda one: one.context)
            middle = [one.seconds for one in mine]
            spread = [
                [max(0.0, one.seconds - one.low) for one in mine],
                [max(0.0, one.high - one.seconds) for one in mine],
            ]
            axes.errorbar([one.context for one in mine], middle, yerr=spread, label=series, **line(number))
        if floor:
            below = sorted(floor, key=lambda one: one.context)
            x, y = [one.context for one in below], [one.seconds for one in below]
            limits = ", ".join(dict.fromkeys(one.by for one in below if one.by))
            axes.plot(x, y, color=BLACK, linestyle="--", label=f"floor ({limits})" if limits else "floor")
            axes.fill_between(x, [min(y) / 3] * len(y), y, color=BLACK, alpha=0.07, linewidth=0)
            axes.set_ylim(bottom=min(y) / 3)
        plain_log(axes.xaxis, lengths if len(lengths) <= 9 else (), base=2)
        plain_log(axes.yaxis, form=short_seconds)
        axes.set_xlabel("context length, tokens")
        axes.set_ylabel("time of a call")
        axes.set_title(title)
        axes.legend()
        footnote(axes, source)
        png = png_of(drawn)
    return Picture(name, png, f"{title}. {_told(points, floor, names)} {source}")


def _told(points: Sequence[Point], floor: Sequence[FloorPoint], names: Sequence[str]) -> str:
    """The ends of each line in words."""
    from waveproof.reports.picture_style import short_seconds

    parts = []
    for series in names:
        mine = sorted((one for one in points if one.series == series), key=lambda one: one.context)
        ends = " to ".join(f"{short_seconds(one.seconds)} at {one.context:,.0f} tokens" for one in (mine[0], mine[-1]))
        parts.append(f"{series}: {ends}{_share_of(mine[-1], floor)}.")
    return " ".join(parts)


def _share_of(point: Point, floor: Sequence[FloorPoint]) -> str:
    for one in floor:
        if one.context == point.context:
            return f", {one.seconds / point.seconds:.0%} of the floor's speed"
    return ""


def day_sections(day: Day) -> tuple[Section, ...]:
    """What a day on a GPU found: trials, times against floors, and the picture where contexts were swept."""
    trials = Table(
        "Trials, in order of importance",
        ("trial", "outcome", "slow/fast", "interval", "asked", "spent s", "what to know"),
        tuple(row for one in day.results for row in _trial_rows(one)),
        numeric=(2, 4, 5),
    )
    reached = [each for one in day.results for each in one.reached]
    times = Table(
        "Times against the floor",
        ("case", "median us", "smallest", "largest", "floor us", "set by", "share"),
        tuple(_reached_row(each) for each in reached),
        "Share: floor over median; 100 % cannot be exceeded. Floors of warm calls may come from caches.",
        numeric=(1, 2, 3, 4, 6),
    )
    place = day.place
    where = f"{place.runtime} {place.arch} {place.device}".strip()
    warnings = [f"{one.trial}: {reason}" for one in day.results if one.state != "measured" for reason in one.reasons]
    pictures = _pictures(reached, f"Measured on {where}; {_versions(place.versions)}")
    lead = f"{where}; budget {day.budget:.0f} s. Medians of calls by {_clocks(day)}."
    tables = (trials, times) if reached else (trials,)
    return (Section("GPU day", lead, tables, pictures, (*warnings, *day.notes)),)


def _trial_rows(result: Result) -> list[tuple[str, ...]]:
    """One for each way; where nothing was asked, the ratio of medians."""
    told = "; ".join((*result.reasons, *result.notes))[:MOST_TOLD]
    spent = f"{result.spent:.1f}"
    rows: list[tuple[str, ...]] = []
    for ruling in result.rulings:
        # The effect is what was asked over what was found.
        ends = (f"{result.asked / end:.3g}" if end else "unbounded" for end in (ruling.high, ruling.low))
        found = f"{result.asked / ruling.effect:.3g}", " to ".join(ends), f"{result.asked:g}"
        rows.append((ruling.case, ruling.outcome, *found, spent, told or ruling.reason))
    if not rows:
        for fast, slow in zip(result.reached[::2], result.reached[1::2], strict=True):
            found = f"{slow.seconds / fast.seconds:.3g}", "-", "-"
            rows.append((f"{result.trial}/{fast.way}", result.outcome, *found, spent, told or "medians"))
    return rows or [(result.trial, result.outcome, "-", "-", "-", spent, told or result.state)]


def _reached_row(one: Reached) -> tuple[str, ...]:
    times = (f"{value * 1e6:,.1f}" for value in (one.seconds, one.low, one.high))
    if one.floor is None or one.share is None:
        return (one.case, *times, "-", "no floor is known", "-")
    return (one.case, *times, f"{one.floor.seconds * 1e6:,.2f}", one.floor.by, f"{one.share:.1%}")


def _pictures(reached: Sequence[Reached], source: str) -> tuple[Picture, ...]:
    """One for each way with two context lengths or more."""
    pictures = []
    for way in dict.fromkeys(one.way for one in reached if one.keys):
        mine = [one for one in reached if one.way == way and one.keys]
        points = [Point(one.provider, one.keys, one.seconds, one.low, one.high) for one in mine]
        floors = {one.keys: FloorPoint(one.keys, one.floor.seconds, one.floor.by) for one in mine if one.floor}
        if len({one.context for one in points}) >= 2:
            title = f"Decode over context length, {way}"
            pictures.append(speed_over_context(points, list(floors.values()), source, title, f"decode-{way}"))
    return tuple(pictures)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions unknown"


def _clocks(day: Day) -> str:
    """Names of the clocks that told the times."""
    found = dict.fromkeys(
        note.removeprefix("clock: ") for one in day.measurements for note in one.notes if note.startswith("clock: ")
    )
    return ", ".join(found) or "no clock: nothing was timed"


def measured_series(series: str, samples: Sequence[tuple[float, Sequence[float]]]) -> list[Point]:
    """Points of samples at context lengths: medians with the smallest and the largest."""
    return [Point(series, context, statistics.median(taken), min(taken), max(taken)) for context, taken in samples]


def roofline_section(named: Sequence[tuple[str, Call]], products: Sequence[Product], cold: bool = True) -> Section:
    """Floors of calls on products, and the peaks that they come from, for the terminal and the page.

    Raises:
        NoFloor: one of the calls has none.
    """
    from waveproof.perf.roofline import PRECISIONS, floor, ridge

    rows = []
    for name, call in named:
        for product in products:
            least = floor(call, product, cold=cold)
            edge = ridge(product, least.precision)
            rows.append(
                (
                    name,
                    product.name,
                    least.precision,
                    f"{least.bytes / 1e6:,.1f}",
                    f"{least.flop / 1e9:,.1f}",
                    f"{least.intensity:.0f}",
                    "unknown" if edge is None else f"{edge:.0f}",
                    f"{least.seconds * 1e6:,.2f}",
                    least.by,
                )
            )
    floors = Table(
        "Least time by the contract" + (", nothing in the caches" if cold else ""),
        ("call", "product", "precision", "MB", "GFLOP", "FLOP/byte", "ridge", "floor us", "set by"),
        tuple(rows),
        "Ridge: FLOP a byte above which the matrix cores set the floor. No figure is measured.",
        numeric=(3, 4, 5, 6, 7),
    )
    peaks = Table(
        "Peaks, dense",
        ("product", "HBM TB/s", *(f"{one} TFLOP/s" for one in PRECISIONS), "source"),
        tuple(_peak_row(product) for product in products),
        "-: no public source, or the product has no such arithmetic.",
        numeric=tuple(range(1, 2 + len(PRECISIONS))),
    )
    return Section("Roofline", "What no right implementation can stay below.", (floors, peaks))


def _peak_row(product: Product) -> tuple[str, ...]:
    from waveproof.perf.roofline import BY_PRODUCT, PRECISIONS, peak_of

    known = [peak_of(product.name, precision) for precision in PRECISIONS]
    source = BY_PRODUCT[product.name].source if product.name in BY_PRODUCT else "none"
    told = ("-" if one is None else f"{one / 1e12:,.1f}" for one in known)
    return product.name, f"{product.bytes_per_second / 1e12:.1f}", *told, source
