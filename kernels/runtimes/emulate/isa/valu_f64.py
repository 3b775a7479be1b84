"""Double-precision arithmetic (CDNA3 ISA, "VOP1", "VOP2", "VOP3"). Round to nearest even."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

valu("V_ADD_F64", signature="f64 f64 -> f64")(np.add)
valu("V_MUL_F64", signature="f64 f64 -> f64")(np.multiply)


def _fused(a: float, b: float, c: float) -> float:
    """S0 * S1 + S2 in rational numbers, rounded once, for finite operands whose sum is not zero."""
    total = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        # Division of integers rounds correctly, to subnormal results as well.
        return total.numerator / total.denominator
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def fused_multiply_add_double(a: Array, b: Array, c: Array) -> Array:
    """S0 * S1 + S2, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    plain = a * b + c
    # With an infinity, a NaN or a zero factor among them the unfused form is right.
    exact = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    # A product that overflows is finite all the same.
    result = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, plain)
    for at in np.flatnonzero(exact):
        x, y, z = float(a.flat[at]), float(b.flat[at]), float(c.flat[at])
        total = Fraction(x) * Fraction(y) + Fraction(z)
        # A sum that cancels is +0; so is the unfused one where the product is exact, which it then may not be.
        result.flat[at] = _fused(x, y, z) if total else 0.0
    return result


valu("V_FMA_F64", signature="f64 f64 f64 -> f64")(fused_multiply_add_double)
valu("V_FMAC_F64", signature="f64 f64 old:f64 -> f64")(fused_multiply_add_double)


@valu("V_LDEXP_F64", signature="f64 i32 -> f64")
def scale(a: Array, b: Array) -> Array:
    """S0 * 2^S1, rounded once."""
    return np.ldexp(a, b)


@valu("V_SQRT_F64", signature="f64 -> f64")
def root(a: Array) -> Array:
    """Correctly rounded; the device gives about half of the bits, which programs refine."""
    return np.sqrt(a)


@valu("V_RSQ_F64", signature="f64 -> f64")
def reciprocal_root(a: Array) -> Array:
    """1 / sqrt(S0), rounded twice; the device gives about half of the bits, which programs refine."""
    return 1 / np.sqrt(a)


@valu("V_RCP_F64", signature="f64 -> f64")
def reciprocal(a: Array) -> Array:
    """Correctly rounded; the device gives about half of the bits, which programs refine."""
    return 1 / a


_TINY = np.finfo(np.float64).smallest_normal


def _exponent(a: Array) -> Array:
    return (a.view(np.uint64) >> np.uint64(52) & np.uint64(2047)).astype(np.int32)


def _is_denormal(a: Array) -> Array:
    return (np.abs(a) < _TINY) & (a != 0)


@valu("V_DIV_SCALE_F64", signature="f64 f64 f64 -> f64 mask", raw_denormals=True)
def division_scale(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Scale S0 (which is S1 or S2) so that S2 / S1 can be refined without over- or underflow.

    AMD's pseudocode, with the same correction as in :func:`.valu_float.division_scale`: where quotient and reciprocal
    are both denormal, the denominator is scaled down.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    up, down = np.ldexp(a, 128), np.ldexp(a, -128)
    inverse_tiny, quotient_tiny = _is_denormal(1 / b), _is_denormal(c / b)
    is_divisor = a == b
    conditions = [
        (c == 0) | (b == 0),
        _exponent(c) - _exponent(b) >= 768,
        _is_denormal(b),
        inverse_tiny & quotient_tiny,
        inverse_tiny,
        quotient_tiny,
        _exponent(c) <= 53,
    ]
    values: list[Any] = [
        np.nan,
        np.where(is_divisor, up, a),
        up,
        np.where(is_divisor, down, a),
        down,
        np.where(a == c, up, a),
        up,
    ]
    flagged = [False, True, False, True, False, True, False]
    return np.select(conditions, values, a), np.select(
        conditions, [np.bool_(flag) for flag in flagged], np.bool_(False)
    )


@valu("V_DIV_FMAS_F64", signature="f64 f64 f64 mask:vcc -> f64")
def division_fmas(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    """fma(S0, S1, S2), scaled back by 2^128 or 2^-128 where VCC says that V_DIV_SCALE scaled one side; rounded once.

    2^128 where S2, the quotient so far, is 2 or more; the published pseudocode says 2^64 (see :mod:`.valu_float`).
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    result = fused_multiply_add_double(a, b, c)
    if not vcc.any():
        return result
    for at in np.flatnonzero(np.broadcast_to(vcc, result.shape) & np.isfinite(result)):
        total = Fraction(float(a.flat[at])) * Fraction(float(b.flat[at])) + Fraction(float(c.flat[at]))
        total *= Fraction(2) ** (128 if _exponent(c[...].flat[at : at + 1])[0] > 1023 else -128)
        try:
            result.flat[at] = total.numerator / total.denominator if total else result.flat[at]
        except OverflowError:
            result.flat[at] = np.inf if total > 0 else -np.inf
    return result


@valu("V_DIV_FIXUP_F64", signature="f64 f64 f64 -> f64", raw_denormals=True)
def division_fixup(a: Array, b: Array, c: Array) -> Array:
    """Special cases of S2 / S1, whose quotient is S0 otherwise (AMD pseudocode; overflow as :mod:`.valu_float`)."""
    negative = np.signbit(b) ^ np.signbit(c)
    difference = _exponent(c) - _exponent(b)
    finite = np.isfinite(b) & np.isfinite(c)
    magnitude = np.select(
        [(b == 0) | np.isinf(c), np.isinf(b) | (c == 0), finite & (difference < -1075), finite & (difference > 1075)],
        [np.inf, 0.0, 0.0, np.inf],
        np.abs(a),
    )
    signed = np.where(negative, -magnitude, magnitude)
    invalid = ((b == 0) & (c == 0)) | (np.isinf(b) & np.isinf(c))
    signed = np.where(invalid, np.array(0xFFF8000000000000, np.uint64).view(np.float64), signed)
    return np.select([np.isnan(c), np.isnan(b)], [c, b], signed)
