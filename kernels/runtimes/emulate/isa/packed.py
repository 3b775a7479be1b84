"""Packed instructions on pairs of registers, and moves to and from AccVGPRs (CDNA3 ISA, "VOP3P")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.valu_float import fused_multiply_add
from waveproof.kernels.runtimes.emulate.operands import Reader
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define


def _half(instruction: Instruction, context: Context, at: int, high: bool, kind: str) -> Reader:
    """Source ``at`` of the low or high result: OP_SEL and OP_SEL_HI choose the register of the pair.

    A constant has no second register: it is what both results get (LLVM, SIInstrInfo::isOperandLegal and
    AMDGPUAsmParser: packed 32-bit operands replicate inline constants).
    """
    i = instruction
    number = (i.src0, i.src1, i.src2)[at]
    select = (i.opsel_hi | i.opsel_hi2 << 2) if high else i.opsel
    if number >= 256 or number < 128:
        number += select >> at & 1
    read = operands.source(number, kind, context)
    if kind == "f32":
        read = modifiers.signs(read, kind, bool((i.neg_hi if high else i.neg) >> at & 1), False)
        read = modifiers.flushed_input(read, kind, context)
    return read


def _define_packed_float(mnemonic: str, function: Callable[..., Any], sources: int) -> None:
    @define(mnemonic)
    def build(instruction: Instruction, context: Context) -> Step:
        readers = [[_half(instruction, context, at, high, "f32") for at in range(sources)] for high in (False, True)]
        row = operands.vector_row(instruction.vdst - 256, context, 2)
        finish = modifiers.finish("f32", context, instruction.clmp, 0)
        writers = [operands.vector_writer(row + at, "f32") for at in (0, 1)]

        def step(group: Group) -> None:
            values = [function(*[read(group) for read in half]) for half in readers]
            for write, value in zip(writers, values, strict=True):
                write(group, value if finish is None else finish(value))

        return step


_define_packed_float("V_PK_ADD_F32", np.add, 2)
_define_packed_float("V_PK_MUL_F32", np.multiply, 2)
_define_packed_float("V_PK_FMA_F32", fused_multiply_add, 3)


@define("V_PK_MOV_B32")
def packed_move(instruction: Instruction, context: Context) -> Step:
    """Low = S0's register by OP_SEL[0], high = S1's by OP_SEL[1] (AMD pseudocode)."""
    i = instruction
    if i.neg or i.neg_hi or i.clmp:
        raise InstructionUnsupported("V_PK_MOV_B32 with neg or clamp")
    readers = [_half(i, context, 0, False, "b32"), _half(i, context, 1, False, "b32")]
    row = operands.vector_row(i.vdst - 256, context, 2)
    writers = [operands.vector_writer(row + at, "b32") for at in (0, 1)]

    def step(group: Group) -> None:
        values: list[Array] = [np.array(read(group)) for read in readers]
        for write, value in zip(writers, values, strict=True):
            write(group, value)

    return step


@define("V_ACCVGPR_READ")
def read_accumulator(instruction: Instruction, context: Context) -> Step:
    """VGPR = AccVGPR."""
    source = operands.vector_row(instruction.src0 - 256, context, accumulator=True)
    write = operands.vector_writer(operands.vector_row(instruction.vdst - 256, context), "b32")
    return lambda group: write(group, group.v[source])


@define("V_ACCVGPR_WRITE")
def write_accumulator(instruction: Instruction, context: Context) -> Step:
    """AccVGPR = VGPR or constant."""
    read = operands.source(instruction.src0, "b32", context)
    target = operands.vector_row(instruction.vdst - 256, context, accumulator=True)
    write = operands.vector_writer(target, "b32")
    return lambda group: write(group, read(group))


@define("V_ACCVGPR_MOV_B32")
def move_accumulator(instruction: Instruction, context: Context) -> Step:
    """AccVGPR = AccVGPR."""
    source = operands.vector_row(instruction.src0 - 256, context, accumulator=True)
    target = operands.vector_row(instruction.vdst - 256, context, accumulator=True)
    write = operands.vector_writer(target, "b32")
    return lambda group: write(group, group.v[source])
