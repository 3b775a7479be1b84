"""The end-to-end table in the terminal: what each engine generated, how its speculation went, and the test of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from waveproof.reports.matrix import on_terminal
from waveproof.reports.summary import count
from waveproof.reports.verdicts import EngineRow

_HEADER = ("engine\n  draft", "n", "acc.\n/step", "rej.\n/step", "G", "df", "p-value", "bias\nseen", "s", "verdict")
_STYLES = {"faithful": "green", "unfaithful": "yellow", "inconclusive": "magenta"}
_NOT_DUE = "bold red"
_INDENT = 2
_ROOMY = 100
"""From so many columns of the terminal on, those of the table stand two apart."""


def render_engines(rows: Sequence[EngineRow], width: int, colour: bool) -> str:
    """The table, ``width`` characters wide, and a line on both error rates; empty where there are no rows.

    Without ``colour`` it is free of escape sequences.
    """
    # Test processes finish in no order of engines.
    rows = sorted(rows, key=lambda row: row.engine)
    return on_terminal([*_lines(rows, width), _error_rates(rows)], width, colour) if rows else ""


def _lines(rows: Sequence[EngineRow], width: int) -> Iterable[RenderableType]:
    """Each engine's name above its rows: a line is too short for both."""
    lines = [_cells(row) for row in rows]
    header = [Text(name, style="bold") for name in _HEADER]
    drafts, *figures, verdicts = (max(map(_width, column)) for column in zip(header, *lines, strict=True))
    drafts += _INDENT
    gap = 2 if width >= _ROOMY else 1
    # Figures are whole at any width, so that the two texts share what is left.
    left = max(width - sum(figures) - gap * (len(header) - 1), 2)
    verdicts = min(verdicts, max(left // 2, left - drafts))
    widths = [min(drafts, left - verdicts), *figures, verdicts]

    def grid(first: RenderableType, *others: Text) -> Table:
        table = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
        for place, room in enumerate(widths):
            table.add_column(width=room, justify="right" if 0 < place < len(widths) - 1 else "left", overflow="fold")
        table.add_row(first, *others)
        return table

    yield grid(*header)
    for engine, members in groupby(zip(rows, lines, strict=True), lambda member: member[0].engine):
        yield Text(engine)
        yield from (grid(Padding(draft, (0, 0, 0, _INDENT)), *others) for _, (draft, *others) in members)


def _cells(row: EngineRow) -> list[Text]:
    figures = (
        str(row.n),
        f"{row.accepted_per_step:.2f}",
        f"{row.rejected_per_step:.2f}",
        f"{row.statistic:.1f}",
        str(row.df),
        f"{row.p_value:.2g}",
        f"{row.detectable:.3f}",
        f"{row.seconds:.1f}",
    )
    return [Text(row.draft_kind), *map(Text, figures), _verdict(row)]


def _verdict(row: EngineRow) -> Text:
    """What was found, and of a control that it is what should be, as a reader would else take it for bad news."""
    if row.verdict != row.expected:
        return Text(f"{row.verdict}, must be {row.expected}", style=_NOT_DUE)
    return Text(row.verdict if row.expected == "faithful" else f"{row.verdict}, as due", style=_STYLES[row.verdict])


def _width(text: Text) -> int:
    return max(map(len, text.plain.splitlines()))


def _error_rates(rows: Sequence[EngineRow]) -> Text:
    alarms, power = sum(row.alpha for row in rows), min(row.power for row in rows)
    return Text(
        f"{count(len(rows), 'test')} of samples: {alarms:.1e} false alarms a run; the bias that is said to be seen is "
        f"found with power {power:g}"
    )
