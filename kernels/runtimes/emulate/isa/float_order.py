"""Minimum, maximum and median of floats (CDNA3 ISA, "VOP2", "VOP3"; AMD pseudocode), all widths.

One NaN gives the other operand. With MODE.IEEE a signalling NaN comes out instead, made quiet. -0 is less than +0.
The median of operands with a NaN among them is their minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

_UNSIGNED: dict[int, type[np.unsignedinteger]] = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_QUIET = {2: 1 << 9, 4: 1 << 22, 8: 1 << 51}
Binary = Callable[[Array, Array], Array]


def minimum(a: Array, b: Array) -> Array:
    """The lesser of two; MODE.IEEE clear."""
    value = np.fmin(a, b)
    tie = (a == b) & (a == 0)
    return np.where(tie, np.where(np.signbit(b), b, a), value) if tie.any() else value


def maximum(a: Array, b: Array) -> Array:
    """The greater of two; MODE.IEEE clear."""
    value = np.fmax(a, b)
    tie = (a == b) & (a == 0)
    return np.where(tie, np.where(np.signbit(a), b, a), value) if tie.any() else value


def is_signalling(a: Array) -> Array:
    """Whether a value is a NaN without the quiet bit."""
    size = a.dtype.itemsize
    return np.isnan(a) & ((a.view(_UNSIGNED[size]) & _UNSIGNED[size](_QUIET[size])) == 0)


def _quieted(a: Array) -> Array:
    size = a.dtype.itemsize
    return (a.view(_UNSIGNED[size]) | _UNSIGNED[size](_QUIET[size])).view(a.dtype)


def _ieee(function: Binary) -> Binary:
    def compare(a: Array, b: Array) -> Array:
        value = function(a, b)
        if not np.isnan(a).any() and not np.isnan(b).any():
            return value
        value = np.where(is_signalling(b), _quieted(b), value)
        return np.where(is_signalling(a), _quieted(a), value)

    return compare


minimum_ieee, maximum_ieee = _ieee(minimum), _ieee(maximum)


def _define(kind: str, three: bool) -> None:
    bits = kind.upper()
    pairs = [(minimum, maximum), (minimum_ieee, maximum_ieee)]
    for name, at in (("MIN", 0), ("MAX", 1)):
        valu(f"V_{name}_{bits}", signature=f"{kind} {kind} -> {kind}", ieee=pairs[1][at])(pairs[0][at])
    if not three:
        return
    for name, at in (("MIN3", 0), ("MAX3", 1)):
        triple = [lambda a, b, c, f=pair[at]: f(f(a, b), c) for pair in pairs]
        valu(f"V_{name}_{bits}", signature=f"{kind} {kind} {kind} -> {kind}", ieee=triple[1])(triple[0])

    def median(a: Array, b: Array, c: Array, least: Binary, most: Binary) -> Array:
        top = most(most(a, b), c)
        # As the pseudocode has it: it decides which of equal zeros comes out.
        middle = np.where(top == a, most(b, c), np.where(top == b, most(a, c), most(a, b)))
        nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.where(nan, least(least(a, b), c), middle) if nan.any() else middle

    medians = [lambda a, b, c, p=pair: median(a, b, c, *p) for pair in pairs]
    valu(f"V_MED3_{bits}", signature=f"{kind} {kind} {kind} -> {kind}", ieee=medians[1])(medians[0])


_define("f16", three=True)
_define("f32", three=True)
_define("f64", three=False)


def _define_propagating(name: str, function: Callable[..., Array]) -> None:
    """IEEE 754-2019 minimum and maximum: a NaN operand gives NaN (LLVM, llvm.minimum: "V_MINIMUM3" implements it)."""

    @valu(f"V_{name}3_F32", signature="f32 f32 f32 -> f32", architectures=("gfx950",))
    def three(a: Array, b: Array, c: Array) -> Array:
        value = function(function(a, b), c)
        nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.where(nan, np.float32(np.nan), value) if nan.any() else value


_define_propagating("MINIMUM", minimum)
_define_propagating("MAXIMUM", maximum)
