"""What a report is made of, whoever prints it: tables and pictures under a heading.

The terminal prints a section's tables, the HTML page its tables and pictures, and a command writes a picture as PNG.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

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
