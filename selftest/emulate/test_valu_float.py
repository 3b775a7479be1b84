"""Floating-point arithmetic of half, single and double precision against exact rational arithmetic, lane by lane."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest

from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.float_trial import EXEC_MASKS, MODES, Case, failures

FORMS = sf.FORMS


def signed(bits: int, width: int) -> int:
    """Two's complement."""
    return bits - (bits >> (width - 1) << width)


def subtract(a: int, b: int, form: sf.Form) -> int:
    """a - b."""
    return sf.add(a, b ^ form.sign, form)


def least3(a: int, b: int, c: int, form: sf.Form, greater: bool, ieee: bool) -> int:
    """V_MIN3, V_MAX3: the two-operand instruction twice (AMD pseudocode)."""
    return sf.smaller(sf.smaller(a, b, form, ieee, greater), c, form, ieee, greater)


def median(a: int, b: int, c: int, form: sf.Form, ieee: bool) -> int:
    """V_MED3 of AMD's pseudocode, statement by statement."""
    if any(sf.is_nan(x, form) for x in (a, b, c)):
        return least3(a, b, c, form, False, ieee)
    top = least3(a, b, c, form, True, ieee)

    def equal(x: int) -> bool:
        return x == top or (sf.is_zero(x, form) and sf.is_zero(top, form))

    if equal(a):
        return sf.smaller(b, c, form, ieee, greater=True)
    if equal(b):
        return sf.smaller(a, c, form, ieee, greater=True)
    return sf.smaller(a, b, form, ieee, greater=True)


def integral(bits: int, form: sf.Form, how: Callable[[Fraction], int]) -> int:
    """Round to an integer; NaN, infinities and zeros as they are, the sign kept for zero results."""
    if sf.is_nan(bits, form):
        return form.nan
    if sf.is_infinite(bits, form) or sf.is_zero(bits, form):
        return bits
    return sf.rounded(Fraction(how(sf.value(bits, form))), form, sf.negative(bits, form))


def fract(bits: int, form: sf.Form) -> int:
    """S0 - floor(S0), at most the number below one."""
    if sf.is_nan(bits, form) or sf.is_infinite(bits, form):
        return form.nan
    number = sf.value(bits, form)
    below_one = (form.bias << form.mantissa_bits) - 1
    return min(sf.rounded(number - math.floor(number), form), below_one)


def mantissa(bits: int, form: sf.Form) -> int:
    """The number scaled into [0.5, 1)."""
    if sf.is_nan(bits, form):
        return form.nan
    if sf.is_infinite(bits, form) or sf.is_zero(bits, form):
        return bits
    number = sf.value(bits, form)
    while abs(number) >= 1:
        number /= 2
    while abs(number) < Fraction(1, 2):
        number *= 2
    return sf.rounded(number, form)


def exponent(bits: int, form: sf.Form, width: int) -> int:
    """Of the same scaling; 0 for zeros, infinities and NaN."""
    if sf.is_nan(bits, form) or sf.is_infinite(bits, form) or sf.is_zero(bits, form):
        return 0
    number, power = abs(sf.value(bits, form)), 0
    while number >= 1:
        number, power = number / 2, power + 1
    while number < Fraction(1, 2):
        number, power = number * 2, power - 1
    return power & ((1 << width) - 1)


def legacy(a: int, b: int, form: sf.Form) -> int:
    """Zero times anything is +0."""
    return 0 if sf.is_zero(a, form) or sf.is_zero(b, form) else sf.multiply(a, b, form)


def arithmetic(kind: str) -> Iterator[Case]:
    """Arithmetic of one precision."""
    form, name = FORMS[kind], kind.upper()
    two, three, one = f"{kind} {kind} -> {kind}", f"{kind} {kind} {kind} -> {kind}", f"{kind} -> {kind}"
    yield Case(f"V_ADD_{name}", two, functools.partial(sf.add, form=form))
    yield Case(f"V_MUL_{name}", two, functools.partial(sf.multiply, form=form))
    if kind != "f64":
        yield Case(f"V_SUB_{name}", two, functools.partial(subtract, form=form))
        yield Case(f"V_SUBREV_{name}", two, lambda a, b: subtract(b, a, form))
        for greater, which in ((False, "MIN"), (True, "MAX")):
            three_way = functools.partial(least3, form=form, greater=greater)
            yield Case(f"V_{which}3_{name}", three, three_way, ieee=True)
        yield Case(f"V_MED3_{name}", three, functools.partial(median, form=form), ieee=True)
    for greater, which in ((False, "MIN"), (True, "MAX")):
        yield Case(f"V_{which}_{name}", two, functools.partial(sf.smaller, form=form, greater=greater), ieee=True)
    yield Case(f"V_FMA_{name}", three, functools.partial(sf.fma, form=form))
    power = "i16" if kind == "f16" else "i32"
    scale = lambda a, b: sf.scale(a, signed(b, int(power[1:])), form)  # noqa: E731
    yield Case(f"V_LDEXP_{name}", f"{kind} {power} -> {kind}", scale)
    roundings: dict[str, Callable[[Fraction], int]] = {
        "FLOOR": math.floor, "CEIL": math.ceil, "TRUNC": math.trunc, "RNDNE": round,
    }  # fmt: skip
    for which, how in roundings.items():
        yield Case(f"V_{which}_{name}", one, functools.partial(integral, form=form, how=how))
    yield Case(f"V_FRACT_{name}", one, functools.partial(fract, form=form))
    yield Case(f"V_FREXP_MANT_{name}", one, functools.partial(mantissa, form=form))
    yield Case(
        f"V_FREXP_EXP_{power.upper()}_{name}", f"{kind} -> {power}",
        functools.partial(exponent, form=form, width=int(power[1:])),
    )  # fmt: skip


CASES = [
    *arithmetic("f16"),
    *arithmetic("f32"),
    *arithmetic("f64"),
    Case("V_FMAC_F64", "f64 f64 old:f64 -> f64", functools.partial(sf.fma, form=FORMS["f64"])),
    Case("V_FMAC_F32", "f32 f32 old:f32 -> f32", functools.partial(sf.fma, form=FORMS["f32"])),
    Case("V_MUL_LEGACY_F32", "f32 f32 -> f32", functools.partial(legacy, form=FORMS["f32"])),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mnemonic)
def test_result_is_exact_arithmetic_rounded_once(case: Case, mode: str) -> None:
    assert not failures(case, mode, "partial" if mode == "keep" else "full")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mnemonic)
def test_lanes_outside_exec_keep_their_registers(case: Case) -> None:
    assert EXEC_MASKS["zero"] == 0
    assert not failures(case, "keep", "zero")


def special(form: sf.Form, bits: int, table: dict[str, int], function: Callable[[float], float]) -> int:
    """A function of one number, with its values at NaN, infinities, zeros and negative numbers from a table."""
    if sf.is_nan(bits, form):
        return form.nan
    negative = sf.negative(bits, form)
    if sf.is_infinite(bits, form):
        return table["-inf" if negative else "inf"]
    if sf.is_zero(bits, form):
        return table["-0" if negative else "0"]
    if negative and "negative" in table:
        return table["negative"]
    try:
        result = function(float(sf.value(bits, form)))
    except OverflowError:
        return form.infinity
    return sf.rounded(Fraction(result), form, math.copysign(1, result) < 0)


def transcendental(kind: str) -> Iterator[Case]:
    """Single precision flushes denormals in every mode, half precision follows MODE."""
    form, name = FORMS[kind], kind.upper()
    inf, one, nan = form.infinity, form.bias << form.mantissa_bits, form.nan
    tables: dict[str, tuple[dict[str, int], Callable[[float], float]]] = {
        "EXP": ({"inf": inf, "-inf": 0, "0": one, "-0": one}, math.exp2),
        "LOG": ({"inf": inf, "-inf": nan, "0": inf | form.sign, "-0": inf | form.sign, "negative": nan}, math.log2),
        "SQRT": ({"inf": inf, "-inf": nan, "0": 0, "-0": form.sign, "negative": nan}, math.sqrt),
        "RSQ": (
            {"inf": 0, "-inf": nan, "0": inf, "-0": inf | form.sign, "negative": nan},
            lambda x: 1 / math.sqrt(x),
        ),
        "RCP": ({"inf": 0, "-inf": form.sign, "0": inf, "-0": inf | form.sign}, lambda x: 1 / x),
        "SIN": ({"inf": nan, "-inf": nan, "0": 0, "-0": form.sign}, functools.partial(turn, 0)),
        "COS": ({"inf": nan, "-inf": nan, "0": one, "-0": one}, functools.partial(turn, 1)),
    }

    def make(table: dict[str, int], function: Callable[[float], float]) -> Callable[[int], int]:
        def reference(bits: int) -> int:
            if kind == "f32" and sf.is_denormal(bits, form):
                bits &= form.sign
            result = special(form, bits, table, function)
            return result & form.sign if kind == "f32" and sf.is_denormal(result, form) else result

        return reference

    for which, (table, function) in tables.items():
        yield Case(f"V_{which}_{name}", f"{kind} -> {kind}", make(table, function), slack=1)
    if kind == "f32":
        yield Case("V_RCP_IFLAG_F32", "f32 -> f32", make(*tables["RCP"]), slack=1)


def turn(quarters: int, x: float) -> float:
    """sin(2 pi x), or cos, within 256 periods; 0, or 1, beyond."""
    if abs(x) > 256:
        return float(quarters)
    # Exact: the period first, to at most half a one, and zeros where they are.
    period = Fraction(x) + Fraction(quarters, 4)
    period -= round(period)
    if period * 2 == int(period * 2):
        return math.copysign(0.0, x) if not quarters else 0.0
    return math.sin(2 * math.pi * float(period))


def double_function(name: str) -> Case:
    form = FORMS["f64"]
    inf, nan = form.infinity, form.nan
    tables: dict[str, tuple[dict[str, int], Callable[[float], float]]] = {
        "SQRT": ({"inf": inf, "-inf": nan, "0": 0, "-0": form.sign, "negative": nan}, math.sqrt),
        "RSQ": ({"inf": 0, "-inf": nan, "0": inf, "-0": inf | form.sign, "negative": nan}, lambda x: 1 / math.sqrt(x)),
        "RCP": ({"inf": 0, "-inf": form.sign, "0": inf, "-0": inf | form.sign}, reciprocal_of_double),
    }
    table, function = tables[name]
    return Case(f"V_{name}_F64", "f64 -> f64", lambda bits: special(form, bits, table, function), slack=1)


def reciprocal_of_double(x: float) -> float:
    """1 / x, infinite where that overflows."""
    return 1 / x if abs(x) > 5.6e-309 else math.copysign(math.inf, x)


TRANSCENDENTAL = [*transcendental("f32"), *transcendental("f16"), *(double_function(n) for n in ("SQRT", "RSQ"))]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", TRANSCENDENTAL, ids=lambda case: case.mnemonic)
def test_transcendental_is_within_one_ulp(case: Case, mode: str) -> None:
    assert not failures(case, mode, "partial" if mode == "keep" else "full")
