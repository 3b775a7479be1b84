"""What a report is made of, whoever prints it: tables and pictures under a heading.

The terminal prints a section's tables, the HTML page its tables and pictures, and a command writes a picture as PNG.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WORD = 24
"""Characters that a column of text keeps, if its words have as many; longer ones fold."""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What a reader must know to read it; under the table."""
    numeric: tuple[int, ...] = ()
    """Columns that are aligned to the right, and never cut nor broken."""

    def of_columns(self, kept: Sequence[int]) -> Table:
        """The same with these columns alone, by number."""
        return replace(
            self,
            columns=tuple(self.columns[at] for at in kept),
            rows=tuple(tuple(row[at] for at in kept) for row in self.rows),
            numeric=tuple(new for new, at in enumerate(kept) if at in self.numeric),
        )


@dataclass(frozen=True)
class Picture:
    """A drawing, as PNG."""

    name: str
    """Of a file, without the suffix."""
    png: bytes
    caption: str
    """What it shows, for those who cannot see it too."""


@dataclass(frozen=True)
class Section:
    """A heading, a few sentences, tables, pictures."""

    title: str
    lead: str = ""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    warnings: tuple[str, ...] = ()
    """What makes it incomplete or not to be trusted; shown first."""


def section_fields(section: Section) -> dict[str, Any]:
    """A section for JSON; pictures in base64."""
    pictures = [{**asdict(one), "png": base64.b64encode(one.png).decode()} for one in section.pictures]
    return {**asdict(section), "pictures": pictures}


def section_of(fields: Mapping[str, Any]) -> Section:
    """What :func:`section_fields` wrote."""
    tables = tuple(
        Table(
            one["title"], tuple(one["columns"]), tuple(map(tuple, one["rows"])), one["note"], tuple(one["numeric"])
        )
        for one in fields["tables"]
    )  # fmt: skip
    pictures = tuple(Picture(one["name"], base64.b64decode(one["png"]), one["caption"]) for one in fields["pictures"])
    return Section(fields["title"], fields["lead"], tables, pictures, tuple(fields["warnings"]))


def print_sections(sections: Iterable[Section], console: Console) -> None:
    """Warnings, leads and tables; pictures are named.

    Where a table is wider than the console its texts fold and its headings break. A number is never cut: where not even
    that leaves room for all columns, the table goes on below with the others, its first column repeated.
    """
    from rich.text import Text

    for section in sections:
        console.print(Text(section.title, style="bold"))
        for warning in section.warnings:
            console.print(Text(f"! {warning}", style="yellow"))
        if section.lead:
            console.print(Text(section.lead))
        for table in section.tables:
            parts = _parts(table, console.width)
            for part in parts:
                _print_part(table, part, console, part is parts[0], part is parts[-1])
        console.print()


def _print_part(table: Table, part: Sequence[int], console: Console, first: bool, last: bool) -> None:
    """Some columns of a table; its title above the first part, its note below the last."""
    from rich.table import Table as RichTable
    from rich.text import Text

    title = table.title if first else f"{table.title} (continued)".strip()
    drawn = RichTable(title=title or None, title_justify="left", caption_justify="left")
    drawn.caption = Text(table.note) if table.note and last else None
    for number, width in zip(part, _fitted(table, part, console.width), strict=True):
        heading, numeric = Text(table.columns[number]), number in table.numeric
        drawn.add_column(heading, justify="right" if numeric else "left", width=width, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(row[number]) for number in part))
    console.print(drawn)


def _parts(table: Table, width: int) -> list[list[int]]:
    """Numbers of the columns that are drawn beside each other: all of them, where the width has room."""
    parts = [[0]]
    for number in range(1, len(table.columns)):
        if len(parts[-1]) > 1 and _drawn_width([_least(table, one) for one in (*parts[-1], number)]) > width:
            parts.append([0])
        parts[-1].append(number)
    return parts


def _fitted(table: Table, part: Sequence[int], width: int) -> list[int]:
    """Characters of columns: as many as they need; where that is too much, the widest give way down to their least.

    On a console too narrow for two columns the words of texts give way too, and only numbers stay.
    """
    widths = [max(_longest(table.columns[number]), _longest_cell(table, number)) for number in part]
    for words in (WORD, 1):
        least = [_least(table, number, words) for number in part]
        while _drawn_width(widths) > width and (above := [one for one, few in enumerate(least) if widths[one] > few]):
            widths[max(above, key=widths.__getitem__)] -= 1
    return widths


def _least(table: Table, number: int, most: int = WORD) -> int:
    """Characters below which a column does not fall: those of its longest number, or of a text's longest word.

    Headings break between words. Words of a text that are longer than ``most`` fold.
    """
    heading = _longest(table.columns[number].replace(" ", "\n"))
    if number in table.numeric:
        return max(heading, _longest_cell(table, number))
    words = max((_longest("\n".join(row[number].split())) for row in table.rows), default=0)
    return min(max(heading, words), most)


def _longest_cell(table: Table, number: int) -> int:
    return max((_longest(row[number]) for row in table.rows), default=0)


def _longest(text: str) -> int:
    """Characters of the longest line."""
    from rich.cells import cell_len

    return max(map(cell_len, text.splitlines()), default=0)


def _drawn_width(widths: Sequence[int]) -> int:
    """Of a table: two spaces and a line for each column, and a line."""
    return sum(widths) + 3 * len(widths) + 1
