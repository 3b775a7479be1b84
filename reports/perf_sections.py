"""Runs of the performance tests and their history as sections: rulings, figures, how each came about over time."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from waveproof.perf.history import History, Key, Point
from waveproof.perf.night import MISSING, ground
from waveproof.perf.records import GRAVITY, Measurement, Outcome, Place, Quantity, Ruling
from waveproof.perf.run_files import Run
from waveproof.reports.picture_style import short_number, short_seconds
from waveproof.reports.sections import Picture, Section, Table, section_of
from waveproof.reports.summary import count

STALE_BY_REASON = "Stale, by reason"
"""Title of a table."""

LEAST_GROUPED = 4
"""Rulings; fewer are read faster one by one."""

WAYS = ("clock: ", "coins: ", "cold: ")
"""How notes begin that say how something was measured, and nothing against it."""


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
    told = shown_outcomes(one.outcome for one in ordered)
    warnings = [] if run.rulings else ["Nothing was judged: there are figures, and no rulings on them."]
    if not run.ledger_head and run.rulings:
        held = any(one.outcome == "stale" for one in ordered)
        knew = "The ledger is empty" if held else "The run knew no ledger"
        warnings.append(f"{knew}: nothing was held against a signed baseline.")
    lead = f"{told}. " if told else ""
    groups = _groups(ordered)
    table = Table(
        "",
        ("outcome", "case", "quantity", "against", "effect", "interval", "tolerance", "why"),
        tuple(map(_ruling_row, ordered)),
        "Effect: new over old, or the reverse where higher is better, so that above 1 is worse.",
        (4, 5, 6),
    )
    return Section(
        f"Rulings of {_name(run)}", f"{lead}{_origin(run)}", (*groups, table) if ordered else (), (), tuple(warnings)
    )


def _groups(rulings: Sequence[Ruling]) -> tuple[Table, ...]:
    """What is stale without being worse or better, by reason; none where it is few."""
    cases: dict[str, list[str]] = {}
    for one in rulings:
        if _unheld(one):
            cases.setdefault(ground(one), []).append(one.case)
    if sum(map(len, cases.values())) < LEAST_GROUPED:
        return ()
    rows = [
        (str(len(of)), str(len({case.partition("/")[0] for case in of})), why)
        for why, of in sorted(cases.items(), key=lambda item: -len(item[1]))
    ]
    return (Table(STALE_BY_REASON, ("figures", "operators", "why"), tuple(rows), "", (0, 1)),)


def _unheld(one: Ruling) -> bool:
    return one.outcome == "stale" and one.against != MISSING and one.effect == 1


def figures_section(run: Run) -> Section:
    """Every measurement of a run, with what its notes say against it first; how it was measured is in the lead."""
    noted = Counter(note for one in run.measurements for note in one.notes)
    total = len(run.measurements)
    ways: dict[str, list[str]] = {}
    for note in noted:
        if note.startswith(WAYS):
            ways.setdefault(note.partition(": ")[0], []).append(note.partition(": ")[2])
    lead = " ".join(f"{way[:1].upper()}{way[1:]}: {', '.join(told)}." for way, told in ways.items())
    table = Table(
        "",
        ("case", "quantity", "median", "samples", "spread", "place"),
        tuple(map(_figure_row, run.measurements)),
        "Spread: (third quartile - first quartile) over the median; counts have none.",
        (2, 3, 4),
    )
    return Section(
        f"Figures of {_name(run)}",
        lead if total else "The run measured nothing.",
        (table,) if total else (),
        (),
        tuple(
            f"{note} ({amount} of {count(total, 'figure')})"
            for note, amount in noted.items()
            if not note.startswith(WAYS)
        ),
    )


def history_section(history: History, pictures: Sequence[Picture] = (), keys: Sequence[Key] | None = None) -> Section:
    """A row for each key of a history, all if none are given: where it began, where it was, where it is."""
    chosen = history.keys() if keys is None else keys
    rows = tuple(_history_row(key, points) for key in chosen if (points := history.series(key)))
    # What pytest-benchmark times during a night comes in a file of its own, and is no other night.
    runs = [run for run in history.runs() if run.source != "pytest-benchmark"] or history.runs()
    table = Table(
        "",
        ("case", "quantity", "runs", "first", "before", "latest", "since before", "since first", "place"),
        rows,
        "Medians of a run. Changes say how much worse (+) or better (-) it is; runs of other versions are in the row "
        "too. A change here is no ruling: the gate's are above.",
        (2, 3, 4, 5, 6, 7),
    )
    span = "No run yet."
    if runs:
        days = list(dict.fromkeys(f"{run.when:%Y-%m-%d}" for run in (runs[0], runs[-1])))
        span = f"{count(len(runs), 'run')} from {' to '.join(days)}."
    return Section("History", span, (table,) if rows else (), tuple(pictures))


def shown_outcomes(outcomes: Iterable[Outcome]) -> str:
    """``1 regress, 62 pass``: the gravest first."""
    amounts = Counter(outcomes)
    return ", ".join(f"{amounts[outcome]} {outcome}" for outcome in reversed(GRAVITY) if amounts[outcome])


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
        "" if _unheld(one) else f"{one.effect:.4g}",
        *_confidence_cells(one),
        one.reason,
    )


def _confidence_cells(one: Ruling) -> tuple[str, str]:
    """Interval and tolerance, where there was a comparison that has them."""
    if not one.confidence:
        return "", ""
    exact = (one.low, one.high) == (one.effect, one.effect)
    return "exact" if exact else f"{one.low:.4g} to {one.high:.4g}", f"{100 * one.tolerance:.3g} %"


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
