"""GLOBAL memory instructions (CDNA3 ISA, "Flat Memory Instructions")."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import AccessViolation
from waveproof.kernels.runtimes.emulate.memory import Allocation, lane_of
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

SIZES = {
    "UBYTE": 1, "SBYTE": 1, "BYTE": 1, "USHORT": 2, "SSHORT": 2, "SHORT": 2,
    "DWORD": 4, "DWORDX2": 8, "DWORDX3": 12, "DWORDX4": 16,
}  # fmt: skip
"""Bytes of an element by the last part of the mnemonic."""

OFF = 0x7F
"""SADDR that says: none, the address is in a VGPR pair."""


def extend(value: Array, size: int, signed: bool) -> Array:
    """Sign-extend a loaded byte or halfword (zero-extended already) to 32 bits."""
    if not signed:
        return value
    shift = np.uint32(32 - 8 * size)
    return ((value << shift).view(np.int32) >> shift.astype(np.int32)).view(np.uint32)


def global_address(instruction: Instruction, context: Context) -> operands.Reader:
    """VGPR pair + offset, or SGPR pair + zero-extended VGPR + offset; uint64 [n, 64]."""
    offset = np.uint64(instruction.offset & 0xFFFFFFFFFFFFFFFF)
    register = instruction.addr - 256
    if instruction.saddr == OFF:
        pair = operands.vector_reader(operands.vector_row(register, context, 2), "u64")
        if not offset:
            return pair
        return lambda group: pair(group) + offset
    base = operands.scalar_reader(instruction.saddr, "u64")
    index = operands.vector_reader(operands.vector_row(register, context), "u32")
    return lambda group: index(group) + (base(group) + offset)


@define(
    *(f"GLOBAL_LOAD_{kind}" for kind in SIZES if kind not in ("BYTE", "SHORT")),
    *(f"GLOBAL_LOAD_{kind}_D16{half}" for kind in ("UBYTE", "SBYTE", "SHORT") for half in ("", "_HI")),
)
def load(instruction: Instruction, context: Context) -> Step:
    """Load; D16 forms write one half of the register and keep the other."""
    kind, _, d16 = instruction.mnemonic.removeprefix("GLOBAL_LOAD_").partition("_D16")
    size, signed = SIZES[kind], kind in ("SBYTE", "SSHORT")
    half = "D16" in instruction.mnemonic
    row = operands.vector_row(instruction.vdst - 256, context, max(1, size // 4), bool(instruction.acc))
    address = global_address(instruction, context)
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        where = address(group)
        mask = None if group.full else group.mask
        try:
            values = group.memory.load(where if mask is None else where[mask], size, hint)
        except AccessViolation as violation:
            raise lane_of(violation, mask) from None
        for at, value in enumerate(values):
            value = extend(value, size, signed)
            if half:
                target, value = group.hu[2 * row + bool(d16)], value.astype(np.uint16)
            else:
                target = group.v[row + at]
            if mask is None:
                target[:] = value
            else:
                target[mask] = value

    return step


@define(
    *(f"GLOBAL_STORE_{kind}" for kind in ("BYTE", "SHORT", "DWORD", "DWORDX2", "DWORDX3", "DWORDX4")),
    "GLOBAL_STORE_BYTE_D16_HI",
    "GLOBAL_STORE_SHORT_D16_HI",
)
def store(instruction: Instruction, context: Context) -> Step:
    """Store; D16_HI forms store bits 31:16."""
    high = instruction.mnemonic.endswith("_D16_HI")
    size = SIZES[instruction.mnemonic.removeprefix("GLOBAL_STORE_").removesuffix("_D16_HI")]
    row = operands.vector_row(instruction.data - 256, context, max(1, size // 4), bool(instruction.acc))
    address = global_address(instruction, context)
    shift = np.uint32(16)
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        where = address(group)
        values = [group.v[row + at] for at in range(max(1, size // 4))]
        if high:
            values = [values[0] >> shift]
        mask = None if group.full else group.mask
        if mask is not None:
            where, values = where[mask], [value[mask] for value in values]
        try:
            group.memory.store(where, values, size, hint)
        except AccessViolation as violation:
            raise lane_of(violation, mask) from None

    return step
