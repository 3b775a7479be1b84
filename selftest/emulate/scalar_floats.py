"""Floating-point arithmetic on one number at a time, in exact rational numbers: the reference of the instruction tests.

Written from IEEE 754-2019 and AMD's pseudocode, without numpy: nothing here shares a rounding with the emulator.
Numbers are bit patterns (int); a :class:`Form` says how to read them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Form:
    """A binary interchange format with infinities and NaN."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def nan(self) -> int:
        """The quiet NaN that arithmetic gives."""
        return self.infinity | 1 << (self.mantissa_bits - 1)

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1


FORMS = {"f16": Form(5, 10), "f32": Form(8, 23), "f64": Form(11, 52), "bf16": Form(8, 7)}


def is_nan(bits: int, form: Form) -> bool:
    """Exponent all ones, mantissa not zero."""
    return bits & (form.sign - 1) > form.infinity


def is_signalling(bits: int, form: Form) -> bool:
    """A NaN without the quiet bit."""
    return is_nan(bits, form) and not bits >> (form.mantissa_bits - 1) & 1


def is_infinite(bits: int, form: Form) -> bool:
    """Either infinity."""
    return bits & (form.sign - 1) == form.infinity


def is_denormal(bits: int, form: Form) -> bool:
    """Exponent zero, mantissa not."""
    return 0 < bits & (form.sign - 1) < 1 << form.mantissa_bits


def is_zero(bits: int, form: Form) -> bool:
    """Either zero."""
    return not bits & (form.sign - 1)


def negative(bits: int, form: Form) -> bool:
    """The sign bit."""
    return bool(bits & form.sign)


def value(bits: int, form: Form) -> Fraction:
    """A finite number, exactly."""
    exponent = bits >> form.mantissa_bits & ((1 << form.exponent_bits) - 1)
    mantissa = bits & ((1 << form.mantissa_bits) - 1)
    if exponent:
        mantissa |= 1 << form.mantissa_bits
    magnitude = mantissa * Fraction(2) ** (max(exponent, 1) - form.bias - form.mantissa_bits)
    return -magnitude if negative(bits, form) else magnitude


def rounded(number: Fraction, form: Form, zero_sign: bool = False, toward_zero: bool = False) -> int:
    """Nearest, ties to even (or toward zero); overflow to infinity (the largest number). ``zero_sign`` if it is 0."""
    if not number:
        return form.sign if zero_sign else 0
    sign, magnitude = (form.sign if number < 0 else 0), abs(number)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    lowest = 1 - form.bias
    exponent = max(exponent, lowest)
    units = magnitude / Fraction(2) ** (exponent - form.mantissa_bits)
    whole = math.floor(units)
    rest = units - whole
    if not toward_zero and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1)):
        whole += 1
    # An integer that runs over into the next binade carries into the exponent field by itself.
    code = ((exponent - lowest) << form.mantissa_bits) + whole
    if code >= form.infinity:
        code = form.infinity - 1 if toward_zero else form.infinity
    return sign | code


def add(a: int, b: int, form: Form) -> int:
    """IEEE addition; an exact zero sum is +0 unless both are -0."""
    if is_nan(a, form) or is_nan(b, form):
        return form.nan
    if is_infinite(a, form) or is_infinite(b, form):
        if is_infinite(a, form) and is_infinite(b, form) and a != b:
            return form.nan
        return a if is_infinite(a, form) else b
    return rounded(value(a, form) + value(b, form), form, negative(a, form) and negative(b, form))


def fma(a: int, b: int, c: int, form: Form) -> int:
    """IEEE fusedMultiplyAdd."""
    if any(is_nan(x, form) for x in (a, b, c)):
        return form.nan
    sign = negative(a, form) ^ negative(b, form)
    if is_infinite(a, form) or is_infinite(b, form):
        if is_zero(a, form) or is_zero(b, form) or (is_infinite(c, form) and negative(c, form) != sign):
            return form.nan
        return form.infinity | (form.sign if sign else 0)
    if is_infinite(c, form):
        return c
    return rounded(value(a, form) * value(b, form) + value(c, form), form, sign and negative(c, form))


def multiply(a: int, b: int, form: Form) -> int:
    """IEEE multiplication."""
    sign = negative(a, form) ^ negative(b, form)
    return fma(a, b, form.sign if sign else 0, form)


def convert(a: int, source: Form, target: Form, toward_zero: bool = False) -> int:
    """To another format."""
    sign = target.sign if negative(a, source) else 0
    if is_nan(a, source):
        return target.nan
    if is_infinite(a, source):
        return target.infinity | sign
    return rounded(value(a, source), target, bool(sign), toward_zero)


def scale(a: int, power: int, form: Form) -> int:
    """a * 2^power."""
    if is_nan(a, form) or is_infinite(a, form) or is_zero(a, form):
        return form.nan if is_nan(a, form) else a
    return rounded(value(a, form) * Fraction(2) ** max(min(power, 5000), -5000), form, negative(a, form))


def smaller(a: int, b: int, form: Form, ieee: bool, greater: bool = False) -> int:
    """V_MIN (``greater``: V_MAX) of AMD's pseudocode."""
    quiet = 1 << (form.mantissa_bits - 1)
    for x in (a, b):
        if ieee and is_signalling(x, form):
            return x | quiet
    if is_nan(a, form):
        return b
    if is_nan(b, form):
        return a
    if is_zero(a, form) and is_zero(b, form):
        return a & b if greater else a | b
    keys = [
        math.copysign(math.inf, -1 if negative(x, form) else 1) if is_infinite(x, form) else value(x, form)
        for x in (a, b)
    ]
    first = keys[0] > keys[1] if greater else keys[0] < keys[1]
    return a if first else b


def to_integer(a: int, form: Form, low: int, high: int) -> int:
    """Toward zero, saturated, NaN to 0."""
    if is_nan(a, form):
        return 0
    if is_infinite(a, form):
        return low if negative(a, form) else high
    return min(max(math.trunc(value(a, form)), low), high)


def floor_of(a: int, form: Form) -> int:
    """The greatest integer not above a; infinities, NaN and zeros as they are."""
    if is_nan(a, form) or is_infinite(a, form) or is_zero(a, form):
        return form.nan if is_nan(a, form) else a
    return rounded(Fraction(math.floor(value(a, form))), form, negative(a, form))
