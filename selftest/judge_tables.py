"""The figures on the sampling judges as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Column, Table

from waveproof.golden.judges.evidence import most_false_alarms
from waveproof.selftest.judge_figures import (
    CONFIDENCE,
    LOOSE_ALPHA,
    Detection,
    Figures,
    JudgeRuns,
    StreamRuns,
    by_fault,
)


def tables(figures: Figures) -> Iterator[Table]:
    """Sampling judges with both error rates; the anytime-valid test on right decoders, then on faulty ones."""
    yield _judge_table(figures.judges)
    yield _right_table(figures.rights)
    yield _detection_table(figures)


def _number(text: str) -> Column:
    return Column(text, justify="right")


def _judge_table(judges: Sequence[JudgeRuns]) -> Table:
    table = Table(
        "judge",
        "right sampler",
        _number("draws"),
        _number("runs"),
        _number("alpha"),
        _number("false alarms"),
        _number("allowed"),
        _number("detectable"),
        _number("found at it"),
        _number("due"),
        title="Sampling judges: alarms on right samplers, finds of the hardest law at the detectable deviation",
        box=box.SIMPLE,
    )
    for one in judges:
        table.add_row(
            one.judge,
            one.sample,
            f"{one.n:,}",
            f"{one.runs:,}",
            f"{one.alpha:g}",
            str(one.alarms),
            f"<= {one.allowed}",
            f"{one.detectable:.4f}",
            str(one.found),
            f">= {one.due} (power {one.power:g})",
        )
    return table


def _right_table(rights: Sequence[StreamRuns]) -> Table:
    table = Table(
        "right decoder",
        _number("streams"),
        _number("tokens each"),
        _number("alpha"),
        _number("false alarms"),
        _number("allowed"),
        _number(f"at alpha {LOOSE_ALPHA:g}"),
        _number("allowed"),
        _number("highest wealth"),
        title="Anytime-valid test on right decoders, wealth looked at after every token",
        box=box.SIMPLE,
    )
    for one in rights:
        table.add_row(
            one.configuration,
            f"{one.streams:,}",
            f"{one.tokens:,}",
            f"{one.alpha:g}",
            str(one.alarms),
            f"<= {one.allowed}",
            str(one.loose_alarms),
            f"<= {one.loose_allowed}",
            f"{10.0**one.highest:.3g}",
        )
    streams = sum(one.streams for one in rights)
    table.add_section()
    table.add_row(
        "all",
        f"{streams:,}",
        "",
        f"{rights[0].alpha:g}",
        str(sum(one.alarms for one in rights)),
        f"<= {most_false_alarms(streams, rights[0].alpha, CONFIDENCE)}",
        str(sum(one.loose_alarms for one in rights)),
        f"<= {most_false_alarms(streams, LOOSE_ALPHA, CONFIDENCE)}",
        f"{10.0 ** max(one.highest for one in rights):.3g}",
    )
    return table


def _detection_table(figures: Figures) -> Table:
    rows = by_fault(figures.detections)
    views = list(dict.fromkeys(one.view for one in figures.detections))
    first = figures.detections[0]
    table = Table(
        "fault",
        *(column for view in views for column in (_number(view), "by")),
        title=f"Tokens until rejection at alpha {figures.rights[0].alpha:g}, median of {first.streams} streams "
        f"(a right verifier accepts {figures.accepted:.0%} of the drafts)",
        box=box.SIMPLE,
    )
    for fault, seen in rows.items():
        table.add_row(fault, *(cell for one in seen for cell in (_median(one), one.bettor)))
    return table


def _median(one: Detection) -> str:
    if one.median is not None:
        return f"{one.median:,.0f}"
    if one.found:
        return f"{one.found} of {one.streams} in {one.horizon:,}"
    return f"never in {one.horizon:,}"
