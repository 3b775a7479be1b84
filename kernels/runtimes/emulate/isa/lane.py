"""Instructions that move data between lanes or to scalar registers (CDNA3 ISA, "VOP1", "VOP3")."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.registers import LANES, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define


@define("V_READFIRSTLANE_B32")
def read_first_lane(instruction: Instruction, context: Context) -> Step:
    """D = S0 of the lowest lane in EXEC, of lane 0 if EXEC is zero."""
    read = operands.source(instruction.src0, "b32", context)
    write = operands.scalar_writer(instruction.vdst, "b32")

    def step(group: Group) -> None:
        value = np.broadcast_to(read(group), (group.n, LANES))
        if group.full:
            write(group, value[:, :1])
        else:
            # argmax gives 0 for a row without a set lane.
            write(group, np.take_along_axis(value, group.mask.argmax(axis=1)[:, None], axis=1))

    return step


@define("V_READLANE_B32")
def read_lane(instruction: Instruction, context: Context) -> Step:
    """D = S0 of lane S1[5:0], whatever EXEC."""
    read = operands.source(instruction.src0, "b32", context)
    lane = operands.source(instruction.src1, "u32", context)
    write = operands.scalar_writer(instruction.vdst, "b32")

    def step(group: Group) -> None:
        value = np.broadcast_to(read(group), (group.n, LANES))
        index = np.broadcast_to((lane(group) & np.uint32(63)).astype(np.intp), (group.n, 1))
        write(group, np.take_along_axis(value, index, axis=1))

    return step


@define("V_WRITELANE_B32")
def write_lane(instruction: Instruction, context: Context) -> Step:
    """Lane S1[5:0] of D = S0, whatever EXEC."""
    read = operands.source(instruction.src0, "b32", context)
    lane = operands.source(instruction.src1, "u32", context)
    row = operands.vector_row(instruction.vdst - 256, context)

    def step(group: Group) -> None:
        value = np.broadcast_to(read(group), (group.n, 1))
        index = np.broadcast_to((lane(group) & np.uint32(63)).astype(np.intp), (group.n, 1))
        np.put_along_axis(group.v[row], index, value, axis=1)

    return step


def _swap(distance: int) -> None:
    """V_PERMLANE16_SWAP, V_PERMLANE32_SWAP: lanes of D whose bit ``distance`` is set against those of S0 without."""
    low = np.flatnonzero(np.arange(LANES) & distance == 0)
    high = low + distance

    @define(f"V_PERMLANE{distance}_SWAP_B32", architectures=("gfx950",))
    def swap(instruction: Instruction, context: Context) -> Step:
        source = operands.vector_row(instruction.src0 - 256, context)
        target = operands.vector_row(instruction.vdst - 256, context)

        def step(group: Group) -> None:
            # Both are registers, and EXEC does not count (CDNA4 ISA, V_PERMLANE*_SWAP).
            a, d = group.v[source], group.v[target]
            kept = a[:, low]
            a[:, low] = d[:, high]
            d[:, high] = kept

        return step


_swap(16)
_swap(32)


@define("V_SWAP_B32")
def swap_registers(instruction: Instruction, context: Context) -> Step:
    """Swap S0 and D."""
    source = operands.vector_row(instruction.src0 - 256, context)
    target = operands.vector_row(instruction.vdst - 256, context)
    write_source, write_target = operands.vector_writer(source, "b32"), operands.vector_writer(target, "b32")

    def step(group: Group) -> None:
        a, d = group.v[source].copy(), group.v[target].copy()
        write_source(group, d)
        write_target(group, a)

    return step
