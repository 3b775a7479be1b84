"""What a cell of a published table has to be by the others of its row, and what may have happened where it is not.

A wrong cell makes wrong all that was computed from it. So where a row has several cells that contradict the others, the
first guess is one given cell with which all of them agree (:meth:`Figures.explanation`); only then each is looked at by
itself (:meth:`Figures.guess`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from waveproof.perf.printed import Interval, Printed, exactly, show
from waveproof.perf.published_columns import COUNTS, FORMULAS, RATIO_OF, Known, computed


@dataclass(frozen=True)
class Expected:
    """What a cell has to be, by other cells."""

    formula: str
    """In words."""
    should: Interval
    """For all numbers behind the other prints."""
    exact: Fraction
    """If the other prints were exact."""


@dataclass(frozen=True)
class Said:
    """A cell that follows from others, as it stands."""

    role: str
    cell: Printed
    interval: Interval
    """Where the number behind it lies."""
    wrong: bool
    """Whether it contradicts what it follows from."""


@dataclass(frozen=True)
class Figures:
    """The numbers of a table."""

    rows: tuple[Known, ...]
    anchor: int
    """Row that ratios compare with."""
    base: str
    """Its product."""

    def expected(self, role: str, index: int) -> Expected | str:
        """What a cell of that role has to be in a row; where it cannot be told, what is missing."""
        known = self.rows[index]
        if role in RATIO_OF:
            of = RATIO_OF[role]
            here, there = (_value(of, each) for each in (known, self.rows[self.anchor]))
            exact_here, exact_there = (_value(of, _middles(each)) for each in (known, self.rows[self.anchor]))
            if here is None or there is None or exact_here is None or exact_there is None:
                return f"needs {of} of the row and of {self.base}, or what it follows from"
            formula = f"{of} over that of {self.base}"
            if index == self.anchor:
                # Over itself it is 1, however its own figures were rounded.
                return Expected(formula, exactly(1), Fraction(1))
            return Expected(formula, here / there, exact_here.middle / exact_there.middle)
        found, should = computed(role, known)
        if found is None or should is None:
            first = next(one for one in FORMULAS if one.gives == role)
            return f"needs {', '.join(name for name in first.needs if name not in known)}"
        return Expected(found.text, should, found.compute(_middles(known)).middle)

    def explanation(self, index: int, cells: Sequence[Said]) -> str:
        """One given cell with which all that follow in the row agree, in words; empty where there is none.

        One wrong cell is no evidence: it may be wrong itself. Two or more that one number puts right are.
        """
        if sum(one.wrong for one in cells) < 2:
            return ""
        known = self.rows[index]
        given = [name for name in _GIVEN if name in known and computed(name, known)[1] is None]
        fitting = ((name, self._fitting(name, index, cells)) for name in given)
        words = [f"{name} is {value}" for name, value in fitting if value]
        return f"; all {_NUMBERS.get(len(cells), len(cells))} agree if {' or if '.join(words)}" if words else ""

    def _fitting(self, name: str, index: int, cells: Sequence[Said]) -> str:
        """The roundest number of a given cell with which all that follow agree; empty where there is none."""
        low, high = Fraction(0), Fraction(10**18)
        for one in cells:
            at_one, at_two = (self._with(name, value, index).expected(one.role, index) for value in (1, 2))
            if isinstance(at_one, str) or isinstance(at_two, str) or one.interval.low <= 0:
                return ""
            if at_one.should == at_two.should:
                if one.wrong:
                    return ""
                continue
            # Every formula multiplies with a given number, or divides by it.
            grows = at_one.should.low < at_two.should.low
            fits = one.interval / at_one.should if grows else at_one.should / one.interval
            low, high = max(low, fits.low), min(high, fits.high)
        if low > high:
            return ""
        value = _roundest(Interval(low, high))
        return "" if name in COUNTS and value.denominator != 1 else f"{float(value):,.10g}"

    def _with(self, name: str, value: int, index: int) -> Figures:
        """The same with one number of a row replaced."""
        row = {**self.rows[index], name: exactly(value)}
        return replace(self, rows=(*self.rows[:index], row, *self.rows[index + 1 :]))

    def guess(self, one: Said, index: int) -> str:
        """What may have happened to a cell by itself, in words; empty where nothing fits."""
        due = self.expected(one.role, index)
        if isinstance(due, str):
            return ""
        should = due.should
        for factor, words in ((100, "cents for dollars"), (Fraction(1, 100), "dollars for cents")):
            if "usd" in one.role and one.interval.meets(should * exactly(Fraction(factor))):
                return f"; it fits as {words}"
        for factor in (1000, Fraction(1, 1000)):
            if one.interval.meets(should * exactly(Fraction(factor))):
                return f"; it fits with a factor of {show(factor)}"
        if one.cell.holds_if_cut(should):
            return "; it fits if digits were cut off rather than rounded"
        for other, known in enumerate(self.rows):
            theirs = computed(one.role, known)[1]
            if other != index and theirs is not None and one.interval.meets(theirs):
                return "; it fits another row: rows may be swapped"
        here = self.rows[index]
        for count in (1, 2, 4, 8, 16, 32, 64, 72):
            if "gpus" in here and exactly(count) != here["gpus"]:
                fewer = computed(one.role, {**here, "gpus": exactly(count)})[1]
                if fewer is not None and one.interval.meets(fewer):
                    return f"; it fits with {count} GPUs"
        return ""


_GIVEN = tuple(dict.fromkeys(name for formula in FORMULAS for name in formula.needs))
"""What something follows from."""
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def _value(role: str, known: Known) -> Interval | None:
    """From what was measured where that is there, and what the table says itself where not."""
    found = computed(role, known)[1]
    return found if found is not None else known.get(role)


def _middles(known: Known) -> dict[str, Interval]:
    """As if every print were exact."""
    return {role: exactly(interval.middle) for role, interval in known.items()}


def _roundest(interval: Interval) -> Fraction:
    """The number with the most zeros at its end, 3,600 of 3,596.2 to 3,603.8; above 0."""
    step = Fraction(10) ** (math.floor(math.log10(interval.high)) + 1)
    while (nearest := round(interval.middle / step) * step) == 0 or not interval.meets(exactly(nearest)):
        if interval.low == interval.high and step < Fraction(1, 10**9):
            return interval.low
        step /= 10
    return nearest
