"""Branches, barriers, the end, and instructions that only order or schedule others (CDNA3 ISA, "SOPP", "SOP1")."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.program import BARRIER, END, Branch, Enter, Jump
from waveproof.kernels.runtimes.emulate.registers import EXEC, M0, VCC, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define


def branch_target(instruction: Instruction) -> int:
    """Offset in ``.text``: the next instruction plus four times the signed SIMM16."""
    simm = instruction.simm16
    return instruction.address + instruction.size + 4 * (simm - ((simm & 0x8000) << 1))


@define("S_BRANCH", control=True)
def branch(instruction: Instruction, context: Context) -> Step:
    """Always."""
    target = branch_target(instruction)
    return lambda group: target


_CONDITIONS: dict[str, Callable[[Group], Array]] = {
    "S_CBRANCH_SCC0": lambda group: ~group.scc[:, 0],
    "S_CBRANCH_SCC1": lambda group: group.scc[:, 0],
    "S_CBRANCH_VCCZ": lambda group: group.s64[VCC // 2][:, 0] == 0,
    "S_CBRANCH_VCCNZ": lambda group: group.s64[VCC // 2][:, 0] != 0,
    "S_CBRANCH_EXECZ": lambda group: group.s64[EXEC // 2][:, 0] == 0,
    "S_CBRANCH_EXECNZ": lambda group: group.s64[EXEC // 2][:, 0] != 0,
}


@define(*_CONDITIONS, control=True)
def conditional_branch(instruction: Instruction, context: Context) -> Step:
    """On SCC, VCC or EXEC as they are."""
    target, condition = branch_target(instruction), _CONDITIONS[instruction.mnemonic]
    return lambda group: Branch(condition(group), target)


@define("S_ENDPGM", control=True)
def end(instruction: Instruction, context: Context) -> Step:
    """End of the wave."""
    return lambda group: END


@define("S_BARRIER", control=True)
def barrier(instruction: Instruction, context: Context) -> Step:
    """Wait for the waves of the workgroup."""
    return lambda group: BARRIER


@define("S_SETPC_B64", control=True)
def set_pc(instruction: Instruction, context: Context) -> Step:
    """PC = S0."""
    read = operands.source(instruction.ssrc0, "u64", context)
    return lambda group: _jump(group, read(group))


@define("S_SWAPPC_B64", control=True)
def swap_pc(instruction: Instruction, context: Context) -> Step:
    """D = address of the next instruction; PC = S0."""
    read = operands.source(instruction.ssrc0, "u64", context)
    write = operands.scalar_writer(instruction.sdst, "u64")
    after = instruction.address + instruction.size

    def step(group: Group) -> Jump:
        target = read(group).copy()
        write(group, np.uint64(group.machine.code_base + after))
        return _jump(group, target)

    return step


@define("S_CALL_B64", control=True)
def call(instruction: Instruction, context: Context) -> Step:
    """D = address of the next instruction; branch by SIMM16."""
    write = operands.scalar_writer(instruction.sdst, "u64")
    target, after = branch_target(instruction), instruction.address + instruction.size

    def step(group: Group) -> int:
        write(group, np.uint64(group.machine.code_base + after))
        return target

    return step


def _jump(group: Group, address: Array) -> Jump:
    whole = np.broadcast_to(address, (group.n, 1))[:, 0]
    return Jump(whole.astype(np.int64) - group.machine.code_base)


@define("S_GETPC_B64")
def get_pc(instruction: Instruction, context: Context) -> Step:
    """D = address of the next instruction."""
    write = operands.scalar_writer(instruction.sdst, "u64")
    after = instruction.address + instruction.size
    return lambda group: write(group, np.uint64(group.machine.code_base + after))


@define("S_SET_GPR_IDX_ON", control=True)
def index_on(instruction: Instruction, context: Context) -> Step:
    """M0[7:0] = S0[7:0], M0[15:12] = the four bits that say for which operands it is added to VGPR numbers."""
    read = operands.source(instruction.ssrc0, "u32", context, instruction.literal)
    bits = instruction.ssrc1 & 15
    # The immediate's bits are src0, src1, src2, vdst in order.
    alike: dict[int, Enter] = {}

    def step(group: Group) -> Enter:
        offset = read(group) & np.uint32(0xFF)
        m0 = group.s[M0]
        m0[:] = m0 & np.uint32(0xFFFF0F00) | offset | np.uint32(bits << 12)
        first = int(offset[0, 0])
        if len(offset) > 1 and (offset != first).any():
            return _enter(context, offset[:, 0], bits)
        if first not in alike:
            alike[first] = _enter(context, offset[:1, 0], bits)
        return alike[first]

    return step


def _enter(context: Context, offsets: Array, bits: int) -> Enter:
    values = np.unique(offsets)
    added = [[int(value) * (bits >> at & 1) for at in range(4)] for value in values]
    contexts = [dataclasses.replace(context, gpr_index=(a, b, c, d)) for a, b, c, d in added]
    where: list[Any] = [offsets == v for v in values[:-1]]
    return Enter([*zip(where, contexts[:-1], strict=True), (None, contexts[-1])])


@define("S_SET_GPR_IDX_OFF", control=True)
def index_off(instruction: Instruction, context: Context) -> Step:
    """End of register-index mode."""
    plain = Enter([(None, dataclasses.replace(context, gpr_index=(0, 0, 0, 0)))])
    return lambda group: plain


_MODE = 1
"""Number of the hardware register MODE (CDNA3 ISA, "Hardware registers")."""


@define("S_SETREG_IMM32_B32", control=True)
def set_register(instruction: Instruction, context: Context) -> Step:
    """Write bits of MODE: SIMM16 = register[5:0], offset[10:6], size-1[15:11]. Rounding other than RNE is refused."""
    number, offset, size = instruction.simm16 & 63, instruction.simm16 >> 6 & 31, (instruction.simm16 >> 11 & 31) + 1
    if number != _MODE:
        raise InstructionUnsupported(f"S_SETREG of hardware register {number}")
    value = instruction.literal or 0
    old = context.float_mode | context.dx10_clamp << 8 | context.ieee << 9 | context.fp16_overflow << 23
    mask = ((1 << size) - 1) << offset
    new = (old & ~mask) | (value << offset & mask)
    if new & 15:
        raise InstructionUnsupported(f"rounding mode {new & 15:#x}: only round to nearest even is emulated")
    changed = dataclasses.replace(
        context,
        float_mode=new & 0xFF,
        dx10_clamp=bool(new >> 8 & 1),
        ieee=bool(new >> 9 & 1),
        fp16_overflow=bool(new >> 23 & 1),
    )
    return lambda group: Enter([(None, changed)])


@define(
    "S_NOP", "V_NOP", "S_WAITCNT", "S_SETPRIO", "S_SLEEP", "S_SETHALT", "S_ICACHE_INV", "S_TTRACEDATA", "S_DCACHE_INV",
    "S_DCACHE_WB", "S_DCACHE_INV_VOL", "S_DCACHE_WB_VOL", "BUFFER_WBL2", "BUFFER_INV", "S_INCPERFLEVEL",
    "S_DECPERFLEVEL",
)  # fmt: skip
def ordering(instruction: Instruction, context: Context) -> Step:
    """No effect where memory operations complete at once and in order, and no time passes."""
    if instruction.mnemonic == "S_SETHALT" and instruction.simm16 & 1:
        raise InstructionUnsupported("S_SETHALT 1 stops the wave for a debugger")
    return lambda group: None
