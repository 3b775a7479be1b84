"""What a run came to, arranged for a reader: the conformance matrix, and one entry for each cause, waiver and absence.

Pure functions over records. The terminal (``matrix.py``) and the HTML page (``page.py``) print the same entries.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from waveproof.kernels.operators.registry import OPERATORS
from waveproof.kernels.runtimes.catalogue import RUNTIMES
from waveproof.reports.verdicts import Failure, Record, RuleFigure, Verdict

ABSENT = (Verdict.UNAVAILABLE, Verdict.INCONCLUSIVE)
"""Verdicts that judge nothing."""

COUNT_ORDER = (
    Verdict.PASS,
    Verdict.WAIVED,
    Verdict.INCONCLUSIVE,
    Verdict.UNAVAILABLE,
    Verdict.FAIL,
    Verdict.CRASH,
    Verdict.TIMEOUT,
)
"""The order in which counts are read, red last, where the eye rests."""


@dataclass(frozen=True, order=True)
class Column:
    """A runtime on an architecture."""

    runtime: str
    arch: str = ""

    @property
    def title(self) -> str:
        """``compile gfx942``."""
        return f"{self.runtime} {self.arch}".strip()


@dataclass(frozen=True, order=True)
class Row:
    """Someone's implementation of an operator, under the variant that it declares."""

    operator: str
    provider: str
    variant: str = ""


@dataclass(frozen=True)
class Cell:
    """All cases of one row in one column."""

    records: tuple[Record, ...]

    @cached_property
    def counts(self) -> dict[Verdict, int]:
        """Cases for each verdict that occurs, in reading order."""
        return totals(self.records)

    @property
    def ran(self) -> bool:
        """Whether any case judged something."""
        return any(record.verdict not in ABSENT for record in self.records)

    @property
    def red(self) -> bool:
        """Whether any case turns the run red."""
        return any(record.verdict.red for record in self.records)

    @cached_property
    def worst(self) -> RuleFigure | None:
        """The figure closest to, or furthest beyond, its bound; waived cases do not count where others ran."""
        judged = [record for record in self.records if record.verdict not in (*ABSENT, Verdict.WAIVED)]
        return worst_figure(judged or self.records)

    @property
    def absence(self) -> str:
        """In a few words why nothing ran, the commonest reason; empty where something did."""
        if self.ran:
            return ""
        reasons = Counter(in_short(record.reason) for record in self.records)
        return reasons.most_common(1)[0][0]


@dataclass(frozen=True)
class Matrix:
    """Rows of implementations, columns of runtimes; no cell where an implementation does not offer a runtime."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[Row, Column], Cell]

    def ran(self, column: Column) -> bool:
        """Whether anything ran in that column."""
        return any(cell.ran for (_, where), cell in self.cells.items() if where == column)


@dataclass(frozen=True)
class Cause:
    """Red cases of one operator and provider that break the same rule."""

    operator: str
    provider: str
    rule: str
    records: tuple[Record, ...]

    @property
    def shown(self) -> Record:
        """The case to look at: one whose repro was confirmed, else has a repro, else the shortest call."""

        def usefulness(record: Record) -> tuple[bool, bool, int, str]:
            failure = failure_of(record)
            return (not failure.repro_confirmed, not failure.repro, len(failure.call), record.id)

        return min(self.records, key=usefulness)

    @property
    def failure(self) -> Failure:
        """The failure of the case that is shown."""
        return failure_of(self.shown)

    @property
    def places(self) -> tuple[str, ...]:
        """Runtimes and architectures where it shows."""
        return tuple(column.title for column in ordered_columns(self.records) if column.title)


@dataclass(frozen=True)
class WaiverUse:
    """A waiver and the cases that it covered."""

    waiver: str
    reason: str
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Absence:
    """Cases that judged nothing for one and the same reason."""

    verdict: Verdict
    reason: str
    records: tuple[Record, ...]

    @property
    def groups(self) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
        """Subjects in short: (runtime and arch, providers, operators), each provider with each of the operators."""
        offered: dict[tuple[Column, str], set[str]] = defaultdict(set)
        for record in self.records:
            offered[column_of(record), record.provider].add(record.operator)
        alike: dict[tuple[Column, tuple[str, ...]], list[str]] = defaultdict(list)
        for (column, provider), operators in offered.items():
            alike[column, tuple(sorted(operators, key=_operator_rank))].append(provider)
        return tuple(
            (column.title, tuple(sorted(providers)), operators)
            for (column, operators), providers in sorted(
                alike.items(), key=lambda item: (_rank(item[0][0]), item[0][1])
            )
        )


def totals(records: Iterable[Record]) -> dict[Verdict, int]:
    """Cases for each verdict that occurs, in reading order."""
    counted = Counter(record.verdict for record in records)
    return {verdict: counted[verdict] for verdict in COUNT_ORDER if counted[verdict]}


def tabulate(records: Iterable[Record]) -> Matrix:
    """The conformance matrix of those records that belong to an operator and a runtime."""
    judged = [record for record in records if record.operator and record.runtime]
    columns = ordered_columns(judged)
    arches = defaultdict(set)
    for column in columns:
        arches[column.runtime].add(column.arch)
    cells: dict[tuple[Row, Column], list[Record]] = defaultdict(list)
    for record in judged:
        column = column_of(record)
        # A GPU that was not opened could not tell its arch; where only one is known these belong to it.
        known = arches[column.runtime] - {""}
        if not column.arch and len(known) == 1:
            column = Column(column.runtime, *known)
        cells[Row(record.operator, record.provider, record.variant), column].append(record)
    return Matrix(
        rows=tuple(sorted({row for row, _ in cells}, key=lambda row: (_operator_rank(row.operator), row))),
        columns=tuple(column for column in columns if any(column == where for _, where in cells)),
        cells={place: Cell(tuple(members)) for place, members in cells.items()},
    )


def other_checks(records: Iterable[Record]) -> dict[str, Cell]:
    """Cases outside the matrix, by their test file."""
    files: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if not (record.operator and record.runtime):
            files[record.id.partition("::")[0]].append(record)
    return {name: Cell(tuple(members)) for name, members in sorted(files.items())}


def failure_causes(records: Iterable[Record]) -> tuple[Cause, ...]:
    """Red cases grouped by operator, provider and rule."""
    causes: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.verdict.red:
            causes[record.operator, record.provider, failure_of(record).rule].append(record)
    ordered = sorted(causes.items(), key=lambda item: (_operator_rank(item[0][0]), item[0]))
    return tuple(Cause(*key, tuple(sorted(members, key=lambda record: record.id))) for key, members in ordered)


def waivers_used(records: Iterable[Record]) -> tuple[WaiverUse, ...]:
    """Waived cases, grouped by their waiver."""
    uses: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.verdict is Verdict.WAIVED:
            uses[record.waiver, record.reason].append(record)
    return tuple(WaiverUse(*key, tuple(members)) for key, members in sorted(uses.items()))


def absences(records: Iterable[Record]) -> tuple[Absence, ...]:
    """Cases that judged nothing, grouped by reason; inconclusive ones first, since they were meant to run."""
    reasons: dict[tuple[Verdict, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.verdict in ABSENT:
            reasons[record.verdict, record.reason].append(record)
    ordered = sorted(reasons.items(), key=lambda item: (item[0][0] is Verdict.UNAVAILABLE, -len(item[1]), item[0][1]))
    return tuple(Absence(*key, tuple(members)) for key, members in ordered)


def failure_of(record: Record) -> Failure:
    """The failure of a red record, which the model guarantees."""
    assert record.failure is not None
    return record.failure


def column_of(record: Record) -> Column:
    """Where a record ran; what follows the colon of ``gfx942:sramecc+:xnack-`` is left out."""
    return Column(record.runtime, record.arch.partition(":")[0])


def ordered_columns(records: Iterable[Record]) -> tuple[Column, ...]:
    """The columns of the records, in the order of the runtimes' catalogue."""
    return tuple(sorted({column_of(record) for record in records}, key=_rank))


def worst_figure(records: Iterable[Record]) -> RuleFigure | None:
    """The figure closest to, or furthest beyond, its bound; one that breaks its rule comes before any that holds."""
    figures = [figure for record in records for figure in record.figures if measured(figure)]
    return max(figures, key=lambda figure: (not figure.holds, severity(figure)), default=None)


def measured(figure: RuleFigure) -> bool:
    """Whether there is something to show: rules without a measure have figure and bound 0 where they hold."""
    return figure.bound > 0 or figure.figure != 0 or not figure.holds


def severity(figure: RuleFigure) -> float:
    """The figure in units of its bound, infinite where it is NaN or where nothing was allowed."""
    if math.isnan(figure.figure) or math.isnan(figure.bound):
        return math.inf
    return figure.severity


def against_bound(figure: RuleFigure) -> str:
    """``0.31 of bound``, or ``3, 0 allowed`` where there is no other bound; never rounded across the bound."""
    if math.isnan(figure.figure) or math.isinf(figure.figure):
        return f"{number(figure.figure)} measured"
    if figure.bound == 0:
        return f"{number(figure.figure)}, 0 allowed"
    return f"{number(severity(figure))} of bound"


def number(value: float) -> str:
    """Two or three digits, and on the right side of 1: 0.998 is 0.99, 1.001 is 1.01."""
    if not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "NaN")
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if 0 < value < 0.005:
        return "<0.01"
    if abs(value) < 10:
        hundredths = math.ceil(value * 100) if value > 1 else math.floor(value * 100)
        return f"{hundredths / 100:.2f}"
    if abs(value) < 1000:
        return f"{value:.0f}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def in_short(reason: str, most: int = 28) -> str:
    """The first clause of a reason, cut to ``most`` characters."""
    for separator in (":", ";", " (", "\n", ", "):
        reason = reason.partition(separator)[0]
    return reason if len(reason) <= most else reason[: most - 3].rstrip() + "..."


def count(amount: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def word(verdict: Verdict) -> str:
    """The verdict as it is printed: red ones in capitals, so that they stand out without colour."""
    return verdict.value.upper() if verdict.red else verdict.value


def one_of_each(values: Iterable[str]) -> Sequence[str]:
    """Distinct values that are not empty, in the order of their first appearance."""
    return list(dict.fromkeys(value for value in values if value))


def _operator_rank(name: str) -> tuple[int, str]:
    known = list(OPERATORS)
    return (known.index(name) if name in known else len(known), name)


def _rank(column: Column) -> tuple[int, str, str]:
    known = list(RUNTIMES)
    return (known.index(column.runtime) if column.runtime in known else len(known), column.runtime, column.arch)
