"""Transcendental and root instructions of single and half precision (CDNA3 ISA, "VOP1").

Computed in float64 and rounded once; the device is within 1 ulp (single) or 0.51 ulp (half) of that. Single precision
takes no denormals and gives none, whatever MODE says: LLVM, SIISelLowering.cpp: "v_rcp_f32 and v_rsq_f32 do not
support denormals", AMDGPULegalizerInfo.cpp, which scales around V_EXP_F32, V_LOG_F32 and V_SQRT_F32; measured on all
inputs of RDNA4 in ROCm's rocjitsu emulator ("F32 ignores MODE entirely: subnormal sources act as signed zero and
subnormal results flush"). Half precision follows MODE.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

_TINY = np.float32(2.0**-126)
_DOMAIN = 256.0


def flushed(a: Array) -> Array:
    """float32 with denormals as zeros of their sign."""
    tiny = np.abs(a) < _TINY
    return np.where(tiny, np.copysign(np.float32(0), a), a) if tiny.any() else a


def _reciprocal_root(a: Array) -> Array:
    # 1 / sqrt(-0) is -inf.
    return 1 / np.sqrt(a)


def _turned(a: Array, quarters: int) -> Array:
    """sin(2 pi (a + quarters / 4)), the period taken off before pi comes in."""
    # fmod, rint and the difference are exact.
    period = np.fmod(a, 1.0)
    quarter = np.rint(4 * period)
    angle = 2 * np.pi * (period - quarter / 4)
    turn = (np.where(np.isfinite(quarter), quarter, 0).astype(np.int64) + quarters) % 4
    value = np.where(turn & 1, np.cos(angle), np.sin(angle))
    # -0 stays: only the turned halves change sign.
    return np.where(turn >= 2, 0.0 - value, value)


def _sine(a: Array) -> Array:
    """sin(2 pi S0); 0 beyond 256 periods (Vega ISA, V_SIN_F32), NaN of infinities."""
    value = _turned(a, 0)
    value = np.where(value == 0, np.copysign(0.0, a), value)
    return np.where(np.isinf(a), np.nan, np.where(np.abs(a) > _DOMAIN, 0.0, value))


def _cosine(a: Array) -> Array:
    """cos(2 pi S0); 1 beyond 256 periods (Vega ISA, V_COS_F32), NaN of infinities."""
    return np.where(np.isinf(a), np.nan, np.where(np.abs(a) > _DOMAIN, 1.0, _turned(a, 1)))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "EXP": np.exp2, "LOG": np.log2, "SQRT": np.sqrt, "RSQ": _reciprocal_root, "SIN": _sine, "COS": _cosine,
}  # fmt: skip


def _define(name: str, function: Callable[[Array], Array]) -> None:
    def single(a: Array) -> Array:
        return flushed(function(flushed(a).astype(np.float64)).astype(np.float32))

    def half(a: Array) -> Array:
        return function(a.astype(np.float64)).astype(np.float16)

    valu(f"V_{name}_F32", signature="f32 -> f32")(single)
    valu(f"V_{name}_F16", signature="f16 -> f16")(half)


for _name, _function in _FUNCTIONS.items():
    _define(_name, _function)


@valu("V_RCP_F32", "V_RCP_IFLAG_F32", signature="f32 -> f32")
def reciprocal(a: Array) -> Array:
    """1 / S0."""
    return flushed(np.float32(1) / flushed(a))


@valu("V_RCP_F16", signature="f16 -> f16")
def reciprocal_half(a: Array) -> Array:
    """1 / S0."""
    return (1 / a.astype(np.float64)).astype(np.float16)
