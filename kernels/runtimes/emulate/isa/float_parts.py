"""Integral and fractional parts, mantissa and exponent of floats, all widths (CDNA3 ISA, "VOP1"; AMD pseudocode)."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu


def _fract(a: Array) -> Array:
    """S0 - floor(S0), less than 1 also where that rounds to 1; NaN of infinities.

    LLVM replaces ``minnum(x - floor(x), nextafter(1, -1))`` by it (AMDGPUCodeGenPrepare::matchFractPat).
    """
    below_one = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.minimum(a - np.floor(a), below_one)


def _mantissa(a: Array) -> Array:
    """In [0.5, 1) with the sign; infinities, NaN and zeros as they are."""
    return np.frexp(a)[0]


def _exponent(a: Array, dtype: type[np.signedinteger]) -> Array:
    """Such that S0 = mantissa * 2^exponent; 0 for zeros, infinities and NaN.

    For zeros as LLVM's llvm.frexp, which is this instruction, needs it; the pseudocode's formula would give -126.
    """
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(dtype)


for _kind, _result in (("f16", "i16"), ("f32", "i32"), ("f64", "i32")):
    _type = _kind.upper()
    _same = f"{_kind} -> {_kind}"
    valu(f"V_CEIL_{_type}", signature=_same)(np.ceil)
    valu(f"V_FLOOR_{_type}", signature=_same)(np.floor)
    valu(f"V_TRUNC_{_type}", signature=_same)(np.trunc)
    valu(f"V_RNDNE_{_type}", signature=_same)(np.rint)
    valu(f"V_FRACT_{_type}", signature=_same)(_fract)
    valu(f"V_FREXP_MANT_{_type}", signature=_same)(_mantissa)
    _dtype: type[np.signedinteger] = np.int16 if _result == "i16" else np.int32
    valu(f"V_FREXP_EXP_{_result.upper()}_{_type}", signature=f"{_kind} -> {_result}")(
        lambda a, dtype=_dtype: _exponent(a, dtype)
    )
