"""Sections (``reports/sections.py``) made ready for the HTML templates, which the pages share.

A cell that is an outcome, or begins with one and a colon, is drawn as a chip: a symbol, the word and a colour, so that
it is never the colour alone that tells a regression.
"""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jinja2

from waveproof.reports import summary
from waveproof.reports.picture_style import DPI
from waveproof.reports.sections import Picture, Section, Table

OUTCOMES = {
    "crash": ("!", "crash"),
    "fail": ("✗", "fail"),
    "regress": ("✗", "fail"),
    "refused": ("⊘", "fail"),
    "timeout": ("◷", "timeout"),
    "disagree": ("✗", "fail"),
    "inconsistent": ("✗", "fail"),
    "unreadable": ("✗", "fail"),
    "stale": ("↻", "waived"),
    "improve": ("↑", "waived"),
    "inconclusive": ("?", "inconclusive"),
    "waived": ("≈", "waived"),
    "unavailable": ("–", "unavailable"),
    "agree": ("✓", "pass"),
    "consistent": ("✓", "pass"),
    "pass": ("✓", "pass"),
}
"""What a cell can say, of a case, a comparison or a published figure: its symbol and its class in the style sheet.

The gravest come first. ``improve`` and ``stale`` share a colour with what is waived: nothing is broken, and somebody
has to look.
"""

RED = tuple(outcome for outcome, (_, style) in OUTCOMES.items() if style in ("fail", "timeout", "crash"))
"""Outcomes that mark their whole row."""

LONG = 40
"""Rows from which on a table scrolls in a box of its own on the screen; on paper all of it is printed."""

_OUTCOME = re.compile(rf"({'|'.join(OUTCOMES)})(?=$|[:,;]| \()", re.IGNORECASE)
_SIGNATURE, _END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_TEMPLATES = Path(__file__).with_name("templates")


class BadPicture(ValueError):
    """A picture is no PNG; the message says which."""


@dataclass(frozen=True)
class ShownCell:
    """Text, with a chip before it where it begins with an outcome."""

    text: str
    numeric: bool = False
    word: str = ""
    """As it was written, so that capitals stay."""
    symbol: str = ""
    style: str = ""

    @property
    def outcome(self) -> str:
        """A key of :data:`OUTCOMES`, or nothing."""
        return self.word.lower()

    @property
    def wordy(self) -> bool:
        """Whether it needs room, lest the columns beside it squeeze it into a tall thin stripe."""
        return len(self.text) > 24


@dataclass(frozen=True)
class ShownRow:
    """As many cells as the table has columns, more where the row has more."""

    cells: tuple[ShownCell, ...]

    @property
    def red(self) -> bool:
        """Whether any outcome in it is one of :data:`RED`."""
        return any(cell.outcome in RED for cell in self.cells)


@dataclass(frozen=True)
class ShownTable:
    """What the template draws of a table."""

    title: str
    headings: tuple[ShownCell, ...]
    rows: tuple[ShownRow, ...]
    note: str

    @property
    def long(self) -> bool:
        """Whether it scrolls."""
        return len(self.rows) > LONG


@dataclass(frozen=True)
class ShownPicture:
    """A data URI and what stands below; width and height in pixels of CSS."""

    source: str
    caption: str
    width: int
    height: int

    @property
    def broad(self) -> bool:
        """Whether it would be too small to read on a phone: it scrolls there instead of shrinking all the way."""
        return self.width > 480


@dataclass(frozen=True)
class ShownSection:
    """What the template draws of a section."""

    anchor: str
    """Of links within the page."""
    title: str
    paragraphs: tuple[str, ...]
    warnings: tuple[str, ...]
    tables: tuple[ShownTable, ...]
    pictures: tuple[ShownPicture, ...]

    @property
    def red(self) -> int:
        """Rows that are red."""
        return sum(row.red for table in self.tables for row in table.rows)

    @property
    def empty(self) -> bool:
        """Whether there is nothing below the heading."""
        return not (self.paragraphs or self.warnings or self.tables or self.pictures)


def shown_sections(sections: Iterable[Section]) -> tuple[ShownSection, ...]:
    """Sections as the macros of ``sections.html.j2`` take them.

    Raises:
        BadPicture: a picture is no PNG.
    """
    return tuple(
        ShownSection(
            anchor=f"section-{number}",
            title=section.title or f"Section {number}",
            paragraphs=tuple(part.strip() for part in re.split(r"\n\s*\n", section.lead) if part.strip()),
            warnings=section.warnings,
            tables=tuple(map(_table, section.tables)),
            pictures=tuple(map(_picture, section.pictures)),
        )
        for number, section in enumerate(sections, 1)
    )


def outcome_amounts(sections: Iterable[ShownSection]) -> list[tuple[ShownCell, int]]:
    """How many cells of all tables say each outcome, gravest first."""
    found = Counter(
        cell.outcome
        for section in sections
        for table in section.tables
        for row in table.rows
        for cell in row.cells
        if cell.outcome
    )
    return [(_cell(outcome, False), found[outcome]) for outcome in OUTCOMES if found[outcome]]


def _cell(text: str, numeric: bool) -> ShownCell:
    match = _OUTCOME.match(text)
    if match is None:
        return ShownCell(text, numeric)
    word = match.group()
    symbol, style = OUTCOMES[word.lower()]
    return ShownCell(text[match.end() :].lstrip(":,; "), numeric, word, symbol, style)


def _table(table: Table) -> ShownTable:
    rows = (tuple(row) + ("",) * (len(table.columns) - len(row)) for row in table.rows)
    return ShownTable(
        title=table.title,
        headings=tuple(ShownCell(heading, number in table.numeric) for number, heading in enumerate(table.columns)),
        rows=tuple(ShownRow(tuple(_cell(text, at in table.numeric) for at, text in enumerate(row))) for row in rows),
        note=table.note,
    )


def _picture(picture: Picture) -> ShownPicture:
    # https://www.w3.org/TR/png-3/#11IHDR: the first chunk, with width and height at offsets 16 and 20.
    if not picture.png.startswith(_SIGNATURE) or not picture.png.endswith(_END) or len(picture.png) < 24:
        told = f"it begins with {picture.png[:8]!r} and ends with {picture.png[-8:]!r}"
        raise BadPicture(f"picture {picture.name!r} is no PNG, or not all of one: {told}")
    pixels: tuple[int, int] = struct.unpack(">II", picture.png[16:24])
    width, height = (max(1, round(one * 96 / DPI)) for one in pixels)
    source = f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
    return ShownPicture(source, picture.caption or picture.name, width, height)


def environment() -> jinja2.Environment:
    """Of the templates of all pages: everything is escaped, and a name that is not defined is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(count=summary.count)
    return made


@lru_cache(maxsize=1)
def section_environment() -> jinja2.Environment:
    """The one of pages that show nothing but sections."""
    return environment()
