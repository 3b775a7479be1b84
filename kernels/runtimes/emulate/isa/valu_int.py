"""Vector integer arithmetic, shifts and bits (CDNA3 ISA, "VOP1", "VOP2", "VOP3")."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.vector import valu

_31, _32 = np.uint32(31), np.uint64(32)


def _add_saturated(a: Array, b: Array) -> Array:
    total = a + b
    return np.where(total < a, np.uint32(0xFFFFFFFF), total)


@valu("V_MOV_B32", signature="b32 -> b32")
@valu("V_MOV_B64", signature="b64 -> b64")
def move(a: Array) -> Array:
    """D = S0."""
    return a


valu("V_ADD_U32", signature="u32 u32 -> u32", saturate=_add_saturated)(np.add)
valu("V_SUB_U32", signature="u32 u32 -> u32")(np.subtract)
valu("V_AND_B32", signature="b32 b32 -> b32")(np.bitwise_and)
valu("V_OR_B32", signature="b32 b32 -> b32")(np.bitwise_or)
valu("V_XOR_B32", signature="b32 b32 -> b32")(np.bitwise_xor)
valu("V_NOT_B32", signature="b32 -> b32")(np.invert)
valu("V_MUL_LO_U32", signature="u32 u32 -> u32")(np.multiply)


@valu("V_SUBREV_U32", signature="u32 u32 -> u32")
def subtract_reversed(a: Array, b: Array) -> Array:
    """D = S1 - S0."""
    return b - a


@valu("V_CNDMASK_B32", signature="b32 b32 mask -> b32")
def select(a: Array, b: Array, mask: Array) -> Array:
    """D = mask ? S1 : S0."""
    return np.where(mask, b, a)


@valu("V_LSHLREV_B32", signature="u32 b32 -> b32")
def shift_left(a: Array, b: Array) -> Array:
    """S1 << S0[4:0]."""
    return b << (a & _31)


@valu("V_LSHRREV_B32", signature="u32 b32 -> b32")
def shift_right(a: Array, b: Array) -> Array:
    """S1 >> S0[4:0]."""
    return b >> (a & _31)


@valu("V_ASHRREV_I32", signature="u32 i32 -> i32")
def shift_right_signed(a: Array, b: Array) -> Array:
    """S1 >> S0[4:0], signed."""
    return b >> (a & _31).astype(np.int32)


@valu("V_LSHLREV_B64", signature="u32 b64 -> b64")
def shift_left_64(a: Array, b: Array) -> Array:
    """S1 << S0[5:0]."""
    return b << (a & np.uint32(63)).astype(np.uint64)


@valu("V_LSHRREV_B64", signature="u32 b64 -> b64")
def shift_right_64(a: Array, b: Array) -> Array:
    """S1 >> S0[5:0]."""
    return b >> (a & np.uint32(63)).astype(np.uint64)


@valu("V_ASHRREV_I64", signature="u32 i64 -> i64")
def shift_right_signed_64(a: Array, b: Array) -> Array:
    """S1 >> S0[5:0], signed."""
    return b >> (a & np.uint32(63)).astype(np.int64)


@valu("V_LSHL_ADD_U32", signature="u32 u32 u32 -> u32")
def shift_add(a: Array, b: Array, c: Array) -> Array:
    """(S0 << S1[4:0]) + S2."""
    return (a << (b & _31)) + c


@valu("V_ADD_LSHL_U32", signature="u32 u32 u32 -> u32")
def add_shift(a: Array, b: Array, c: Array) -> Array:
    """(S0 + S1) << S2[4:0]."""
    return (a + b) << (c & _31)


@valu("V_LSHL_OR_B32", signature="u32 u32 u32 -> u32")
def shift_or(a: Array, b: Array, c: Array) -> Array:
    """(S0 << S1[4:0]) | S2."""
    return (a << (b & _31)) | c


@valu("V_AND_OR_B32", signature="b32 b32 b32 -> b32")
def and_or(a: Array, b: Array, c: Array) -> Array:
    """(S0 & S1) | S2."""
    return (a & b) | c


@valu("V_OR3_B32", signature="b32 b32 b32 -> b32")
def or3(a: Array, b: Array, c: Array) -> Array:
    """S0 | S1 | S2."""
    return a | b | c


@valu("V_ADD3_U32", signature="u32 u32 u32 -> u32")
def add3(a: Array, b: Array, c: Array) -> Array:
    """S0 + S1 + S2."""
    return a + b + c


@valu("V_LSHL_ADD_U64", signature="u64 u32 u64 -> u64")
def shift_add_64(a: Array, b: Array, c: Array) -> Array:
    """(S0 << S1[2:0]) + S2 (LLVM: shifts above 4 are not produced; the low three bits count)."""
    return (a << (b & np.uint32(7)).astype(np.uint64)) + c


@valu("V_MUL_HI_U32", signature="u32 u32 -> u32")
def multiply_high(a: Array, b: Array) -> Array:
    """Bits 63:32 of the unsigned product."""
    return (a.astype(np.uint64) * b >> _32).astype(np.uint32)


@valu("V_MAD_U64_U32", signature="u32 u32 u64 -> u64 mask")
def multiply_add_64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """S0 * S1 + S2 in 64 bits; the mask gets the carry."""
    product = a.astype(np.uint64) * b
    total = product + c
    return total, total < product


@valu("V_MAD_I64_I32", signature="i32 i32 i64 -> i64 mask")
def multiply_add_signed_64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """S0 * S1 + S2 in 64 bits, signed; the mask gets the overflow."""
    product = a.astype(np.int64) * b
    total = product + c
    return total, ((product ^ total) & (c ^ total)) < 0


@valu("V_ALIGNBIT_B32", signature="u32 u32 u32 -> u32")
def align_bits(a: Array, b: Array, c: Array) -> Array:
    """Bits from S2[4:0] up of {S0, S1}."""
    joined = a.astype(np.uint64) << _32 | b
    return (joined >> (c & _31).astype(np.uint64)).astype(np.uint32)
