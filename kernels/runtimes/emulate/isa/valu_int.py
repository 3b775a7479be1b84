"""Vector integer arithmetic (CDNA3 ISA, "VOP1", "VOP2", "VOP3")."""

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
valu("V_SUB_U32", signature="u32 u32 -> u32", saturate=lambda a, b: np.where(b > a, np.uint32(0), a - b))(np.subtract)
valu("V_MUL_LO_U32", signature="u32 u32 -> u32")(np.multiply)


@valu("V_SUBREV_U32", signature="u32 u32 -> u32")
def subtract_reversed(a: Array, b: Array) -> Array:
    """D = S1 - S0."""
    return b - a


@valu("V_CNDMASK_B32", signature="b32 b32 mask -> b32")
def select(a: Array, b: Array, mask: Array) -> Array:
    """D = mask ? S1 : S0."""
    return np.where(mask, b, a)


@valu("V_LSHL_ADD_U32", signature="u32 u32 u32 -> u32")
def shift_add(a: Array, b: Array, c: Array) -> Array:
    """(S0 << S1[4:0]) + S2."""
    return (a << (b & _31)) + c


@valu("V_ADD_LSHL_U32", signature="u32 u32 u32 -> u32")
def add_shift(a: Array, b: Array, c: Array) -> Array:
    """(S0 + S1) << S2[4:0]."""
    return (a + b) << (c & _31)


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
    """S0 * S1 + S2 in 64 bits, signed; the mask gets bit 64 of the 65-bit sum, its sign (AMD pseudocode)."""
    product = a.astype(np.int64) * b
    total = product + c
    overflow = (product ^ total) & (c ^ total)
    return total, (total ^ overflow) < 0


def _clip_signed(total: Array) -> Array:
    return np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def _add_signed_saturated(a: Array, b: Array) -> Array:
    return _clip_signed(a.astype(np.int64) + b)


def _subtract_signed_saturated(a: Array, b: Array) -> Array:
    return _clip_signed(a.astype(np.int64) - b)


valu("V_ADD_I32", signature="i32 i32 -> i32", saturate=_add_signed_saturated)(np.add)
valu("V_SUB_I32", signature="i32 i32 -> i32", saturate=_subtract_signed_saturated)(np.subtract)
valu("V_MIN_I32", signature="i32 i32 -> i32")(np.minimum)
valu("V_MAX_I32", signature="i32 i32 -> i32")(np.maximum)
valu("V_MIN_U32", signature="u32 u32 -> u32")(np.minimum)
valu("V_MAX_U32", signature="u32 u32 -> u32")(np.maximum)


@valu("V_ADD_CO_U32", signature="u32 u32 -> u32 mask")
def add_carry_out(a: Array, b: Array) -> tuple[Array, Array]:
    """The mask gets the carry."""
    total = a + b
    return total, total < a


@valu("V_SUB_CO_U32", signature="u32 u32 -> u32 mask")
def subtract_borrow_out(a: Array, b: Array) -> tuple[Array, Array]:
    """The mask gets the borrow."""
    return a - b, b > a


@valu("V_SUBREV_CO_U32", signature="u32 u32 -> u32 mask")
def subtract_reversed_borrow_out(a: Array, b: Array) -> tuple[Array, Array]:
    """S1 - S0; the mask gets the borrow."""
    return b - a, a > b


@valu("V_ADDC_CO_U32", signature="u32 u32 mask -> u32 mask")
def add_with_carry(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """S0 + S1 + carry; the mask gets the carry."""
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


@valu("V_SUBB_CO_U32", signature="u32 u32 mask -> u32 mask")
def subtract_with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """S0 - S1 - borrow; the mask gets the borrow."""
    partial = a - b
    return partial - borrow, (b > a) | (partial < borrow)


@valu("V_SUBBREV_CO_U32", signature="u32 u32 mask -> u32 mask")
def subtract_reversed_with_borrow(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """S1 - S0 - borrow; the mask gets the borrow."""
    partial = b - a
    return partial - borrow, (a > b) | (partial < borrow)


_24 = np.uint32(0xFFFFFF)


def _signed_24(a: Array) -> Array:
    """Bits 23:0, sign-extended."""
    return (a << np.int32(8)) >> np.int32(8)


@valu("V_MUL_U32_U24", signature="u32 u32 -> u32")
def multiply_24(a: Array, b: Array) -> Array:
    """Low 32 bits of the product of the low 24 bits."""
    return (a & _24) * (b & _24)


@valu("V_MUL_I32_I24", signature="i32 i32 -> i32")
def multiply_signed_24(a: Array, b: Array) -> Array:
    """Low 32 bits of the product of the low 24 bits, signed."""
    return _signed_24(a) * _signed_24(b)


@valu("V_MUL_HI_U32_U24", signature="u32 u32 -> u32")
def multiply_high_24(a: Array, b: Array) -> Array:
    """Bits 47:32 of the product of the low 24 bits."""
    return ((a & _24).astype(np.uint64) * (b & _24) >> _32).astype(np.uint32)


@valu("V_MUL_HI_I32_I24", signature="i32 i32 -> i32")
def multiply_high_signed_24(a: Array, b: Array) -> Array:
    """Bits 63:32 of the product of the low 24 bits, signed."""
    return (_signed_24(a).astype(np.int64) * _signed_24(b) >> np.int64(32)).astype(np.int32)


@valu("V_MAD_U32_U24", signature="u32 u32 u32 -> u32")
def multiply_add_24(a: Array, b: Array, c: Array) -> Array:
    """Low 24 bits of S0 and S1 multiplied, plus S2."""
    return (a & _24) * (b & _24) + c


@valu("V_MAD_I32_I24", signature="i32 i32 i32 -> i32")
def multiply_add_signed_24(a: Array, b: Array, c: Array) -> Array:
    """Low 24 bits of S0 and S1 multiplied, signed, plus S2."""
    return _signed_24(a) * _signed_24(b) + c


@valu("V_MUL_HI_I32", signature="i32 i32 -> i32")
def multiply_high_signed(a: Array, b: Array) -> Array:
    """Bits 63:32 of the signed product."""
    return (a.astype(np.int64) * b >> np.int64(32)).astype(np.int32)


@valu("V_XAD_U32", signature="u32 u32 u32 -> u32")
def xor_add(a: Array, b: Array, c: Array) -> Array:
    """(S0 ^ S1) + S2."""
    return (a ^ b) + c


@valu("V_MIN3_I32", signature="i32 i32 i32 -> i32")
@valu("V_MIN3_U32", signature="u32 u32 u32 -> u32")
def minimum3(a: Array, b: Array, c: Array) -> Array:
    """Least of three."""
    return np.minimum(np.minimum(a, b), c)


@valu("V_MAX3_I32", signature="i32 i32 i32 -> i32")
@valu("V_MAX3_U32", signature="u32 u32 u32 -> u32")
def maximum3(a: Array, b: Array, c: Array) -> Array:
    """Greatest of three."""
    return np.maximum(np.maximum(a, b), c)


@valu("V_MED3_I32", signature="i32 i32 i32 -> i32")
@valu("V_MED3_U32", signature="u32 u32 u32 -> u32")
def median(a: Array, b: Array, c: Array) -> Array:
    """Middle one of three."""
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


@valu("V_SAD_U32", signature="u32 u32 u32 -> u32")
def absolute_difference_add(a: Array, b: Array, c: Array) -> Array:
    """|S0 - S1| + S2."""
    return np.maximum(a, b) - np.minimum(a, b) + c
