"""Numbers as somebody printed them, and the interval in which the number behind each print lies.

``1,568`` was some number from 1,567.5 to 1,568.5 before it was rounded; ``172k`` one from 171,500 to 172,500. What
follows from printed numbers follows as an interval too, so that no tolerance has to be chosen. Ends are fractions:
nothing is lost on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Mark = Literal[".", ","]
"""Of decimals."""


class Unreadable(ValueError):
    """A text is no number that could be checked; the message holds the text and the rule."""


@dataclass(frozen=True)
class Interval:
    """All numbers from ``low`` to ``high``, both included.

    Operations take every combination of the operands' ends. They give the exact range of a formula in which each
    quantity stands once; where one stands twice, a wider one.

    Raises:
        Unreadable: ``low`` is above ``high``, or a divisor holds zero.
    """

    low: Fraction
    high: Fraction

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise Unreadable(f"from {float(self.low):g} to {float(self.high):g}: the first is not above the second")

    @property
    def middle(self) -> Fraction:
        """Half-way: what was printed, where this is the interval of a print."""
        return (self.low + self.high) / 2

    def holds(self, other: Interval) -> bool:
        """Whether all of the other lies in here."""
        return self.low <= other.low and other.high <= self.high

    def meets(self, other: Interval) -> bool:
        """Whether a number lies in both."""
        return self.low <= other.high and other.low <= self.high

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        ends = [one * two for one in (self.low, self.high) for two in (other.low, other.high)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval) -> Interval:
        if other.low <= 0 <= other.high:
            raise Unreadable(f"divided by {float(other.low):g} to {float(other.high):g}, which may be 0")
        return self * Interval(1 / other.high, 1 / other.low)


def exactly(value: int | Fraction) -> Interval:
    """A number that was not rounded, such as a count or a constant."""
    return Interval(Fraction(value), Fraction(value))


@dataclass(frozen=True)
class Printed:
    """A number as it was printed."""

    text: str
    value: Fraction
    half_unit: Fraction
    """Half of what the last digit counts; a rounded number lies no farther away."""
    percent: bool = False
    signed: bool = False
    """A sign stands in front: of a percentage, ``+65 %`` says 1.65 times."""
    whole: bool = False
    """Neither decimals nor a percent sign: zeros at its end may be none of its digits."""

    @property
    def interval(self) -> Interval:
        """Where the number behind the print lies, if it was rounded to nearest."""
        return Interval(self.value - self.half_unit, self.value + self.half_unit)

    @property
    def coarse(self) -> Interval:
        """The same if zeros at the end of a whole number only fill it up: 1,600 may have been 1,568."""
        digits, half = abs(self.value / (2 * self.half_unit)) if self.half_unit else Fraction(1), self.half_unit
        while self.whole and digits and digits % 10 == 0:
            digits, half = digits / 10, half * 10
        return Interval(self.value - half, self.value + half)

    def holds_if_cut(self, found: Interval) -> bool:
        """Whether a number of ``found`` gives this print if digits were cut off rather than rounded."""
        return self.interval.meets(Interval(found.low - self.half_unit, found.high - self.half_unit))


_CURRENCY = re.compile(r"us\$|usd|\$", re.IGNORECASE)
_FOREIGN = re.compile(r"[€£¥₹]|\b(?:eur|gbp|jpy|cny|rmb|inr)\b", re.IGNORECASE)
_SPACES = "\u00a0\u202f\u2009 "
_GROUPS = {".": "[,'’ ]", ",": "[.'’ ]"}
_SIZES = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
_UNITS = re.compile(
    r"(?:tok(?:en)?s?\b.*|t/s.*|gpus?\b.*|/.*|per\b.*|nodes?\b|seconds?\b|secs?\b|s\b|w\b|kwh\b.*|[x×])\s*$",
    re.IGNORECASE,
)
_CENTS = re.compile(r"(?:¢|cents?|ct)\s*$", re.IGNORECASE)
EMPTY = ("", "-", "–", "—", "n/a", "na", "none", "null", "tbd", "?")
"""Cells in which nothing is said, in lower case."""


def read_printed(text: str, mark: Mark = ".") -> Printed:
    """Read a number with its currency sign, separators of thousands, a unit, a ``k`` or a percent sign.

    Args:
        text: as printed.
        mark: what separates decimals; the other one, spaces and apostrophes may separate thousands, in threes.

    Raises:
        Unreadable: it is none, or says less than a number: a bound, a range, another currency than dollars.
    """
    rest = text.strip(_SPACES)
    for space in _SPACES:
        rest = rest.replace(space, " ")
    if found := _FOREIGN.search(rest):
        raise Unreadable(f"{text!r}: {found.group()} is another currency than dollars")
    if rest.startswith(tuple("<>≤≥")):
        raise Unreadable(f"{text!r}: a bound, which no number can be checked against")
    rest = _CURRENCY.sub("", rest.lstrip("~≈ ")).strip()
    scale = Fraction(1)
    if found := _CENTS.search(rest):
        scale, rest = Fraction(1, 100), rest[: found.start()].strip()
    percent = rest.endswith("%")
    if percent:
        scale, rest = Fraction(1, 100), rest[:-1].strip()
    rest = _UNITS.sub("", rest).strip()
    sign, signed = Fraction(1), rest.startswith(tuple("+-−"))
    if signed:
        sign, rest = Fraction(1 if rest[0] == "+" else -1), rest[1:].strip()
    if rest[-1:].lower() in _SIZES:
        scale, rest = scale * 10 ** _SIZES[rest[-1].lower()], rest[:-1].strip()
    whole, _, decimals = rest.partition(mark)
    grouped = rf"\d{{1,3}}(?:{_GROUPS[mark]}\d{{3}})+|\d+"
    if not re.fullmatch(grouped, whole or "0") or not re.fullmatch(r"\d*", decimals) or not (whole or decimals):
        raise Unreadable(f"{text!r}: no plain number such as {'1,568.5' if mark == '.' else '1.568,5'}")
    digits = re.sub(r"\D", "", whole) + decimals
    unit = Fraction(1, 10 ** len(decimals)) * scale
    return Printed(text, sign * int(digits) * unit, unit / 2, percent, signed, not decimals and not percent)


def show(value: Fraction | float, digits: int = 5) -> str:
    """A number for people: so many digits, thousands separated, no exponent below a billion."""
    number = float(value)
    if number == 0:
        return "0"
    if abs(number) >= 10 ** (digits - 1):
        return f"{number:,.0f}"
    text = f"{number:.{digits}g}"
    return text if "e" not in text else f"{number:.{digits + 6}f}".rstrip("0")


def show_interval(interval: Interval, digits: int = 5) -> str:
    """Its ends, or the one number that it is."""
    if interval.low == interval.high:
        return show(interval.low, digits)
    return f"{show(interval.low, digits)} to {show(interval.high, digits)}"
