"""Vector floating-point arithmetic (CDNA3 ISA, "VOP1", "VOP2", "VOP3"). Round to nearest even throughout."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

valu("V_ADD_F32", signature="f32 f32 -> f32")(np.add)
valu("V_SUB_F32", signature="f32 f32 -> f32")(np.subtract)
valu("V_MUL_F32", signature="f32 f32 -> f32")(np.multiply)


@valu("V_SUBREV_F32", signature="f32 f32 -> f32")
def subtract_reversed(a: Array, b: Array) -> Array:
    """D = S1 - S0."""
    return b - a


@valu("V_MUL_LEGACY_F32", signature="f32 f32 -> f32")
def multiply_legacy(a: Array, b: Array) -> Array:
    """S0 * S1, but a zero times anything is +0 (AMD pseudocode)."""
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


@valu("V_LDEXP_F32", signature="f32 i32 -> f32")
def scale(a: Array, b: Array) -> Array:
    """S0 * 2^S1, rounded once."""
    return np.ldexp(a, b)


_HALFWAY, _LOW_29 = np.uint64(1 << 28), np.uint64((1 << 29) - 1)
_NORMAL = 2.0**-126


@valu("V_FMA_F32", signature="f32 f32 f32 -> f32")
@valu("V_FMAC_F32", signature="f32 f32 old:f32 -> f32")
@valu("V_FMAMK_F32", signature="f32 k:f32 f32 -> f32")
def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """S0 * S1 + S2, rounded once."""
    return _fma(a, b, c)


@valu("V_FMAAK_F32", signature="f32 f32 k:f32 -> f32")
def fused_multiply_add_literal(a: Array, b: Array, c: Array) -> Array:
    """S0 * S1 + K, rounded once."""
    return _fma(a, b, c)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Exactly rounded fma in float64 arithmetic.

    The product of two floats is exact in float64. Their sum with ``c`` is rounded to 53 bits and then to 24, which
    differs from one rounding only if the float64 sum is inexact and a tie (normal results), or the result is
    subnormal. There the sum is rounded to odd first, which makes the second rounding right (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
    """
    product = a.astype(np.float64) * b
    addend = c.astype(np.float64)
    total = product + addend
    doubtful = ((total.view(np.uint64) & _LOW_29) == _HALFWAY) | (np.abs(total) < _NORMAL)
    if doubtful.any():
        return round_to_odd(product, addend, total).astype(np.float32)
    return total.astype(np.float32)


def round_to_odd(product: Array, addend: Array, total: Array) -> Array:
    """``product + addend`` rounded to odd, from ``total``, the sum rounded to nearest."""
    # Knuth's TwoSum: the error of the sum, exactly.
    back = total - product
    error = (product - (total - back)) + (addend - back)
    fix = (error != 0) & np.isfinite(total) & ((total.view(np.uint64) & np.uint64(1)) == 0)
    if not fix.any():
        return total
    return np.where(fix, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


_SIGN = np.uint32(1 << 31)


def _exponent(a: Array) -> Array:
    """Biased exponent, as the pseudocode's exponent()."""
    return (a.view(np.uint32) >> np.uint32(23) & np.uint32(255)).astype(np.int32)


def _is_denormal(a: Array) -> Array:
    return (np.abs(a) < _NORMAL) & (a != 0)


@valu("V_DIV_SCALE_F32", signature="f32 f32 f32 -> f32 mask", raw_denormals=True)
def division_scale(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Scale S0 (which is S1 or S2) so that S2 / S1 can be refined without over- or underflow.

    AMD's pseudocode, read so that the refinement that LLVM wraps around it (``legalizeFDIV32``) gives the IEEE
    quotient, which OpenCL requires of it: "1 / S1 is DENORM" means denormal as a float32 (in float64 it never is), and
    where quotient and reciprocal are both denormal the denominator is scaled *down*: up, as is written, it overflows.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    divisor, dividend = _exponent(b), _exponent(c)
    difference = dividend - divisor
    plain = (difference < 96) & (difference > -125) & (divisor > 0) & (divisor <= 252) & (dividend > 23)
    if plain.all():
        # None of the conditions below holds.
        return a, np.zeros((1, 1), np.bool_)
    up, down = np.ldexp(a, 64), np.ldexp(a, -64)
    inverse_tiny = _is_denormal(np.float64(1) / b.astype(np.float64))
    quotient_tiny = _is_denormal(c.astype(np.float64) / b.astype(np.float64))
    is_divisor = a == b
    conditions = [
        (c == 0) | (b == 0),
        difference >= 96,
        _is_denormal(b),
        inverse_tiny & quotient_tiny,
        inverse_tiny,
        quotient_tiny,
        dividend <= 23,
    ]
    scaled = np.select(
        conditions,
        [
            np.float32(np.nan),
            np.where(is_divisor, up, a),
            up,
            np.where(is_divisor, down, a),
            down,
            np.where(a == c, up, a),
            up,
        ],
        a,
    )
    flagged = [False, True, False, True, False, True, False]
    mask = np.select(conditions, [np.bool_(flag) for flag in flagged], np.bool_(False))
    return scaled.astype(np.float32), mask


@valu("V_DIV_FMAS_F32", signature="f32 f32 f32 mask:vcc -> f32")
def division_fmas(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    """fma(S0, S1, S2), scaled back where VCC says that V_DIV_SCALE scaled one side; rounded once.

    By 2^64 where S2, the quotient so far, is 2 or more, by 2^-64 elsewhere: V_DIV_SCALE scales by 2^+-64, and nothing
    else undoes it. The published pseudocode says 2^32, which makes such divisions wrong by 2^32.
    """
    if not vcc.any():
        return _fma(a, b, c)
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = round_to_odd(product, addend, product + addend)
    factor = np.where(_exponent(c) > 127, np.float64(2.0**64), np.float64(2.0**-64))
    return np.where(vcc, total * factor, total).astype(np.float32)


@valu("V_DIV_FIXUP_F32", signature="f32 f32 f32 -> f32", raw_denormals=True)
def division_fixup(a: Array, b: Array, c: Array) -> Array:
    """Special cases of S2 / S1, whose quotient is S0 otherwise (AMD pseudocode).

    Where the exponents differ by 130 or more the quotient overflows, and so may have the refinement of S0 (inf - inf);
    the pseudocode has "exponent(S1) = 255" for it, which no finite S1 has.
    """
    divisor, dividend = _exponent(b), _exponent(c)
    difference = dividend - divisor
    if (
        (divisor > 0) & (divisor < 255) & (dividend > 0) & (dividend < 255) & (difference >= -150) & (difference < 130)
    ).all():
        bits = (a.view(np.uint32) & np.uint32(0x7FFFFFFF)) | ((b.view(np.uint32) ^ c.view(np.uint32)) & _SIGN)
        return bits.view(np.float32)
    negative = np.signbit(b) ^ np.signbit(c)
    inf, zero = np.float32(np.inf), np.float32(0)
    magnitude = np.select(
        [
            (b == 0) | np.isinf(c),
            np.isinf(b) | (c == 0),
            difference < -150,
            difference >= 130,
        ],
        [inf, zero, zero, inf],
        np.abs(a),
    )
    signed = np.where(negative, -magnitude, magnitude)
    invalid = ((b == 0) & (c == 0)) | (np.isinf(b) & np.isinf(c))
    signed = np.where(invalid, np.array(0xFFC00000, np.uint32).view(np.float32), signed)
    return np.select([np.isnan(c), np.isnan(b)], [c, b], signed).astype(np.float32)
