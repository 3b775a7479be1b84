"""Scalar bit fields, counts and searches (CDNA3 ISA, "SOP1", "SOP2", "SOPC")."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate.isa.salu import with_nonzero
from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.scalar import salu

_31, _63 = np.uint32(31), np.uint32(63)


def _low_bits(count: Array) -> Array:
    """A mask of ``count`` (0..64) low ones, uint64."""
    count = count.astype(np.uint64)
    every = np.uint64(0xFFFFFFFFFFFFFFFF)
    return np.where(count >= np.uint64(64), every, (np.uint64(1) << (count & np.uint64(63))) - np.uint64(1))


def _field(b: Array, position_mask: int) -> tuple[Array, Array]:
    """Offset and width (S1[22:16]) of a bit field, uint64."""
    return (b & np.uint32(position_mask)).astype(np.uint64), (b >> np.uint32(16) & np.uint32(0x7F)).astype(np.uint64)


def _extract(a: Array, b: Array, position_mask: int) -> Array:
    offset, width = _field(b, position_mask)
    return (a.astype(np.uint64) >> offset) & _low_bits(width)


def _extract_signed(a: Array, b: Array, position_mask: int) -> Array:
    """The field of ``a`` (i32 or i64) sign-extended to int64; no bits give 0.

    The shift is arithmetic, so a field that runs past the top is filled with the sign (AMD pseudocode).
    """
    offset, width = _field(b, position_mask)
    value = (a.astype(np.int64) >> offset.astype(np.int64)).view(np.uint64)
    left = (np.uint64(64) - np.minimum(width, np.uint64(8 * a.itemsize))) & np.uint64(63)
    return np.where(width == 0, np.int64(0), (value << left).view(np.int64) >> left.astype(np.int64))


@salu("S_BFE_U32", signature="u32 u32 -> u32 scc")
def extract(a: Array, b: Array) -> tuple[Array, Array]:
    """S1[22:16] bits of S0 from bit S1[4:0]; SCC = result is not zero."""
    value = _extract(a, b, 31).astype(np.uint32)
    return value, value != 0


@salu("S_BFE_U64", signature="u64 u32 -> u64 scc")
def extract_64(a: Array, b: Array) -> tuple[Array, Array]:
    """S1[22:16] bits of S0 from bit S1[5:0]; SCC = result is not zero."""
    value = _extract(a, b, 63)
    return value, value != 0


@salu("S_BFE_I32", signature="i32 u32 -> i32 scc")
def extract_signed(a: Array, b: Array) -> tuple[Array, Array]:
    """As S_BFE_U32, sign-extended."""
    value = _extract_signed(a, b, 31).astype(np.int32)
    return value, value != 0


@salu("S_BFE_I64", signature="i64 u32 -> i64 scc")
def extract_signed_64(a: Array, b: Array) -> tuple[Array, Array]:
    """As S_BFE_U64, sign-extended."""
    value = _extract_signed(a, b, 63)
    return value, value != 0


@salu("S_BFM_B32", signature="u32 u32 -> b32")
def field_mask(a: Array, b: Array) -> Array:
    """S0[4:0] ones from bit S1[4:0] up."""
    return ((np.uint32(1) << (a & _31)) - np.uint32(1)) << (b & _31)


@salu("S_BFM_B64", signature="u32 u32 -> b64")
def field_mask_64(a: Array, b: Array) -> Array:
    """S0[5:0] ones from bit S1[5:0] up."""
    return _low_bits(a & _63) << (b & _63).astype(np.uint64)


def _reverse(a: Array) -> Array:
    """The bits in reverse order."""
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)
    return np.packbits(np.unpackbits(octets, axis=1, bitorder="little"), axis=1).view(a.dtype).byteswap()


salu("S_BREV_B32", signature="b32 -> b32")(_reverse)
salu("S_BREV_B64", signature="b64 -> b64")(_reverse)


def _bits_of(a: Array) -> Array:
    """Bits, lowest first: bool [n, 32 or 64]."""
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)
    return np.unpackbits(octets, axis=1, bitorder="little").view(np.bool_)


def _first(bits: Array) -> Array:
    """Position of the first true in each row, -1 without one: int32 [n, 1]."""
    return np.where(bits.any(axis=1), bits.argmax(axis=1), -1).astype(np.int32)[:, None]


for _bits in (32, 64):
    _kind = f"u{_bits}"
    salu(f"S_FF1_I32_B{_bits}", signature=f"{_kind} -> i32")(lambda a: _first(_bits_of(a)))
    salu(f"S_FF0_I32_B{_bits}", signature=f"{_kind} -> i32")(lambda a: _first(~_bits_of(a)))
    salu(f"S_FLBIT_I32_B{_bits}", signature=f"{_kind} -> i32")(lambda a: _first(_bits_of(a)[:, ::-1]))
    salu(f"S_BCNT1_I32_B{_bits}", signature=f"{_kind} -> i32 scc")(
        with_nonzero(lambda a: _bits_of(a).sum(axis=1, dtype=np.int32)[:, None])
    )
    salu(f"S_BCNT0_I32_B{_bits}", signature=f"{_kind} -> i32 scc")(
        with_nonzero(lambda a: (~_bits_of(a)).sum(axis=1, dtype=np.int32)[:, None])
    )


@salu("S_FLBIT_I32", signature="i32 -> i32")
@salu("S_FLBIT_I32_I64", signature="i64 -> i32")
def leading_sign_bits(a: Array) -> Array:
    """Position from the top of the first bit that differs from the sign; -1 for 0 and -1."""
    unsigned = (a ^ (a >> a.dtype.type(8 * a.itemsize - 1))).view(f"u{a.itemsize}")
    return _first(_bits_of(unsigned)[:, ::-1])


@salu("S_BITSET0_B32", signature="u32 old:b32 -> b32")
def clear_bit(a: Array, old: Array) -> Array:
    """Clear bit S0[4:0] of D."""
    return old & ~(np.uint32(1) << (a & _31))


@salu("S_BITSET1_B32", signature="u32 old:b32 -> b32")
def set_bit(a: Array, old: Array) -> Array:
    """Set bit S0[4:0] of D."""
    return old | np.uint32(1) << (a & _31)


@salu("S_BITSET0_B64", signature="u32 old:b64 -> b64")
def clear_bit_64(a: Array, old: Array) -> Array:
    """Clear bit S0[5:0] of D."""
    return old & ~(np.uint64(1) << (a & _63).astype(np.uint64))


@salu("S_BITSET1_B64", signature="u32 old:b64 -> b64")
def set_bit_64(a: Array, old: Array) -> Array:
    """Set bit S0[5:0] of D."""
    return old | np.uint64(1) << (a & _63).astype(np.uint64)


for _wanted in (0, 1):
    salu(f"S_BITCMP{_wanted}_B32", signature="b32 u32 -> scc")(
        lambda a, b, wanted=_wanted: (a >> (b & _31) & np.uint32(1)) == wanted
    )
    salu(f"S_BITCMP{_wanted}_B64", signature="b64 u32 -> scc")(
        lambda a, b, wanted=_wanted: (a >> (b & _63).astype(np.uint64) & np.uint64(1)) == wanted
    )


def _pack(name: str, low: int, high: int) -> None:
    """A halfword of S0 below a halfword of S1."""

    @salu(f"S_PACK_{name}_B32_B16", signature="b32 b32 -> b32")
    def pack(a: Array, b: Array) -> Array:
        return (a >> np.uint32(low) & np.uint32(0xFFFF)) | (b >> np.uint32(high)) << np.uint32(16)


_pack("LL", 0, 0)
_pack("LH", 0, 16)
_pack("HH", 16, 16)
