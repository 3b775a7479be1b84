"""bfloat16 and the 8-bit floats as NumPy sees them: bit patterns in an unsigned array, and the exact way in and out.

NumPy has no bfloat16 and no float8, so Triton's interpreter keeps both as uint16 and uint8 patterns. `widen` is exact
(each of these formats is a subset of float32); `narrow` rounds once. Formats: IEEE 754 layout for bfloat16 and e5m2;
OCP 8-bit Floating Point Specification 1.0 for e4m3 (no infinity, one NaN pattern per sign); the "fnuz" formats of
gfx942 (bias one larger, no infinity, no negative zero: that pattern is the NaN).

Written without torch's own conversions, so that a comparison with them is a comparison of two methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

BitArray = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class NarrowFloat:
    """A binary float format of 16 bits or fewer that NumPy lacks.

    `nans` says which patterns are not numbers: `ieee` (exponent all ones; mantissa zero is infinity), `all-ones`
    (exponent and mantissa all ones, no infinity) or `negative-zero` (that one pattern, no infinity).
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    nans: Literal["ieee", "all-ones", "negative-zero"]

    @property
    def bits(self) -> int:
        """Width in bits."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy dtype that holds one pattern."""
        return np.dtype(np.uint16 if self.bits == 16 else np.uint8)


BFLOAT16 = NarrowFloat(exponent_bits=8, mantissa_bits=7, bias=127, nans="ieee")

# Keyed by the names that Triton's dtypes carry (triton/language/core.py, class dtype). fp8e4b15 is left out: no torch
# dtype holds it, so nothing here could check it.
BY_TRITON_NAME = {
    "bf16": BFLOAT16,
    "fp8e4nv": NarrowFloat(exponent_bits=4, mantissa_bits=3, bias=7, nans="all-ones"),
    "fp8e4b8": NarrowFloat(exponent_bits=4, mantissa_bits=3, bias=8, nans="negative-zero"),
    "fp8e5": NarrowFloat(exponent_bits=5, mantissa_bits=2, bias=15, nans="ieee"),
    "fp8e5b16": NarrowFloat(exponent_bits=5, mantissa_bits=2, bias=16, nans="negative-zero"),
}


@cache
def values(form: NarrowFloat) -> npt.NDArray[np.float32]:
    """The value of every pattern, shape [2**bits], float32, indexed by the pattern."""
    pattern = np.arange(2**form.bits, dtype=np.int64)
    mantissa = pattern & (2**form.mantissa_bits - 1)
    exponent = (pattern >> form.mantissa_bits) & (2**form.exponent_bits - 1)
    negative = (pattern >> (form.bits - 1)) == 1
    significand = np.where(exponent == 0, mantissa, mantissa + 2**form.mantissa_bits).astype(np.float64)
    magnitude = np.ldexp(significand, np.maximum(exponent, 1) - form.bias - form.mantissa_bits)
    top = exponent == 2**form.exponent_bits - 1
    if form.nans == "ieee":
        magnitude[top & (mantissa == 0)] = np.inf
        magnitude[top & (mantissa != 0)] = np.nan
    elif form.nans == "all-ones":
        magnitude[top & (mantissa == 2**form.mantissa_bits - 1)] = np.nan
    else:
        magnitude[negative & (magnitude == 0)] = np.nan
    table = np.where(negative, -magnitude, magnitude).astype(np.float32)
    table.setflags(write=False)
    return table


@cache
def _finite_magnitudes(form: NarrowFloat) -> npt.NDArray[np.float64]:
    """Every finite value >= 0 in the order of its pattern, which is also ascending order."""
    positive = values(form)[: 2 ** (form.bits - 1)].astype(np.float64)
    return positive[np.isfinite(positive)]


def widen(pattern: BitArray, form: NarrowFloat) -> npt.NDArray[np.float32]:
    """Patterns of `form` (any shape) as the float32 values they stand for; exact."""
    return values(form)[pattern]


def narrow(number: npt.NDArray[Any], form: NarrowFloat, toward_zero: bool = False) -> BitArray:
    """float16, float32 or float64 values (any shape) as patterns of `form`, rounded once.

    Booleans and integers may be given for bfloat16 and go through float32, as torch's conversion does.

    Rounds to nearest even, or toward zero when `toward_zero`. NaN stays NaN. bfloat16 overflows to infinity as IEEE 754
    has it. An 8-bit format saturates a finite overflow to its largest number, the mode in which Triton converts;
    infinity stays infinity where the format has one and is NaN where it has none.
    """
    if form is BFLOAT16:
        return _narrow_bfloat16(number, toward_zero)
    return _narrow_by_table(number, form, toward_zero)


def _narrow_bfloat16(number: npt.NDArray[Any], toward_zero: bool) -> BitArray:
    single = _round_to_odd(number) if number.dtype == np.float64 else number.astype(np.float32)
    bits = single.view(np.uint32)
    shift = np.uint32(16)
    kept = bits >> shift
    # Just under half a unit of the kept part, plus one where that part is odd: ties go to even.
    nearest = (bits + np.uint32(0x7FFF) + (kept & np.uint32(1))) >> shift
    rounded = kept if toward_zero else nearest
    # Without the quiet bit a NaN whose payload lies in the dropped half would turn into infinity.
    return np.where(np.isnan(single), kept | np.uint32(0x0040), rounded).astype(np.uint16)


def _round_to_odd(number: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float64 to float32 such that a second rounding to 16 bits gives what one rounding would (Boldo, Melquiond 2008).

    Truncates, and sets the last bit where anything was cut off.
    """
    single = number.astype(np.float32)
    bits = single.view(np.uint32).copy()
    overshot = np.abs(single.astype(np.float64)) > np.abs(number)
    inexact = (single != number) & ~np.isnan(number)
    bits[overshot] -= np.uint32(1)
    bits[inexact] |= np.uint32(1)
    return bits.view(np.float32)


def _narrow_by_table(number: npt.NDArray[Any], form: NarrowFloat, toward_zero: bool) -> BitArray:
    finite = _finite_magnitudes(form)
    magnitude = np.abs(number.astype(np.float64))
    above = np.minimum(np.searchsorted(finite, magnitude), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    if toward_zero:
        up = magnitude >= finite[above]
    else:
        # Neighbours have at most five significant bits, so their midpoint is exact in float64.
        midpoint = (finite[below] + finite[above]) / 2
        up = (magnitude > midpoint) | ((magnitude == midpoint) & (above % 2 == 0))
    pattern = np.where(up, above, below)
    not_a_number = np.isnan(magnitude)
    if form.nans == "ieee":
        pattern = np.where(np.isinf(magnitude), len(finite), pattern)
    else:
        not_a_number |= np.isinf(magnitude)
    sign = np.signbit(number)
    if form.nans == "negative-zero":
        sign = sign & (pattern != 0)
    sign_bit = 1 << (form.bits - 1)
    pattern = np.where(sign, pattern | sign_bit, pattern)
    nan_pattern = sign_bit if form.nans == "negative-zero" else sign_bit - 1
    return np.where(not_a_number, nan_pattern, pattern).astype(form.storage)
