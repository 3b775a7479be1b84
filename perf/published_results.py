"""Published tables of serving results: read as they come, and their derived columns recomputed.

A cell that follows from others of its row is recomputed from the *intervals* in which the printed numbers lie
(:mod:`waveproof.perf.printed`), and is inconsistent only where no numbers behind the prints could give it. Which
columns are known, and by which headings, says :mod:`waveproof.perf.published_columns`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from waveproof.perf.economics import Served
from waveproof.perf.printed import (
    EMPTY,
    Interval,
    Mark,
    Printed,
    Unreadable,
    exactly,
    read_printed,
    show,
    show_interval,
)
from waveproof.perf.published_columns import COUNTS, DERIVED, RATIO_OF, ROLES, BadTable, Known, Role, role_of, way_out
from waveproof.perf.published_expected import Expected, Figures, Said

PUBLISHED = Path(__file__).parent / "baselines" / "published"
"""Tables that come along."""
_FIGURES = tuple(role.name for role in ROLES if role.kind != "text")


class Row(BaseModel):
    """The numbers of a row, by role; pydantic refuses what no system could have, and such a cell is left out.

    A field is None where its cell is empty, was not readable, or the table has no such column.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    line: int
    product: str = ""
    cells: dict[str, Printed] = Field(default_factory=dict)
    """By role, of all but ``product``."""

    @field_validator("product")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return " ".join(value.split())

    @model_validator(mode="after")
    def _possible(self) -> Row:
        for role, cell in self.cells.items():
            if role in COUNTS and (cell.value.denominator != 1 or cell.value < 1):
                raise ValueError(f"{cell.text!r}: must be a whole number above 0")
            # 0.00 may be what is left of a small figure after rounding, where it follows from others.
            tiny = cell.value == 0 and role in DERIVED
            if cell.value <= 0 and not tiny and not (role in RATIO_OF and cell.percent and cell.signed):
                raise ValueError(f"{cell.text!r}: must be above 0")
        return self

    def interval(self, role: str) -> Interval | None:
        """Where the number of a role lies; counts are not rounded."""
        cell = self.cells.get(role)
        if cell is None:
            return None
        if role in COUNTS:
            return exactly(cell.value)
        if role in RATIO_OF and cell.percent and cell.signed:
            return cell.interval + exactly(1)
        return cell.interval


Verdict = Literal["consistent", "coarse", "inconsistent", "not checked", "unreadable"]
"""``coarse``: consistent only if zeros at the end of a whole number are no digits, as in 1,600 for 1,568."""


@dataclass(frozen=True)
class Finding:
    """What there is to say of one cell."""

    line: int
    product: str
    heading: str
    role: str
    says: str
    verdict: Verdict
    should: Interval | None = None
    """What it can be, for all numbers behind the other prints."""
    reason: str = ""

    @property
    def bad(self) -> bool:
        """Whether it turns the command red."""
        return self.verdict in ("inconsistent", "unreadable")


@dataclass(frozen=True)
class Checked:
    """What a table came to."""

    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    known: tuple[str, ...]
    """Roles of the columns that are known."""
    unknown: tuple[str, ...]
    """Headings of columns that are not checked since nobody knows what they hold."""
    notes: tuple[str, ...]
    """What was taken for granted in reading."""

    def served(self, gpus_per_node: int = 8) -> tuple[Served, ...]:
        """Its systems, where a row has all that one needs.

        Raises:
            BadTable: a row lacks something; the message names it.
        """
        needed = ("gpus", "per_stream_tok_s", "aggregate_tok_s", "usd_per_gpu_hour")
        if absent := [name for name in needed if name not in self.known]:
            raise BadTable(f"{'column' if len(absent) == 1 else 'columns'} {_missing(absent)}{self._unknown(absent)}")
        for row in self.rows:
            if missing := [name for name in needed if name not in row.cells]:
                raise BadTable(f"line {row.line} ({row.product or 'no product'}): {self._why(row.line, missing)}")
        return tuple(_served(row, gpus_per_node) for row in self.rows)

    @property
    def nothing(self) -> bool:
        """Whether no cell could be recomputed."""
        return all(one.verdict == "not checked" for one in self.findings)

    @property
    def hint(self) -> str:
        """How a reader has the columns checked that are not known; empty where there are none."""
        return way_out(self.unknown, [name for name in _FIGURES if name not in self.known]) if self.unknown else ""

    def _unknown(self, absent: Sequence[str]) -> str:
        """The headings below which it may stand, if any."""
        if not self.unknown:
            return ""
        are = "heading {} is" if len(self.unknown) == 1 else "headings {} are"
        return f"; {are.format(', '.join(map(repr, self.unknown)))} not known, {way_out(self.unknown, absent)}"

    def _why(self, line: int, missing: Sequence[str]) -> str:
        """What stands in the cells that are missing."""
        wrong = {one.role: one.reason for one in self.findings if one.line == line and one.verdict == "unreadable"}
        empty = [name for name in missing if name not in wrong]
        told = [f"{name}: {wrong[name]}" for name in missing if name in wrong]
        if empty:
            told.append(_missing(empty))
        return "; ".join(told)


def _missing(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"


def _served(row: Row, gpus_per_node: int) -> Served:
    of = {name: cell.value for name, cell in row.cells.items()}
    return Served(
        row.product,
        int(of["gpus"]),
        float(of["per_stream_tok_s"]),
        float(of["aggregate_tok_s"]),
        float(of["usd_per_gpu_hour"]),
        gpus_per_node=int(of.get("gpus_per_node", gpus_per_node)),
    )


def check_text(
    text: str,
    gpus_per_node: int = 8,
    base: str = "",
    columns: Mapping[str, str] | None = None,
    exact: Sequence[str] = (),
    file: str = "table",
) -> Checked:
    """Read a table and recompute what follows from something else in it.

    Args:
        text: CSV with commas, semicolons or tabs; lines that begin with ``#`` are comments.
        gpus_per_node: where no column says.
        base: product that ratios compare with; the first row if not given.
        columns: roles by heading, for headings that are not known.
        exact: roles of which the print is the number, such as a list price: nothing was rounded.
        file: for messages.

    Raises:
        BadTable: there is no heading, two columns hold the same, a row is longer than the heading, no row.
    """
    lines = enumerate(text.lstrip("\ufeff").splitlines(), 1)
    kept = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    # Excel's first line, by which it tells itself what separates cells.
    told = re.fullmatch(r"sep=([;,\t])", kept[0][1].strip(" ")) if kept else None
    kept = kept[1:] if told else kept
    if len(kept) < 2:
        raise BadTable(f"{file}: a heading and a row are needed, {len(kept)} lines hold something")
    delimiter = told[1] if told else max(";,\t", key=kept[0][1].count)
    read = list(
        csv.reader(io.StringIO("\n".join(line for _, line in kept)), delimiter=delimiter, skipinitialspace=True)
    )
    if len(read) != len(kept):
        raise BadTable(f"{file}: a cell runs over the end of its line")
    headings = [heading.strip("\ufeff ") for heading in read[0]]
    if strangers := [name for name in columns or () if name not in headings]:
        raise BadTable(f"--column: no heading {strangers[0]}; headings are {', '.join(headings)}")
    found = _columns(headings, columns)
    names = [one.role.name for one in found if one.role]
    if strangers := [name for name in exact if name not in names]:
        raise BadTable(f"--exact {strangers[0]}: the table's known columns are {', '.join(names)}")
    for name in names:
        if names.count(name) > 1:
            both = [one.heading for one in found if one.role and one.role.name == name]
            raise BadTable(f"{file}: columns {' and '.join(map(repr, both))} both are {name}; name one with --column")
    if not [one for one in found if one.role and one.role.kind != "text"]:
        nameless = [one.heading for one in found if not one.role] or headings
        known = f"no column is known among {', '.join(map(repr, headings))}"
        raise BadTable(f"{file}: {known}; {way_out(nameless, _FIGURES)}")
    for (number, _), cells in zip(kept[1:], read[1:], strict=True):
        if len(cells) > len(headings):
            raise BadTable(f"{file}:{number}: {len(cells)} cells under {len(headings)} headings: {cells[-1]!r}")
    mark = _mark(delimiter, [cell for cells in read[1:] for cell in cells])
    notes = [f"decimals are separated by {mark!r}"] if mark == "," else []
    notes += [f"{name} is taken as printed, not rounded" for name in exact if name in names]
    notes += [f"{one.heading!r}: cents" for one in found if one.scale != 1]
    rows, findings = [], []
    for (number, _), cells in zip(kept[1:], read[1:], strict=True):
        row, troubles = _read_row(number, cells, found, mark, exact)
        rows.append(row)
        findings += troubles
    titles = {one.role.name: one.heading for one in found if one.role}
    if "gpus_per_node" not in titles and {"nodes", "tok_s_per_node", "per_node_ratio"} & set(titles):
        notes.append(f"a node has {gpus_per_node} GPUs, since no column says")
    if set(titles) & set(RATIO_OF):
        if base and base not in [row.product for row in rows]:
            raise BadTable(f"--base {base}: products are {', '.join(row.product for row in rows)}")
        base = base or rows[0].product
        notes.append(f"ratios compare with {base}")
    complete = [_with_node(row, gpus_per_node) for row in rows]
    findings += [one for index in range(len(rows)) for one in _check_row(index, rows, complete, titles, base)]
    findings.sort(key=lambda one: one.line)
    unknown = tuple(one.heading for one in found if not one.role)
    return Checked(tuple(rows), tuple(findings), tuple(names), unknown, tuple(notes))


@dataclass(frozen=True)
class Column:
    """What stands below a heading."""

    heading: str
    role: Role | None
    """None where nobody knows."""
    scale: Fraction
    """That its numbers are multiplied with: a hundredth, of cents."""


def _columns(headings: Sequence[str], given: Mapping[str, str] | None) -> list[Column]:
    """In their order; of several columns of text, the first names the product."""
    found: list[Column] = []
    for heading in headings:
        role, scale = role_of(heading, given)
        named = role is not None and role.kind == "text" and any(one.role is role for one in found)
        found.append(Column(heading, None if named else role, scale))
    return found


def _mark(delimiter: str, cells: Sequence[str]) -> Mark:
    """A comma separates decimals where semicolons or tabs separate cells, and one cell cannot be read otherwise.

    Such are ``2,50``, with a comma before other than 3 digits, ``1.568,125`` and ``1.234.567``, with points before 3.
    """
    if delimiter != "," and any(re.search(r"\d,(?:\d{1,2}|\d{4,})(?!\d)|\.\d{3}[.,]\d", cell) for cell in cells):
        return ","
    return "."


def _read_row(
    number: int, cells: Sequence[str], columns: Sequence[Column], mark: Mark, exact: Sequence[str]
) -> tuple[Row, list[Finding]]:
    """A row, which may end early, and findings of cells that are not readable."""
    below = [(column, column.role, text) for column, text in zip(columns, cells, strict=False) if column.role]
    product = next((text for _, role, text in below if role.name == "product"), "")
    kept: dict[str, Printed] = {}
    troubles = []
    for column, role, text in below:
        if role.kind == "text" or text.strip().lower() in EMPTY:
            continue
        try:
            printed = read_printed(text, mark)
            half_unit = Fraction(0) if role.name in exact else printed.half_unit * column.scale
            scaled = replace(printed, value=printed.value * column.scale, half_unit=half_unit)
            Row(line=number, cells={role.name: scaled})
            kept[role.name] = scaled
        except Unreadable as error:
            troubles.append(Finding(number, product, column.heading, role.name, text, "unreadable", reason=str(error)))
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            troubles.append(Finding(number, product, column.heading, role.name, text, "unreadable", reason=why))
    return Row(line=number, product=product, cells=kept), troubles


def _with_node(row: Row, gpus_per_node: int) -> dict[str, Interval]:
    """Intervals of a row, the size of a node with them."""
    intervals = {role: row.interval(role) for role in row.cells}
    # What was rounded to 0 can be checked, and nothing be computed from it.
    known = {role: interval for role, interval in intervals.items() if interval is not None and interval.low > 0}
    known.setdefault("gpus_per_node", exactly(gpus_per_node))
    return known


def _check_row(
    index: int, rows: Sequence[Row], complete: Sequence[Known], titles: Mapping[str, str], base: str
) -> list[Finding]:
    row = rows[index]
    figures = Figures(tuple(complete), [one.product for one in rows].index(base) if base else 0, base)
    findings, cells = [], list[Said]()
    for role, cell in row.cells.items():
        said = row.interval(role)
        if said is None or not (role in RATIO_OF or role in DERIVED):
            continue
        where = row.line, row.product, titles[role], role, cell.text
        due = figures.expected(role, index)
        if isinstance(due, str):
            findings.append(Finding(*where, "not checked", reason=due))
            continue
        verdict, reason = _compared(cell, said, due)
        cells.append(Said(role, cell, said, verdict == "inconsistent"))
        findings.append(Finding(*where, verdict, due.should, reason))
    # What explains the whole row goes before what explains a cell of it.
    whole = figures.explanation(index, cells)
    guesses = {one.role: whole or figures.guess(one, index) for one in cells if one.wrong}
    return [replace(one, reason=one.reason + guesses.get(one.role, "")) for one in findings]


def _compared(cell: Printed, said: Interval, due: Expected) -> tuple[Verdict, str]:
    """Whether a cell can be what it has to be, and why."""
    if said.meets(due.should):
        why = "within rounding" if said.middle != due.exact else "exact"
        return "consistent", f"{why}: {due.formula}"
    if cell.coarse.meets(due.should):
        unit = show(cell.coarse.high - cell.coarse.low)
        return "coarse", f"only if rounded to {unit}s: {due.formula} is {show(due.exact)}"
    far = abs(said.middle / due.exact - 1) if due.exact else Fraction(0)
    return "inconsistent", (
        f"{due.formula} is {show(due.exact)}, with all rounding {show_interval(due.should)}; the cell stands for "
        f"{show_interval(said)}, {show(far * 100, 3)} % off"
    )


def read_table(
    path: Path,
    gpus_per_node: int = 8,
    base: str = "",
    columns: Mapping[str, str] | None = None,
    exact: Sequence[str] = (),
) -> Checked:
    """Of a file in UTF-8, with or without a byte order mark.

    Raises:
        BadTable: it is none.
        OSError: it cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadTable(f"{path.name}: is not UTF-8 at byte {error.start}") from None
    return check_text(text, gpus_per_node, base, columns, exact, path.name)


def case_study() -> tuple[Served, ...]:
    """The published comparison that comes along."""
    return read_table(PUBLISHED / "kimi_k3_serving.csv").served()
