"""What a report is made of, whoever prints it: tables and pictures under a heading.

The terminal prints a section's tables, the HTML page its tables and pictures, and a command writes a picture as PNG.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Table:
    """Rows of text under headings."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What a reader must know to read it; under the table."""
    numeric: tuple[int, ...] = ()
    """Columns that are aligned to the right."""


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
    warnings: tuple[str, ...] = field(default=())
    """What makes it incomplete or not to be trusted; shown first."""


def print_sections(sections: Iterable[Section], console: Console) -> None:
    """Warnings, leads and tables; pictures are named."""
    from rich.table import Table as RichTable
    from rich.text import Text

    for section in sections:
        console.print(Text(section.title, style="bold"))
        for warning in section.warnings:
            console.print(Text(f"! {warning}", style="yellow"))
        if section.lead:
            console.print(Text(section.lead))
        for table in section.tables:
            drawn = RichTable(title=table.title or None, title_justify="left", caption_justify="left")
            drawn.caption = Text(table.note) if table.note else None
            for number, column in enumerate(table.columns):
                drawn.add_column(column, justify="right" if number in table.numeric else "left")
            for row in table.rows:
                drawn.add_row(*(Text(cell) for cell in row))
            console.print(drawn)
        console.print()
