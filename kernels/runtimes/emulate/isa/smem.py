"""Scalar memory (CDNA3 ISA, "Scalar Memory Operations")."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import AccessViolation, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.memory import Allocation
from waveproof.kernels.runtimes.emulate.registers import EXEC, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_DWORDS = {"": 1, "X2": 2, "X4": 4, "X8": 8, "X16": 16}
_BASE_BITS = np.uint64((1 << 48) - 1)


def _address(instruction: Instruction, context: Context) -> operands.Reader:
    """SBASE[47:0] + signed 21-bit offset + SGPR offset, the low two bits ignored; uint64 [n]."""
    base = operands.scalar_reader(instruction.sbase, "u64")
    offset = np.uint64((instruction.offset if instruction.imm else 0) & 0xFFFFFFFFFFFFFFFF)
    if not instruction.imm and not instruction.soffset_en:
        raise InstructionUnsupported(f"{instruction.mnemonic} with its offset in an SGPR by the old encoding")
    register = operands.scalar_reader(instruction.soffset, "u32") if instruction.soffset_en else None

    def read(group: Group) -> Array:
        address = (base(group) & _BASE_BITS) + offset
        if register is not None:
            address = address + register(group)
        return (address & np.uint64(0xFFFFFFFFFFFFFFFC))[:, 0]

    return read


@define(*(f"S_LOAD_DWORD{suffix}" for suffix in _DWORDS))
def load(instruction: Instruction, context: Context) -> Step:
    """Consecutive dwords into consecutive SGPRs."""
    dwords = _DWORDS[instruction.mnemonic.removeprefix("S_LOAD_DWORD")]
    address, first = _address(instruction, context), instruction.sdata
    hint: list[Allocation] = []
    touches_exec = first + dwords > EXEC

    def step(group: Group) -> None:
        try:
            group.scalars[:, first : first + dwords] = group.memory.load_scalar(address(group), dwords, hint)
        except AccessViolation as violation:
            violation.access.space = "scalar"
            raise
        if touches_exec:
            group.refresh_exec()

    return step


@define(*(f"S_BUFFER_LOAD_DWORD{suffix}" for suffix in _DWORDS))
def buffer_load(instruction: Instruction, context: Context) -> Step:
    """As S_LOAD, by the base of a buffer descriptor; dwords at or beyond NUM_RECORDS read 0."""
    dwords = _DWORDS[instruction.mnemonic.removeprefix("S_BUFFER_LOAD_DWORD")]
    first, descriptor = instruction.sdata, instruction.sbase
    base = operands.scalar_reader(descriptor, "u64")
    offset = np.int64(instruction.offset if instruction.imm else 0)
    register = operands.scalar_reader(instruction.soffset, "u32") if instruction.soffset_en else None
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        start = np.full((group.n, 1), offset, np.int64)
        if register is not None:
            start += register(group)
        start &= ~np.int64(3)
        at = start + 4 * np.arange(dwords)
        inside = (at >= 0) & (at + 4 <= group.s[descriptor + 2].astype(np.int64))
        address = (base(group) & _BASE_BITS) + at.astype(np.uint64)
        value = np.zeros((group.n, dwords), np.uint32)
        value[inside] = group.memory.load(address[inside], 4, hint)[0]
        group.scalars[:, first : first + dwords] = value

    return step
