"""The conformance matrix in the terminal, and below it every failure cause, waiver and absence by name.

Nothing is told by colour alone: red verdicts are capitals, so that a CI log without colour reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from waveproof.reports.summary import (
    ABSENT,
    Absence,
    Cause,
    Cell,
    Column,
    Matrix,
    WaiverUse,
    absences,
    against_bound,
    count,
    failure_causes,
    other_checks,
    tabulate,
    totals,
    waivers_used,
    word,
)
from waveproof.reports.verdicts import Record, Verdict

STYLES = {
    Verdict.PASS: "green",
    Verdict.WAIVED: "yellow",
    Verdict.INCONCLUSIVE: "magenta",
    Verdict.UNAVAILABLE: "dim",
    Verdict.FAIL: "bold red",
    Verdict.CRASH: "bold red",
    Verdict.TIMEOUT: "bold red",
}

NARROWEST = 40
"""Below this many columns nothing is legible; a narrower terminal wraps."""

_NARROW_COLUMN = 14
"""``0.31 of bound``, ``1 inconclusive``."""
_WIDE_COLUMN = 24
_MARK = 9
"""What stands left of an entry below the matrix: ``TIMEOUT``, ``22 cases``."""
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_CONFIRMED = {
    True: "fails in a clean process",
    False: "did NOT fail in a clean process",
    None: "not yet run in a clean process",
}


def render_matrix(records: Iterable[Record], width: int, colour: bool, encoding: str = "utf-8") -> str:
    """The matrix and the lists below it, ``width`` characters wide; without ``colour`` free of escape sequences.

    ``encoding`` is that of the stream it goes to: where it is not UTF-8, rules are drawn with hyphens.
    """
    width = max(width, NARROWEST)
    rule = "─" if encoding.lower().replace("-", "") in ("utf8", "utf8sig") else "-"
    return on_terminal(_parts(tuple(records), width, rule), width, colour)


def on_terminal(parts: Iterable[RenderableType], width: int, colour: bool) -> str:
    """What rich makes of the parts, ``width`` characters wide; without ``colour`` free of escape sequences."""
    stream = StringIO()
    console = Console(
        file=stream,
        width=max(width, NARROWEST),
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _parts(records: Sequence[Record], width: int, rule: str) -> Iterable[RenderableType]:
    matrix = tabulate(records)
    if matrix.rows:
        yield from _matrix(matrix, width, rule)
    sections: dict[str, list[Iterable[RenderableType]]] = {
        "other checks": [_check(*item) for item in other_checks(records).items()],
        "failures": [_cause(cause) for cause in failure_causes(records)],
        "waived": [_waiver(use) for use in waivers_used(records)],
    }
    for absence in absences(records):
        sections.setdefault(absence.verdict.value, []).append(_absence(absence, matrix))
    for title, entries in sections.items():
        if entries:
            yield _heading(title, width, rule)
            yield from (part for entry in entries for part in entry)
            yield Text("")
    yield _totals(records)


@dataclass(frozen=True)
class _Layout:
    """Widths in characters, gaps not included."""

    label: int
    gap: int
    columns: tuple[tuple[Column, int], ...]


def _layouts(matrix: Matrix, width: int) -> Iterable[_Layout]:
    """The columns, in as many tables below each other as the width asks for.

    Where it is narrow, a column in which nothing ran is squeezed to a hyphen in each cell: its reasons stand below.
    """
    shared = _shared_variants(matrix)
    label = max(max(len(row.provider), 0 if row.operator in shared else len(row.variant) + 1) for row in matrix.rows)
    full = {column: _NARROW_COLUMN for column in matrix.columns}
    squeezed = {
        column: _NARROW_COLUMN if matrix.ran(column) else max(map(len, (column.runtime, column.arch)))
        for column in matrix.columns
    }
    for least, gap in ((full, 2), (squeezed, 2), (squeezed, 1)):
        if _needs(label, gap, least, matrix.columns) <= width:
            break
    tables: list[list[Column]] = [[]]
    for column in matrix.columns:
        if tables[-1] and _needs(label, gap, least, (*tables[-1], column)) > width:
            tables.append([])
        tables[-1].append(column)
    for table in tables:
        growing = [column for column in table if least[column] == _NARROW_COLUMN]
        spare = width - _needs(label, gap, least, table)
        more = min(spare // len(growing), _WIDE_COLUMN - _NARROW_COLUMN) if growing and len(tables) == 1 else 0
        yield _Layout(label, gap, tuple((column, least[column] + more * (column in growing)) for column in table))


def _needs(label: int, gap: int, least: Mapping[Column, int], columns: Iterable[Column]) -> int:
    return label + sum(gap + least[column] for column in columns)


def _shared_variants(matrix: Matrix) -> dict[str, str]:
    """Operators whose implementations all declare the same variant: it is said once, in their heading."""
    declared: dict[str, set[str]] = {}
    for row in matrix.rows:
        declared.setdefault(row.operator, set()).add(row.variant)
    return {operator: next(iter(variants)) for operator, variants in declared.items() if len(variants) == 1}


def _matrix(matrix: Matrix, width: int, rule: str) -> Iterable[RenderableType]:
    shared = _shared_variants(matrix)
    for layout in _layouts(matrix, width):
        header = _grid(layout)
        header.add_row(
            "", *(Text(f"{column.runtime}\n{column.arch}".strip(), style="bold") for column, _ in layout.columns)
        )
        yield header
        for operator in dict.fromkeys(row.operator for row in matrix.rows):
            rows = [
                row
                for row in matrix.rows
                if row.operator == operator and any((row, column) in matrix.cells for column, _ in layout.columns)
            ]
            if not rows:
                continue
            yield _heading(operator, width, rule, shared.get(operator, ""))
            table = _grid(layout)
            for row in rows:
                label = Text(row.provider)
                if row.variant and operator not in shared:
                    label.append(f"\n {row.variant}", style="dim")
                cells = [_cell(matrix.cells.get((row, column)), room, layout.gap) for column, room in layout.columns]
                table.add_row(label, *cells)
            yield table
            yield Text("")


def _grid(layout: _Layout) -> Table:
    grid = Table.grid(padding=(0, layout.gap, 0, 0), pad_edge=False)
    grid.add_column(width=layout.label)
    for _, width in layout.columns:
        grid.add_column(width=width)
    return grid


def _cell(cell: Cell | None, width: int, gap: int) -> Text:
    if cell is None:
        return Text("")
    if width < _NARROW_COLUMN:
        return Text("-", style="dim")
    if cell.absence:
        verdict = next(iter(cell.counts))
        return Text(word(verdict), style=STYLES[verdict]).append(f"\n{_told(cell.absence)}")
    text = Text("\n").join(_packed([_one_count(*item) for item in cell.counts.items()], width + min(gap - 2, 0)))
    worst = cell.worst
    if worst is not None and (worst.figure != 0 or not worst.holds):
        style = "not dim" if worst.holds else STYLES[Verdict.FAIL if cell.red else Verdict.WAIVED]
        text.append(f"\n{against_bound(worst)}", style=style).append(f"\n{_told(worst.rule)}", style="dim")
    return text


def _packed(parts: Iterable[Text], width: int) -> list[Text]:
    """The parts in lines, none of them broken, two spaces between."""
    lines: list[Text] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] = Text("  ").join((lines[-1], part))
        else:
            lines.append(part)
    return lines


def _one_count(verdict: Verdict, amount: int) -> Text:
    return Text(f"{amount} {word(verdict)}", style=STYLES[verdict])


def _heading(title: str, width: int, rule: str, remark: str = "") -> Text:
    text = Text(f"{title} ", style="bold")
    if remark:
        text.append(f"({remark}) ", style="not bold dim")
    return text.append(rule * (width - len(text)), style="not bold dim")


def _entry(mark: Text, *lines: Text, whole: Sequence[Text] = ()) -> Iterable[RenderableType]:
    """A mark at the left and lines beside it that wrap under themselves; last those that may run over the edge.

    File names and ids are printed whole, so that they can be copied from a narrow terminal.
    """
    block = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    block.add_column(width=_MARK)
    block.add_column(overflow="fold")
    for number, line in enumerate(lines):
        block.add_row(mark if number == 0 else "", line)
    yield block
    for line in whole:
        yield Text(" " * (_MARK + 1), no_wrap=True).append_text(line)


def _check(name: str, cell: Cell) -> Iterable[RenderableType]:
    return _entry(Text(count(len(cell.records), "case")), Text(f"{name}  ").append_text(_counts(cell.counts)))


def _cause(cause: Cause) -> Iterable[RenderableType]:
    failure = cause.failure
    verdict = cause.shown.verdict
    who = " ".join(part for part in (cause.provider, cause.operator) if part) or cause.shown.test
    lines = [
        Text(f"{who}: {_told(failure.rule)}", style="bold").append(
            f"  {count(len(cause.records), 'case')}{_on(cause.places)}", style="not bold dim"
        ),
        Text(_told(failure.message)),
    ]
    if failure.bound > 0 or failure.unit:
        lines.append(Text(f"measured {failure.figure:.3g} {_told(failure.unit)}, {failure.bound:.3g} allowed"))
    whole = []
    if failure.repro:
        confirmed = _CONFIRMED[failure.repro_confirmed]
        whole.append(Text(failure.repro).append(f"  {confirmed}", style="dim" if failure.repro_confirmed else "yellow"))
    others = len(cause.records) - 1
    whole.append(Text(_told(cause.shown.id), style="dim").append(f"  and {others} more" if others else ""))
    return _entry(Text(word(verdict), style=STYLES[verdict]), *lines, whole=whole)


def _told(text: str) -> str:
    """Text from a kernel's process, without what would recolour or move the cursor of the reader's terminal."""
    return _CONTROL.sub("", text)


def _on(places: Sequence[str]) -> str:
    return f" on {', '.join(places)}" if places else ""


def _waiver(use: WaiverUse) -> Iterable[RenderableType]:
    mark = Text(count(len(use.records), "case"), style=STYLES[Verdict.WAIVED])
    return _entry(mark, Text(_told(use.reason)), whole=(Text(_told(use.waiver), style="dim"),))


def _absence(absence: Absence, matrix: Matrix) -> Iterable[RenderableType]:
    everything = tuple(dict.fromkeys(row.operator for row in matrix.rows))
    lines = []
    for where, providers, operators in absence.groups:
        everywhere = operators == everything and len(operators) > 1
        what = f"all {len(operators)} operators" if everywhere else ", ".join(operators)
        who = ", ".join(filter(None, providers))
        lines.append(Text(": ".join(part for part in (where, who, what) if part), style="dim"))
    mark = Text(count(len(absence.records), "case"), style=STYLES[absence.verdict])
    return _entry(mark, Text(_told(absence.reason)), *(line for line in lines if line.plain))


def _counts(counted: Mapping[Verdict, int]) -> Text:
    return Text("  ").join(_one_count(*item) for item in counted.items())


def _totals(records: Sequence[Record]) -> Text:
    text = Text(f"{count(len(records), 'case')}:  ", style="bold")
    counted = Text("").append_text(_counts(totals(records)))
    calls = sum(record.calls for record in records)
    text = Text.assemble(text, counted, (f"  in {calls:,} calls" if calls else "", "dim"))
    if all(record.verdict in ABSENT for record in records):
        text.append("  nothing was judged", style=STYLES[Verdict.FAIL])
    return text
