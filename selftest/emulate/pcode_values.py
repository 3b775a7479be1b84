"""Values of AMD's instruction pseudocode: bits with a width and a type, and the operators on them.

The pseudocode (in the CDNA3 and CDNA4 ISA documents; the wheel of tinygrad 0.14.0 carries it as text) writes types as
suffixes: ``S0.u32``, ``64'I(...)``, ``1'1U``. Everything here is Python integers, and single values, so that nothing is
shared with the handlers under test, which are numpy and arrays.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

_FLOATS = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}
_MANTISSA = {16: 10, 32: 23, 64: 52}
_EXPONENT = {16: 5, 32: 8, 64: 11}


class Value:
    """``bits`` (unsigned), read as kind ``U``, ``I`` (two's complement), ``F`` (IEEE) or ``B`` (plain)."""

    __slots__ = ("bits", "kind", "width")

    def __init__(self, bits: int, width: int, kind: str = "U") -> None:
        self.bits, self.width, self.kind = bits & ((1 << width) - 1), width, kind

    def __repr__(self) -> str:
        return f"{self.width}'{self.kind}({self.bits:#x})"

    @property
    def number(self) -> int:
        """As an integer."""
        if self.kind == "I" and self.bits >> (self.width - 1):
            return self.bits - (1 << self.width)
        return self.bits

    @property
    def real(self) -> float:
        """As a floating-point number."""
        if self.kind != "F":
            return float(self.number)
        as_float, as_bits = _FLOATS[self.width]
        return float(struct.unpack(as_float, struct.pack(as_bits, self.bits))[0])

    def __bool__(self) -> bool:
        return self.bits != 0

    def view(self, kind: str, width: int) -> Value:
        """``x.u32``: the low bits, as another type."""
        return Value(self.bits, width, kind)

    def slice(self, high: int, low: int) -> Value:
        """``x[high : low]``; with high below low, the bits in reverse order."""
        if high < low:
            picked = (self.bits >> high) & ((1 << (low - high + 1)) - 1)
            return Value(int(format(picked, f"0{low - high + 1}b")[::-1], 2), low - high + 1, "B")
        return Value(self.bits >> low, high - low + 1, "U")


def is_nan(x: Value) -> bool:
    mantissa, exponent = _MANTISSA[x.width], _EXPONENT[x.width]
    top = (1 << exponent) - 1
    return (x.bits >> mantissa & top) == top and bool(x.bits & ((1 << mantissa) - 1))


def is_signalling(x: Value) -> bool:
    return is_nan(x) and not x.bits >> (_MANTISSA[x.width] - 1) & 1


def quieted(x: Value) -> Value:
    return Value(x.bits | 1 << (_MANTISSA[x.width] - 1), x.width, "F")


def round_to(number: float | Fraction, width: int) -> Value:
    """Round to nearest even into a format of ``width`` bits. Zero of a Fraction is +0."""
    if isinstance(number, float) and (math.isnan(number) or math.isinf(number) or number == 0):
        sign = math.copysign(1.0, number) < 0
        mantissa, exponent = _MANTISSA[width], _EXPONENT[width]
        bits = sign << (width - 1)
        if math.isnan(number):
            bits = ((1 << exponent) - 1) << mantissa | 1 << (mantissa - 1)
        elif math.isinf(number):
            bits |= ((1 << exponent) - 1) << mantissa
        return Value(bits, width, "F")
    exact = Fraction(number)
    sign, exact = exact < 0, abs(exact)
    mantissa, exponent = _MANTISSA[width], _EXPONENT[width]
    bias = (1 << (exponent - 1)) - 1
    if not exact:
        return Value(0, width, "F")
    power = exact.numerator.bit_length() - exact.denominator.bit_length()
    if Fraction(2) ** power > exact:
        power -= 1
    power = max(power, 1 - bias)
    scaled = exact / Fraction(2) ** (power - mantissa)
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    if 2 * rest > scaled.denominator or (2 * rest == scaled.denominator and whole & 1):
        whole += 1
    # Adding the integer mantissa carries into the exponent where rounding overflows it.
    bits = ((power + bias - 1) << mantissa) + whole
    infinity = ((1 << exponent) - 1) << mantissa
    return Value(min(bits, infinity) | sign << (width - 1), width, "F")


def cast(width: int, kind: str, x: Value) -> Value:
    """``width'kind(x)``: convert the number; plain bits (a concatenation) become a float by their pattern."""
    if kind == "F":
        if x.kind == "B" and x.width == width:
            return x.view("F", width)
        if x.kind != "F":
            return round_to(Fraction(x.number), width)
        if is_nan(x):
            mantissa, wide = _MANTISSA[x.width], _MANTISSA[width]
            payload = x.bits & ((1 << mantissa) - 1)
            payload = payload << (wide - mantissa) if wide >= mantissa else payload >> (mantissa - wide)
            top = ((1 << _EXPONENT[width]) - 1) << wide
            return Value((x.bits >> (x.width - 1)) << (width - 1) | top | payload, width, "F")
        return round_to(x.real, width)
    return Value(int(x.real) if x.kind == "F" else x.number, width, kind)


def _joined(a: Value, b: Value) -> tuple[int, str]:
    if a.kind == b.kind:
        return max(a.width, b.width), a.kind
    if a.width != b.width:
        return (a.width, a.kind) if a.width > b.width else (b.width, b.kind)
    return a.width, "U"


def add(a: Value, b: Value) -> Value:
    if "F" in (a.kind, b.kind):
        # Exact in binary64 but for rounding, which is then innocuous for narrower formats (2p + 2 <= 53).
        return round_to(a.real + b.real, max(x.width for x in (a, b) if x.kind == "F"))
    width, kind = _joined(a, b)
    return Value(a.number + b.number, width, kind)


def negate(a: Value) -> Value:
    if a.kind == "F":
        return Value(a.bits ^ 1 << (a.width - 1), a.width, "F")
    return Value(-a.number, a.width, a.kind)


def subtract(a: Value, b: Value) -> Value:
    if "F" in (a.kind, b.kind):
        return round_to(a.real - b.real, max(x.width for x in (a, b) if x.kind == "F"))
    width, kind = _joined(a, b)
    return Value(a.number - b.number, width, kind)


def multiply(a: Value, b: Value) -> Value:
    if "F" in (a.kind, b.kind):
        return round_to(a.real * b.real, max(x.width for x in (a, b) if x.kind == "F"))
    width, kind = _joined(a, b)
    return Value(a.number * b.number, width, kind)


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c with one rounding."""
    x, y, z = a.real, b.real, c.real
    if not all(map(math.isfinite, (x, y, z))):
        # No rounding can happen on the way to an infinity or NaN: only the classes of the operands matter.
        product = math.copysign(1, x) * math.copysign(1, y)
        if any(map(math.isnan, (x, y, z))) or (math.isinf(x) and y == 0) or (math.isinf(y) and x == 0):
            return round_to(math.nan, a.width)
        if math.isinf(x) or math.isinf(y):
            return round_to(math.nan if math.isinf(z) and z != product * math.inf else product * math.inf, a.width)
        return round_to(z, a.width)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if not exact:
        negative = math.copysign(1, x) * math.copysign(1, y) < 0
        if not (x and y):
            return round_to(-0.0 if negative and math.copysign(1, z) < 0 else 0.0 if z == 0 else z, a.width)
        return round_to(0.0, a.width)
    result = round_to(exact, a.width)
    return result


def bitwise(operator: str, a: Value, b: Value) -> Value:
    width, kind = _joined(a, b)
    x, y = a.number, b.number
    return Value({"&": x & y, "|": x | y, "^": x ^ y}[operator], width, kind)


def invert(a: Value) -> Value:
    return Value(~a.number, a.width, a.kind)


def shift(operator: str, a: Value, b: Value) -> Value:
    return Value(a.number << b.bits if operator == "<<" else a.number >> b.bits, a.width, a.kind)


def compare(operator: str, a: Value, b: Value) -> Value:
    x, y = (a.real, b.real) if "F" in (a.kind, b.kind) else (a.number, b.number)
    truth = {
        "==": x == y, "!=": x != y, "<>": x < y or x > y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y,
    }[operator]  # fmt: skip
    return Value(truth, 1)


def concatenate(*parts: Value) -> Value:
    """``{ high, ..., low }``."""
    bits = width = 0
    for part in parts:
        bits, width = bits << part.width | part.bits, width + part.width
    return Value(bits, width, "B")


def sign_extended(x: Value) -> Value:
    """``signext(x)``."""
    return Value(Value(x.bits, x.width, "I").number, 64, "I")


def sign_extended_from(x: Value, count: Value) -> Value:
    """``signext_from_bit(x, count)``: x has ``count`` bits; none gives 0."""
    n = count.bits
    if n == 0:
        return Value(0, x.width, x.kind)
    return x if n >= x.width else Value(Value(x.bits, n, "I").number, x.width, x.kind)


def stored(old: Value, high: int, low: int, new: Value, kind: str) -> Value:
    """``old`` with bits high..low replaced by ``new``, converted to ``kind``."""
    width = abs(high - low) + 1
    if kind == "F" or new.kind == "F":
        bits = new.bits if new.kind == "F" and new.width == width else cast(width, "F", new).bits
    else:
        bits = new.number & ((1 << width) - 1)
    mask = ((1 << width) - 1) << low
    return Value(old.bits & ~mask | bits << low, max(old.width, high + 1), old.kind)
