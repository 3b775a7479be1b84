"""A history as sections: where figures changed for good, how far they are from their anchors, and pictures of both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from waveproof.perf.change_points import ChangePoint, change_points, least_after
from waveproof.perf.history import History, Key, Point
from waveproof.perf.ledger import Ledger
from waveproof.perf.night import DRIFT, TOLERANCE
from waveproof.perf.records import GRAVITY, Outcome, Ruling
from waveproof.reports.history_picture import change_text, history_picture
from waveproof.reports.perf_sections import shown_place, shown_value
from waveproof.reports.sections import Picture, Section, Table
from waveproof.reports.summary import count

MOST_PICTURES = 24
"""On one page."""


@dataclass(frozen=True)
class Course:
    """One key over time."""

    key: Key
    points: tuple[Point, ...]
    changes: tuple[ChangePoint, ...]

    def recently_worse(self, runs: int) -> bool:
        """Whether a change for the worse lies within so many latest runs."""
        return any(change.worse and change.index > len(self.points) - 1 - runs for change in self.changes)


def courses(history: History, keys: Iterable[Key] | None = None) -> tuple[Course, ...]:
    """Keys of a history with their change points; all keys if none are given."""
    found = []
    for key in history.keys() if keys is None else keys:
        points = history.series(key)
        found.append(Course(key, points, change_points(points)))
    return tuple(found)


def matching(pattern: str, quantity: str, keys: Iterable[Key]) -> tuple[Key, ...]:
    """Keys whose case fits: ``*`` is any run of characters, everything else is itself. An empty quantity fits all."""
    rule = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return tuple(key for key in keys if rule.fullmatch(key[0]) and quantity in ("", key[1]))


def changes_section(found: Sequence[Course]) -> Section:
    """When which figure changed, by how much, and what else changed then."""
    rows = [_row(one, change) for one in found for change in one.changes]
    short = [one for one in found if not one.points[-1].measurement.quantity.exact and len(one.points) < _LEAST]
    lead = f"{count(len(rows), 'change')} in the histories of {count(len(found), 'figure')}."
    if short:
        nights = _LEAST - max(len(one.points) for one in short)
        told = f"{_LEAST} runs are the least, {nights} more at least"
        lead += f" Too short to tell: those of {count(len(short), 'noisy figure')}; {told}."
    table = Table(
        "", ("case", "quantity", "change", "between", "commits", "versions", "runs", "place"), tuple(rows),
        "Change: how much worse (+) or better (-), with a 95 % interval where times are noisy. Runs: before and after, "
        "as compared. No ruling: those of the gate are.", (2,),
    )  # fmt: skip
    return Section("Change points", lead, (table,) if rows else ())


def drift_section(found: Sequence[Course], ledger: Ledger) -> Section:
    """Each figure against its frozen anchor, the farthest first; all accepted steps together."""
    rows = []
    for one in found:
        latest = one.points[-1].measurement
        anchor = ledger.anchor(latest)
        if anchor is None:
            continue
        old, new = anchor.measurement.median, latest.median
        worse = latest.quantity.worsening(old, new)
        cells = (
            latest.case, latest.quantity.name, shown_value(old, latest.quantity), f"{anchor.date}",
            shown_value(new, latest.quantity), f"{100 * (worse - 1):+.3g} %", shown_place(latest.place),
        )  # fmt: skip
        rows.append((worse, cells))
    rows.sort(key=lambda row: -row[0])
    table = Table(
        "", ("case", "quantity", "anchor", "of", "now", "since then", "place"), tuple(cells for _, cells in rows),
        f"How much worse (+) or better (-); {100 * DRIFT:g} % worse is the most that is let pass.", (2, 4, 5),
    )  # fmt: skip
    missing = len(found) - len(rows)
    lead = f"{missing} of {len(found)} figures have no anchor: they are not in the ledger." if missing else ""
    return Section("Drift since the anchor", lead, (table,) if rows else ())


def pictures_of(found: Iterable[Course], ledger: Ledger | None = None) -> tuple[Picture, ...]:
    """A picture of each course."""
    drawn = []
    for one in found:
        latest = one.points[-1].measurement
        baseline = ledger.baseline(latest) if ledger else None
        anchor = ledger.anchor(latest) if ledger else None
        picture = history_picture(
            one.points, one.changes,
            baseline.measurement if baseline else None, anchor.measurement if anchor else None,
            0.0 if latest.quantity.exact else TOLERANCE,
        )  # fmt: skip
        drawn.append(picture)
    return tuple(drawn)


def gravest_outcomes(rulings: Iterable[Ruling]) -> dict[tuple[str, str], Outcome]:
    """The gravest outcome of each case and quantity."""
    ordered = sorted(rulings, key=lambda one: GRAVITY.index(one.outcome))
    return {(one.case, one.quantity): one.outcome for one in ordered}


def worth_a_picture(found: Sequence[Course], outcomes: Mapping[tuple[str, str], Outcome]) -> tuple[Course, ...]:
    """What a reader wants to see first: what is not a pass tonight, then what ever changed; not all of hundreds.

    Args:
        found: all courses.
        outcomes: tonight's, of :func:`gravest_outcomes`.
    """
    odd = [one for one in found if outcomes.get(one.key[:2], "pass") != "pass"]
    changed = [one for one in found if one.changes and one not in odd]
    return tuple([*odd, *changed][:MOST_PICTURES])


_LEAST = 2 * least_after(1, balanced=True)


def _row(course: Course, change: ChangePoint) -> tuple[str, ...]:
    before, after = change.before, change.after
    between = f"{before.when:%Y-%m-%d %H:%M} and {after.when:%Y-%m-%d %H:%M}"
    commits = f"{before.commit[:8] or '?'}..{after.commit[:8] or '?'}"
    return (
        course.key[0], course.key[1], change_text(change), between, commits,
        ", ".join(change.versions) or "the same", f"{change.runs[0]} and {change.runs[1]}",
        shown_place(after.measurement.place),
    )  # fmt: skip
