"""16-bit integer instructions of two and three operands (CDNA3 ISA, "VOP2", "VOP3"). Results are zero-extended.

LLVM, GCNSubtarget::zeroesHigh16BitsOfDest: on this generation they clear the upper half of the destination.
"""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate.isa.valu_int import maximum3, median, minimum3
from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

_FIFTEEN = np.uint16(15)
_MOST = 0xFFFF


def _saturating_add(a: Array, b: Array) -> Array:
    return np.minimum(a.astype(np.uint32) + b, _MOST).astype(np.uint16)


def _saturating_subtract(a: Array, b: Array) -> Array:
    return np.maximum(a.astype(np.int32) - b, 0).astype(np.uint16)


valu("V_ADD_U16", signature="u16 u16 -> u16", saturate=_saturating_add)(np.add)
valu("V_SUB_U16", signature="u16 u16 -> u16", saturate=_saturating_subtract)(np.subtract)
valu("V_SUBREV_U16", signature="u16 u16 -> u16", saturate=lambda a, b: _saturating_subtract(b, a))(lambda a, b: b - a)
valu("V_MUL_LO_U16", signature="u16 u16 -> u16")(np.multiply)
valu("V_MAX_U16", signature="u16 u16 -> u16")(np.maximum)
valu("V_MIN_U16", signature="u16 u16 -> u16")(np.minimum)
valu("V_MAX_I16", signature="i16 i16 -> i16")(np.maximum)
valu("V_MIN_I16", signature="i16 i16 -> i16")(np.minimum)
for _type in ("i16", "u16"):
    _signature, _suffix = f"{_type} {_type} {_type} -> {_type}", _type.upper()
    valu(f"V_MIN3_{_suffix}", signature=_signature)(minimum3)
    valu(f"V_MAX3_{_suffix}", signature=_signature)(maximum3)
    valu(f"V_MED3_{_suffix}", signature=_signature)(median)


@valu("V_LSHLREV_B16", signature="u16 u16 -> u16")
def shift_left(count: Array, value: Array) -> Array:
    """D = S1 << S0[3:0]."""
    return value << (count & _FIFTEEN)


@valu("V_LSHRREV_B16", signature="u16 u16 -> u16")
def shift_right(count: Array, value: Array) -> Array:
    """D = S1 >> S0[3:0]."""
    return value >> (count & _FIFTEEN)


@valu("V_ASHRREV_I16", signature="u16 i16 -> i16")
def shift_right_arithmetic(count: Array, value: Array) -> Array:
    """D = S1 >> S0[3:0], keeping the sign."""
    return value >> (count & _FIFTEEN).view(np.int16)
