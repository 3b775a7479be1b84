"""Vector shifts and bit operations (CDNA3 ISA, "VOP1", "VOP2", "VOP3")."""

from __future__ import annotations

from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define
from waveproof.kernels.runtimes.emulate.vector import valu

_31, _32 = np.uint32(31), np.uint64(32)

valu("V_AND_B32", signature="b32 b32 -> b32")(np.bitwise_and)
valu("V_OR_B32", signature="b32 b32 -> b32")(np.bitwise_or)
valu("V_XOR_B32", signature="b32 b32 -> b32")(np.bitwise_xor)
valu("V_NOT_B32", signature="b32 -> b32")(np.invert)


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


@valu("V_ALIGNBIT_B32", signature="u32 u32 u32 -> u32")
def align_bits(a: Array, b: Array, c: Array) -> Array:
    """Bits from S2[4:0] up of {S0, S1}."""
    joined = a.astype(np.uint64) << _32 | b
    return (joined >> (c & _31).astype(np.uint64)).astype(np.uint32)


@valu("V_XNOR_B32", signature="b32 b32 -> b32")
def xnor(a: Array, b: Array) -> Array:
    """~(S0 ^ S1)."""
    return ~(a ^ b)


@valu("V_BFE_U32", signature="u32 u32 u32 -> u32")
def extract(a: Array, b: Array, c: Array) -> Array:
    """S2[4:0] bits of S0 from bit S1[4:0]; none gives 0."""
    return (a >> (b & _31)) & ((np.uint32(1) << (c & _31)) - np.uint32(1))


@valu("V_BFE_I32", signature="i32 u32 u32 -> i32")
def extract_signed(a: Array, b: Array, c: Array) -> Array:
    """S2[4:0] bits of S0 from bit S1[4:0], sign-extended (past bit 31: the sign, AMD pseudocode); none gives 0."""
    width = c & _31
    left = ((np.uint32(32) - width) & _31).astype(np.int32)
    value = ((a >> (b & _31).astype(np.int32)) << left) >> left
    return np.where(width == 0, np.int32(0), value)


@valu("V_BFI_B32", signature="b32 b32 b32 -> b32")
def insert(a: Array, b: Array, c: Array) -> Array:
    """Bits of S1 where S0 is set, of S2 elsewhere."""
    return (a & b) | (~a & c)


@valu("V_BFM_B32", signature="u32 u32 -> b32")
def field_mask(a: Array, b: Array) -> Array:
    """S0[4:0] ones from bit S1[4:0] up."""
    return ((np.uint32(1) << (a & _31)) - np.uint32(1)) << (b & _31)


@valu("V_BFREV_B32", signature="b32 -> b32")
def reverse_bits(a: Array) -> Array:
    """Bits in reverse order."""
    a = (a >> np.uint32(1) & np.uint32(0x55555555)) | (a & np.uint32(0x55555555)) << np.uint32(1)
    a = (a >> np.uint32(2) & np.uint32(0x33333333)) | (a & np.uint32(0x33333333)) << np.uint32(2)
    a = (a >> np.uint32(4) & np.uint32(0x0F0F0F0F)) | (a & np.uint32(0x0F0F0F0F)) << np.uint32(4)
    return a.byteswap()


def _count_bits(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32) if hasattr(np, "bitwise_count") else _count_bits_slowly(a)


def _count_bits_slowly(a: Array) -> Array:
    """For numpy 1.26: the classic sum by halves."""
    a = a - (a >> np.uint32(1) & np.uint32(0x55555555))
    a = (a & np.uint32(0x33333333)) + (a >> np.uint32(2) & np.uint32(0x33333333))
    return ((a + (a >> np.uint32(4))) & np.uint32(0x0F0F0F0F)) * np.uint32(0x01010101) >> np.uint32(24)


@valu("V_BCNT_U32_B32", signature="u32 u32 -> u32")
def count_bits(a: Array, b: Array) -> Array:
    """Ones of S0, plus S1."""
    return _count_bits(a) + b


_BELOW = (np.uint64(1) << np.arange(64, dtype=np.uint64)) - np.uint64(1)
"""For each lane, ones at the lanes below it."""


@valu("V_MBCNT_LO_U32_B32", signature="u32 u32 -> u32")
def count_below_low(a: Array, b: Array) -> Array:
    """Ones of S0 at lanes below this one, of lanes 0-31, plus S1."""
    return _count_bits(a & _BELOW.astype(np.uint32)[None]) + b


@valu("V_MBCNT_HI_U32_B32", signature="u32 u32 -> u32")
def count_below_high(a: Array, b: Array) -> Array:
    """Ones of S0 at lanes below this one, of lanes 32-63, plus S1."""
    return _count_bits(a & (_BELOW >> _32).astype(np.uint32)[None]) + b


def _first_from_top(a: Array) -> Array:
    """Zeros above the highest one; -1 for 0. int32."""
    exponent = np.frexp(a.astype(np.float64))[1]
    return np.where(a == 0, -1, 32 - exponent).astype(np.int32)


@valu("V_FFBH_U32", signature="u32 -> i32")
def leading_zeros(a: Array) -> Array:
    """Zeros above the highest one; -1 for 0."""
    return _first_from_top(a)


@valu("V_FFBH_I32", signature="i32 -> i32")
def leading_sign_bits(a: Array) -> Array:
    """Bits from the top that equal the sign; -1 for 0 and -1."""
    return _first_from_top((a ^ (a >> np.int32(31))).view(np.uint32))


@valu("V_FFBL_B32", signature="u32 -> i32")
def trailing_zeros(a: Array) -> Array:
    """Position of the lowest one; -1 for 0."""
    lowest = a & (~a + np.uint32(1))
    return np.where(a == 0, -1, np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.int32)


@valu("V_ALIGNBYTE_B32", signature="u32 u32 u32 -> u32")
def align_bytes(a: Array, b: Array, c: Array) -> Array:
    """Bytes from S2[1:0] up of {S0, S1}."""
    joined = a.astype(np.uint64) << _32 | b
    return (joined >> ((c & np.uint32(3)) * np.uint32(8)).astype(np.uint64)).astype(np.uint32)


def _permute_alike(a: Array, b: Array, selector: int) -> Array:
    """V_PERM_B32 where all lanes select the same bytes, and no signs or constants."""
    octets = [np.ascontiguousarray(x)[..., None].view(np.uint8) for x in np.broadcast_arrays(b, a)]
    result = np.empty(octets[0].shape, np.uint8)
    for at in range(4):
        select = selector >> 8 * at & 7
        result[..., at] = octets[select >> 2][..., select & 3]
    return result.view(np.uint32)[..., 0]


@valu("V_PERM_B32", signature="u32 u32 u32 -> u32")
def permute_bytes(a: Array, b: Array, c: Array) -> Array:
    """Each byte of S2 selects a byte of {S0, S1} (0-3: S1), the sign of byte 1, 3, 5 or 7 (8-11), 0x00 (12) or 0xff."""
    first = int(c.flat[0])
    if (first & 0x08080808) == 0 and (c.size == 1 or (c == c.flat[0]).all()):
        return _permute_alike(a, b, first)
    joined = a.astype(np.uint64) << _32 | b
    result = np.zeros(np.broadcast_shapes(joined.shape, c.shape), np.uint32)
    for at in range(4):
        selector = c >> np.uint32(8 * at) & np.uint32(0xFF)
        shift = ((selector & np.uint32(7)) * np.uint32(8)).astype(np.uint64)
        octet = (joined >> shift).astype(np.uint32) & np.uint32(255)
        if (selector > 7).any():
            sign_at = ((selector & np.uint32(3)) * np.uint32(16) + np.uint32(15)).astype(np.uint64)
            sign = np.where(joined >> sign_at & np.uint64(1), np.uint32(255), np.uint32(0))
            special = np.where(selector == 12, np.uint32(0), np.where(selector > 12, np.uint32(255), sign))
            octet = np.where(selector > 7, special, octet)
        result |= octet << np.uint32(8 * at)
    return result


@define("V_BITOP3_B32", architectures=("gfx950",))
def any_logic(instruction: Instruction, context: Context) -> Step:
    """Any function of three bits: the truth table is in OMOD, ABS and NEG, index S0 << 2 | S1 << 1 | S2."""
    return _any_logic(instruction, context, "b32", np.uint32)


@define("V_BITOP3_B16", architectures=("gfx950",))
def any_logic_of_halves(instruction: Instruction, context: Context) -> Step:
    """The same on low halves; the upper half is cleared, as LLVM has it of 16-bit results on this generation."""
    if instruction.get("opsel"):
        raise InstructionUnsupported("V_BITOP3_B16 with OP_SEL")
    if any(240 <= number <= 248 for number in (instruction.src0, instruction.src1, instruction.src2)):
        raise InstructionUnsupported("V_BITOP3_B16 of an inline float")
    return _any_logic(instruction, context, "b16", np.uint16)


def _any_logic(instruction: Instruction, context: Context, kind: str, dtype: type[np.unsignedinteger[Any]]) -> Step:
    table = instruction.omod << 6 | instruction.abs << 3 | instruction.neg
    numbers = (instruction.src0, instruction.src1, instruction.src2)
    readers = [operands.source(number, kind, context, at=at) for at, number in enumerate(numbers)]
    row = operands.vector_row(instruction.vdst - 256 + context.gpr_index[3], context)
    write = operands.vector_writer(row, kind, zero_high=kind == "b16")

    def step(group: Group) -> None:
        a, b, c = (read(group) for read in readers)
        result = np.zeros((1, 1), dtype)
        for index in range(8):
            if table >> index & 1:
                result = result | (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
        write(group, result)

    return step
