"""Operands: from a source number to a closure that reads an array, and from a destination to one that writes.

Kinds are ``b32 u32 i32 f32``, ``b64 u64 i64 f64`` (two registers, low first), ``b16 u16 i16 f16`` (half a register) and
``mask`` (a scalar register pair, one bit a lane). Readers return arrays that broadcast to [n, 64]: vector registers
[n, 64], scalar ones [n, 1], constants [1, 1]; **they may be views of registers**, so handlers must not write to them.

Source numbers: CDNA3 ISA, "Scalar ALU operands" and "Vector ALU operands".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate.decode import LITERAL, operand_name
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registers import EXEC, LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context

Reader = Callable[[Group], Array]
Writer = Callable[[Group, Any], None]
"""Takes an array, or a numpy scalar where the same goes everywhere."""

DTYPES: dict[str, type[np.generic]] = {
    "b32": np.uint32, "u32": np.uint32, "i32": np.int32, "f32": np.float32,
    "b64": np.uint64, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
    "b16": np.uint16, "u16": np.uint16, "i16": np.int16, "f16": np.float16,
}  # fmt: skip

_FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0}
_INVERSE_2PI = {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}
_VCCZ, _EXECZ, _SCC = 251, 252, 253


def width(kind: str) -> int:
    """Bits of a kind."""
    return int(kind[1:])


def constant_bits(number: int, kind: str, literal: int | None = None) -> int | None:
    """Bit pattern of an inline constant or literal as an operand of ``kind``; None if the number is no constant.

    A 32-bit literal is the high half of an f64, sign-extended for i64 and zero-extended for b64 and u64 (CDNA3 ISA,
    "Literal constants"); integer constants are the same integer in every kind, also in floating-point ones.
    """
    bits = width(kind)
    mask = (1 << bits) - 1
    if number == LITERAL:
        if literal is None:
            raise CodeObjectInvalid("literal operand in an instruction without a literal")
        if kind == "f64":
            return literal << 32
        if kind == "i64":
            return (literal - ((literal & 0x80000000) << 1)) & mask
        return literal & mask
    if 128 <= number <= 192:
        return number - 128
    if 193 <= number <= 208:
        return (192 - number) & mask
    if number in _FLOATS:
        format = {16: "<e", 32: "<f", 64: "<d"}[bits]
        return int.from_bytes(struct.pack(format, _FLOATS[number]), "little")
    if number == 248:
        return _INVERSE_2PI[bits]
    return None


def constant(bits: int, kind: str) -> Array:
    """A constant as an array [1, 1] of the kind's dtype."""
    unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[width(kind)]
    array = np.array([[bits]], unsigned).view(DTYPES[kind])
    array.flags.writeable = False
    return array


def _check_vgpr(register: int, count: int, context: Context) -> None:
    if not 0 <= register <= context.vgprs - count:
        raise CodeObjectInvalid(
            f"v{register}{f' and the {count - 1} after it' if count > 1 else ''}: "
            f"the kernel descriptor allocates {context.vgprs} VGPRs"
        )


def vector_row(number: int, context: Context, count: int = 1, accumulator: bool = False) -> int:
    """Row of the register array for VGPR (or AccVGPR) ``number`` (0..255) and the count-1 after it.

    Raises:
        CodeObjectInvalid: the kernel does not have that many registers.
    """
    if accumulator:
        if not 0 <= number <= context.accvgprs - count:
            raise CodeObjectInvalid(f"a{number}: the kernel descriptor allocates {context.accvgprs} AccVGPRs")
        return context.vgprs + number
    _check_vgpr(number, count, context)
    return number


def vector_reader(row: int, kind: str, half: int = 0) -> Reader:
    """Reader of a row of the register array (two rows for 64-bit kinds)."""
    if kind in ("b32", "u32"):
        return lambda group: group.v[row]
    if kind == "i32":
        return lambda group: group.vi[row]
    if kind == "f32":
        return lambda group: group.vf[row]
    if kind in ("b16", "u16"):
        key = 2 * row + half
        return lambda group: group.hu[key]
    if kind == "i16":
        key = 2 * row + half
        return lambda group: group.hi[key]
    if kind == "f16":
        key = 2 * row + half
        return lambda group: group.hf[key]
    dtype = DTYPES[kind]

    def pair(group: Group) -> Array:
        joined = np.empty((group.n, LANES, 2), np.uint32)
        joined[:, :, 0] = group.v[row]
        joined[:, :, 1] = group.v[row + 1]
        return joined.view(dtype)[:, :, 0]

    return pair


def scalar_reader(number: int, kind: str, half: int = 0) -> Reader:
    """Reader of a scalar register (an aligned pair for 64-bit kinds) or of VCCZ, EXECZ, SCC. Arrays are [n, 1]."""
    if number >= 128:
        if number == _SCC:
            flag: Reader = lambda group: group.scc  # noqa: E731
        elif number in (_VCCZ, _EXECZ):
            pair = 53 if number == _VCCZ else EXEC // 2
            flag = lambda group: group.s64[pair] == 0  # noqa: E731
        else:
            raise InstructionUnsupported(f"source operand number {number} ({operand_name(number)})")
        dtype = DTYPES[kind]
        return lambda group: flag(group).astype(np.uint64 if width(kind) == 64 else np.uint32).view(dtype)[:, :1]
    bits = width(kind)
    if bits == 64:
        if number & 1:
            raise CodeObjectInvalid(f"s{number} starts a 64-bit operand, which must be even")
        index = number // 2
        if kind in ("b64", "u64"):
            return lambda group: group.s64[index]
        dtype = DTYPES[kind]
        return lambda group: group.s64[index].view(dtype)
    if bits == 16:
        dtype, shift = DTYPES[kind], 16 * half
        return lambda group: (group.s[number] >> np.uint32(shift)).astype(np.uint16).view(dtype)
    if kind == "i32":
        return lambda group: group.si[number]
    if kind == "f32":
        return lambda group: group.sf[number]
    return lambda group: group.s[number]


def source(number: int, kind: str, context: Context, literal: int | None = None, half: int = 0, at: int = 0) -> Reader:
    """Reader of a 9-bit source number.

    Args:
        number: 0-127 scalar registers, 128-255 constants, 256-511 VGPRs.
        kind: see the module.
        context: register allocation and register-index mode.
        literal: value after the instruction, if any.
        half: for 16-bit kinds, 1 reads the high half of the register.
        at: position among the sources (0, 1, 2), for the register-index mode.
    """
    if number >= 256:
        register = number - 256 + context.gpr_index[at]
        _check_vgpr(register, 2 if width(kind) == 64 else 1, context)
        return vector_reader(register, kind, half)
    bits = constant_bits(number, kind, literal)
    if bits is not None:
        value = constant(bits if not half else (bits >> 16) & 0xFFFF, kind)
        return lambda group: value
    return scalar_reader(number, kind, half)


def mask_source(number: int) -> Reader:
    """Reader of a lane mask, bool [n, 64], from a scalar pair or an inline constant."""
    bits = constant_bits(number, "b64")
    if bits is not None:
        value = np.array([[bool(bits >> lane & 1) for lane in range(LANES)]])
        return lambda group: value
    if number & 1 or number >= 128:
        raise CodeObjectInvalid(f"{operand_name(number)} cannot be a lane mask")
    return lambda group: group.lane_mask(number)


def vector_writer(row: int, kind: str, half: int = 0, zero_high: bool = False) -> Writer:
    """Writer to a row of the register array: lanes of EXEC get the value, the others keep theirs.

    Args:
        row: row (the first of two for 64-bit kinds).
        kind: see the module. The value's dtype must be the kind's, or convert to it without changing its kind.
        half: which half a 16-bit kind is written to; the other half is kept
        zero_high: ... unless this is set: then the value is zero-extended to 32 bits.
    """
    if width(kind) == 64:

        def write_pair(group: Group, value: Array) -> None:
            whole = np.ascontiguousarray(np.broadcast_to(value, (group.n, LANES))).view(np.uint32)
            if group.full:
                group.v[row][:] = whole[:, 0::2]
                group.v[row + 1][:] = whole[:, 1::2]
            else:
                np.copyto(group.v[row], whole[:, 0::2], where=group.mask)
                np.copyto(group.v[row + 1], whole[:, 1::2], where=group.mask)

        return write_pair
    if width(kind) == 16 and zero_high:

        def write_extended(group: Group, value: Array) -> None:
            wide = value.view(np.uint16).astype(np.uint32)
            np.copyto(group.v[row], wide, where=True if group.full else group.mask)

        return write_extended
    target = vector_reader(row, kind, half)

    def write(group: Group, value: Array) -> None:
        if group.full:
            target(group)[:] = value
        else:
            np.copyto(target(group), value, where=group.mask)

    return write


def scalar_writer(number: int, kind: str) -> Writer:
    """Writer of [n, 1] to a scalar register, or to an aligned pair for 64-bit kinds. Writes to EXEC take effect."""
    if not 0 <= number < 128:
        raise CodeObjectInvalid(f"scalar destination number {number}")
    if width(kind) == 64 and number & 1:
        raise CodeObjectInvalid(f"s{number} starts a 64-bit destination, which must be even")
    dtype = DTYPES[kind]
    if width(kind) == 64:
        index = number // 2
        plain: Writer = lambda group, value: np.copyto(group.s64[index].view(dtype), value)  # noqa: E731
    else:
        plain = lambda group, value: np.copyto(group.s[number].view(dtype), value)  # noqa: E731
    if number < EXEC and not (width(kind) == 64 and number + 1 == EXEC):
        return plain

    def write_exec(group: Group, value: Array) -> None:
        plain(group, value)
        group.refresh_exec()

    return write_exec


def mask_writer(number: int) -> Writer:
    """Writer of a lane mask, bool [n, 64], as comparisons write it: bits of lanes outside EXEC become 0."""
    if number & 1 or not 0 <= number < 128:
        raise CodeObjectInvalid(f"scalar destination number {number} for a lane mask")

    def write(group: Group, value: Array) -> None:
        if not group.full:
            value = value & group.mask
        elif value.shape != (group.n, LANES):
            value = np.broadcast_to(value, (group.n, LANES))
        group.set_lane_mask(number, value)
        if number == EXEC:
            group.refresh_exec()

    return write
