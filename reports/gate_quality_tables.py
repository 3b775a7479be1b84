"""The gate's quality as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waveproof.perf.gate_quality import CONFIDENCE, GATE, MOST_FALSE_ALARMS, Quality
from waveproof.perf.thresholds import LEAST_TOLERANCE
from waveproof.perf.traces import TRACES
from waveproof.reports.sections import Section, Table


def quality_section(found: Sequence[Quality], seconds: float) -> Section:
    """The gate's own figures in full, and alarms and finds of all methods beside each other."""
    ours = [one for one in found if one.method == GATE.name]
    bad = [one for one in ours if not one.holds]
    kinds = {trace.name: trace for trace in TRACES}
    full = Table(
        "The gate",
        ("trace", "what it is", "pairs at most", "on average", "A/A", "false alarms", "per 1,000 at most",
         "A/A open", "+5 %", "found per 100", "at least", "+5 % open", "+5 % passed", ""),
        tuple(
            (one.trace, kinds[one.trace].says, str(one.times), f"{one.used:.0f}", f"{one.unchanged:,}",
             str(one.alarms), f"{1000 * one.most_alarms:.2f}", f"{one.unchanged_open / one.unchanged:.1%}",
             f"{one.changed:,}", f"{100 * one.found / one.changed:.2f}", f"{100 * one.least_found:.2f}",
             f"{one.changed_open / one.changed:.1%}", str(one.missed),
             "as required" if one.holds else "NOT AS REQUIRED")
            for one in ours
        ),
        f"A/A: a side with itself; open: inconclusive. At most, at least: one-sided Clopper-Pearson limits, "
        f"{CONFIDENCE:.0%}; stretches of a recording overlap, coins are independent all the same. Looks after 20, 40, "
        f"80 ... pairs; tolerance {LEAST_TOLERANCE:.1%}, alpha {MOST_FALSE_ALARMS:g} in all.",
        tuple(range(2, 13)),
    )  # fmt: skip
    alarms = _beside(
        "False alarms per 1,000 comparisons of a side with itself",
        found,
        lambda one: 1000 * one.alarms / one.unchanged,
        "Each side as often for all methods, a kind's pairs at most; pytest-benchmark looks for slower only, the "
        "others both ways.",
    )
    finds = _beside(
        "Found per 100 comparisons with a candidate that is 5 % slower in every call",
        found,
        lambda one: 100 * one.found / one.changed,
        "A check for more than 5 % cannot find 5 % in more than about half of all runs; median:2% is there for that.",
    )
    held = "as required on every kind" if not bad else f"NOT as required on {', '.join(one.trace for one in bad)}"
    lead = f"At most 1 false alarm in 1,000 and +5 % found in 99 of 100: {held}. {seconds:.0f} s."
    warnings = tuple(
        f"{one.trace}: {one.alarms} of {one.unchanged:,}, found {one.found} of {one.changed}" for one in bad
    )
    return Section("Quality of the gate", lead, (full, alarms, finds), warnings=warnings)


def _beside(title: str, found: Sequence[Quality], rate: Callable[[Quality], float], note: str) -> Table:
    """One rate of all methods, a row each, by kind of trace."""
    by = {(one.trace, one.method): f"{rate(one):.1f}" for one in found}
    traces, names = (list(dict.fromkeys(column)) for column in zip(*by, strict=True))
    rows = tuple((name, *(by[trace, name] for trace in traces)) for name in names)
    return Table(title, ("method", *traces), rows, note, tuple(range(1, len(traces) + 1)))
