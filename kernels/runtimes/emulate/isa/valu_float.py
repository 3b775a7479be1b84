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


@valu("V_MIN_F32", signature="f32 f32 -> f32")
def minimum(a: Array, b: Array) -> Array:
    """The lesser; of -0 and +0 the former; the other one if one is NaN."""
    return _minimum(a, b)


@valu("V_MAX_F32", signature="f32 f32 -> f32")
def maximum(a: Array, b: Array) -> Array:
    """The greater; of -0 and +0 the latter; the other one if one is NaN."""
    return _maximum(a, b)


def _minimum(a: Array, b: Array) -> Array:
    value = np.fmin(a, b)
    tie = (a == b) & (a == 0)
    return np.where(tie & np.signbit(b), b, np.where(tie, a, value)) if tie.any() else value


def _maximum(a: Array, b: Array) -> Array:
    value = np.fmax(a, b)
    tie = (a == b) & (a == 0)
    return np.where(tie & np.signbit(a), b, np.where(tie, a, value)) if tie.any() else value


@valu("V_MIN3_F32", signature="f32 f32 f32 -> f32")
def minimum3(a: Array, b: Array, c: Array) -> Array:
    """Least of three."""
    return _minimum(_minimum(a, b), c)


@valu("V_MAX3_F32", signature="f32 f32 f32 -> f32")
def maximum3(a: Array, b: Array, c: Array) -> Array:
    """Greatest of three."""
    return _maximum(_maximum(a, b), c)


@valu("V_MED3_F32", signature="f32 f32 f32 -> f32")
def median(a: Array, b: Array, c: Array) -> Array:
    """Middle one of three; with a NaN the least (AMD pseudocode)."""
    middle = _maximum(_minimum(a, b), _minimum(_maximum(a, b), c))
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, _minimum(_minimum(a, b), c), middle)


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
    bits = total.view(np.uint64)
    result = total.astype(np.float32)
    doubtful = ((bits & _LOW_29) == _HALFWAY) | (np.abs(total) < _NORMAL)
    if doubtful.any():
        # Knuth's TwoSum: the error of the sum, exactly.
        back = total - product
        error = (product - (total - back)) + (addend - back)
        fix = doubtful & (error != 0) & np.isfinite(total) & ((bits & np.uint64(1)) == 0)
        if fix.any():
            toward = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
            result = np.where(fix, toward, total).astype(np.float32)
    return result


@valu("V_RCP_F32", "V_RCP_IFLAG_F32", signature="f32 -> f32")
def reciprocal(a: Array) -> Array:
    """1 / S0, correctly rounded (the device is within 1 ulp). Denormals are flushed whatever MODE says.

    LLVM, SIISelLowering.cpp: "v_rcp_f32 and v_rsq_f32 do not support denormals".
    """
    result = np.float32(1) / np.where(np.abs(a) < _TINY, np.copysign(np.float32(0), a), a)
    return np.where(np.abs(result) < _TINY, np.copysign(np.float32(0), result), result)


_TINY = np.float32(2.0**-126)


def _exponent(a: Array) -> Array:
    """Biased exponent, as the pseudocode's exponent()."""
    return (a.view(np.uint32) >> np.uint32(23) & np.uint32(255)).astype(np.int32)


def _is_denormal(a: Array) -> Array:
    return (np.abs(a) < _NORMAL) & (a != 0)


@valu("V_DIV_SCALE_F32", signature="f32 f32 f32 -> f32 mask", raw_denormals=True)
def division_scale(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """Scale S0 (which is S1 or S2) so that S2 / S1 can be refined without over- or underflow (AMD pseudocode)."""
    a, b, c = np.broadcast_arrays(a, b, c)
    up, down = np.ldexp(a, 64), np.ldexp(a, -64)
    quotient = c / b
    # 1/S1 of the pseudocode's float64 is DENORM.f64 nowhere in float32's range; LLVM's expansion and the ISA text
    # mean a reciprocal that is denormal as a float32.
    inverse_tiny = _is_denormal(np.float64(1) / b.astype(np.float64))
    quotient_tiny = _is_denormal(quotient)
    is_b = a == b
    conditions = [
        (c == 0) | (b == 0),
        _exponent(c) - _exponent(b) >= 96,
        _is_denormal(b),
        inverse_tiny & quotient_tiny,
        inverse_tiny,
        quotient_tiny,
        _exponent(c) <= 23,
    ]
    scaled = np.select(
        conditions,
        [np.float32(np.nan), np.where(is_b, up, a), up, np.where(is_b, up, a), down, np.where(a == c, up, a), up],
        a,
    )
    flagged = [False, True, False, True, False, True, False]
    mask = np.select(conditions, [np.bool_(flag) for flag in flagged], np.bool_(False))
    return scaled.astype(np.float32), mask


@valu("V_DIV_FMAS_F32", signature="f32 f32 f32 mask:vcc -> f32")
def division_fmas(a: Array, b: Array, c: Array, vcc: Array) -> Array:
    """fma(S0, S1, S2), scaled back where VCC says that V_DIV_SCALE scaled.

    By 2^64 or 2^-64 for S2's exponent above or below 127: V_DIV_SCALE scales by 2^+-64, and LLVM's and Mesa's
    expansions are right only so. The published pseudocode says 2^32 for both.
    """
    value = _fma(a, b, c)
    factor = np.where(_exponent(c) > 127, 64, -64)
    return np.where(vcc, np.ldexp(value, factor), value).astype(np.float32)


@valu("V_DIV_FIXUP_F32", signature="f32 f32 f32 -> f32", raw_denormals=True)
def division_fixup(a: Array, b: Array, c: Array) -> Array:
    """Special cases of S2 / S1, whose quotient is S0 otherwise (AMD pseudocode)."""
    negative = np.signbit(b) ^ np.signbit(c)
    inf, zero = np.float32(np.inf), np.float32(0)
    difference = _exponent(c) - _exponent(b)
    magnitude = np.select(
        [
            (b == 0) | np.isinf(c),
            np.isinf(b) | (c == 0),
            difference < -150,
            _exponent(b) == 255,
        ],
        [inf, zero, zero, inf],
        np.abs(a),
    )
    signed = np.where(negative, -magnitude, magnitude)
    invalid = ((b == 0) & (c == 0)) | (np.isinf(b) & np.isinf(c))
    signed = np.where(invalid, np.array(0xFFC00000, np.uint32).view(np.float32), signed)
    return np.select([np.isnan(c), np.isnan(b)], [c, b], signed).astype(np.float32)
