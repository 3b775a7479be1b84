"""Runs of the performance tests and their history as sections: rulings, figures, how each came about over time."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from waveproof.perf.history import History, Key, Point
from waveproof.perf.records import GRAVITY, Measurement, Place, Quantity, Ruling
from waveproof.perf.run_files import Run
from waveproof.reports.picture_style import short_number, short_seconds
from waveproof.reports.sections import Picture, Section, Table, section_of


def run_sections(run: Run) -> tuple[Section, ...]:
    """What a run came to: its rulings, the gravest first, and every figure with its place."""
    return (rulings_section(run), figures_section(run))


def left_sections(document: object) -> tuple[Section, ...]:
    """What the tests left to be read, in the document that ``--perf-results`` wrote; none of other documents."""
    fields = document.get("sections", ()) if isinstance(document, dict) else ()
    return tuple(map(section_of, fields))


def rulings_section(run: Run) -> Section:
    """What the gate said of a run."""
    ordered = sorted(run.rulings, key=lambda one: (-GRAVITY.index(one.outcome), one.case, one.quantity))
    amounts = Counter(one.outcome for one in ordered)
    told = ", ".join(f"{amounts[outcome]} {outcome}" for outcome in reversed(GRAVITY) if amounts[outcome])
    warnings = [] if run.rulings else ["Nothing was judged: there are figures, and no rulings on them."]
    if not run.ledger_head and run.rulings:
        warnings.append("The run knew no ledger: nothing was held against a signed baseline.")
    lead = f"{told}. " if told else ""
    table = Table(
        "",
        ("outcome", "case", "quantity", "against", "effect", "interval", "tolerance", "why"),
        tuple(map(_ruling_row, ordered)),
        "Effect: new over old, or the reverse where higher is better, so that above 1 is worse.",
        (4, 5, 6),
    )
    return Section(
        f"Rulings of {_name(run)}", f"{lead}{_origin(run)}", (table,) if ordered else (), (), tuple(warnings)
    )


def figures_section(run: Run) -> Section:
    """Every measurement of a run, with what its notes say against it first."""
    noted = Counter(note for one in run.measurements for note in one.notes)
    total = len(run.measurements)
    table = Table(
        "",
        ("case", "quantity", "median", "samples", "spread", "place"),
        tuple(map(_figure_row, run.measurements)),
        "Spread: (third quartile - first quartile) over the median; counts have none.",
        (2, 3, 4),
    )
    return Section(
        f"Figures of {_name(run)}",
        "" if total else "The run measured nothing.",
        (table,) if total else (),
        (),
        tuple(f"{note} ({amount} of {total} figures)" for note, amount in noted.items()),
    )


def history_section(history: History, pictures: Sequence[Picture] = ()) -> Section:
    """A row for each key of a history: where it began, where it was, where it is."""
    keys = history.keys()
    rows = tuple(_history_row(key, points) for key in keys if (points := history.series(key)))
    runs = history.runs()
    table = Table(
        "",
        ("case", "quantity", "runs", "first", "before", "latest", "since before", "since first", "place"),
        rows,
        "Medians of a run. Changes say how much worse (+) or better (-) it is; runs of other versions are in the row "
        "too. A change here is no ruling: the gate's are above.",
        (2, 3, 4, 5, 6, 7),
    )
    span = f"{len(runs)} runs from {runs[0].when:%Y-%m-%d} to {runs[-1].when:%Y-%m-%d}." if runs else "No run yet."
    return Section("History", span, (table,) if rows else (), tuple(pictures))


def shown_value(value: float, quantity: Quantity) -> str:
    """``12.3 µs``, ``1,327,104 B``, ``54.1 tok/s``: counts in full, since any change of one is real."""
    if quantity.unit == "s":
        return short_seconds(value)
    figure = f"{value:,.0f}" if quantity.exact and value == round(value) else short_number(value)
    return figure if quantity.unit == "1" else f"{figure} {quantity.unit}"


def shown_place(place: Place) -> str:
    """Runtime, arch and device, as far as they are known."""
    return " ".join(part for part in place.without_versions() if part)


def shown_change(old: float, new: float, quantity: Quantity) -> str:
    """``+3.1 %``: how much worse it is, whichever way is worse for the quantity."""
    worse = quantity.worsening(old, new)
    if worse == 1:
        return "0"
    return f"{100 * (worse - 1):+.3g} %" if math.isfinite(worse) else "from 0"


def versions_of(runs: Sequence[Run]) -> dict[str, str]:
    """Of each distribution the versions that were measured, in the order of their names."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for one in run.measurements:
            for name, version in one.place.versions.items():
                found.setdefault(name, {})[version] = None
    return {name: " and ".join(versions) for name, versions in sorted(found.items())}


def _ruling_row(one: Ruling) -> tuple[str, ...]:
    return (
        one.outcome,
        one.case,
        one.quantity,
        one.against,
        f"{one.effect:.4g}",
        f"{one.low:.4g} to {one.high:.4g}" if (one.low, one.high) != (one.effect, one.effect) else "exact",
        f"{100 * one.tolerance:.3g} %",
        one.reason,
    )


def _figure_row(one: Measurement) -> tuple[str, ...]:
    median, spread = one.median, ""
    if len(one.values) > 3 and median:
        first, _, third = statistics.quantiles(one.values, n=4)
        spread = f"{100 * (third - first) / median:.2g} %"
    return (
        one.case,
        one.quantity.name,
        shown_value(median, one.quantity),
        str(len(one.values)),
        spread,
        shown_place(one.place),
    )


def _history_row(key: Key, points: Sequence[Point]) -> tuple[str, ...]:
    case, name, _ = key
    first, latest = points[0].measurement, points[-1].measurement
    before = points[-2].measurement if len(points) > 1 else None
    quantity = latest.quantity
    return (
        case,
        name,
        str(len({point.run for point in points})),
        shown_value(first.median, quantity),
        shown_value(before.median, quantity) if before else "",
        shown_value(latest.median, quantity),
        shown_change(before.median, latest.median, quantity) if before else "",
        shown_change(first.median, latest.median, quantity) if before else "",
        shown_place(latest.place),
    )


def _name(run: Run) -> str:
    return f"the run of {run.when:%Y-%m-%d %H:%M} UTC"


def _origin(run: Run) -> str:
    commit = f", commit {run.commit}" if run.commit else ""
    return f"Run {run.id} from {run.source}{commit}."
