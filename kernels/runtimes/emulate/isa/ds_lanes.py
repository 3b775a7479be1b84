"""DS instructions that exchange data between lanes: transposing reads, permutes, swizzles (CDNA3, CDNA4 ISA, "DS")."""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.ds import lds_index
from waveproof.kernels.runtimes.emulate.isa.matrix_formats import pack, unpack
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

TRANSPOSING = {
    "DS_READ_B64_TR_B16": (16, 4),
    "DS_READ_B64_TR_B8": (8, 8),
    "DS_READ_B64_TR_B4": (4, 16),
    "DS_READ_B96_TR_B6": (6, 16),
}
"""Bits of an element, and elements that a lane reads and gets."""
_BLOCK = 16
"""Lanes that transpose among themselves."""


def _offset(instruction: Instruction) -> int:
    if instruction.gds:
        raise InstructionUnsupported("GDS")
    return instruction.offset0 | instruction.offset1 << 8


@define(*TRANSPOSING, architectures=("gfx950",))
def read_transposed(instruction: Instruction, context: Context) -> Step:
    """Each block of 16 lanes reads a matrix of e rows by 16 columns and gets it by columns.

    With e elements in a lane, 16 / e lanes next to each other supply the addresses of the pieces of one row; lane c of
    the block gets column c: its element j is element c % e of the piece that lane j * (16 / e) + c // e points to.
    Sources: CDNA4 ISA, DS_READ_B64_TR_B16 and its siblings ("transpose load for matrix operands"); the addresses that
    Triton and HipKittens compute for them. The ISA requires EXEC to be all ones and addresses aligned to the element
    count; other uses are refused.
    """
    bits, elements = TRANSPOSING[instruction.mnemonic]
    size = bits * elements // 8
    registers = size // 4
    row = operands.vector_row(instruction.vdst - 256, context, registers, bool(instruction.acc))
    address = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
    offset = _offset(instruction)
    pieces = _BLOCK // elements

    def transpose(octets: Array, n: int) -> Array:
        """Bytes [n, 64, size] as read to bytes as given."""
        parts = unpack(octets, bits) if bits < 8 else octets.view(np.uint8 if bits == 8 else np.uint16)
        square = parts.reshape(n, LANES // _BLOCK, elements, pieces, elements)
        turned = np.ascontiguousarray(square.transpose(0, 1, 3, 4, 2)).reshape(n, LANES, elements)
        return pack(turned, bits) if bits < 8 else turned.view(np.uint8)

    def step(group: Group) -> None:
        if not group.full:
            raise InstructionUnsupported(f"{instruction.mnemonic} with lanes missing from EXEC")
        index = lds_index(group, address(group).astype(np.int64) + offset, size, 4, None)
        words = np.empty((group.n, LANES, registers), np.uint32)
        for at in range(registers):
            group.lds.words.take(index + at if at else index, out=words[:, :, at], mode="clip")
        group.machine.lds_bytes_read += index.size * size
        turned = np.ascontiguousarray(transpose(words.view(np.uint8), group.n)).view(np.uint32)
        for at in range(registers):
            group.v[row + at][:] = turned[:, :, at]

    return step


def _gather(group: Group, data: Array, lane: Array) -> Array:
    """``data`` [n, 64] of lane ``lane`` [n, 64]; 0 where that lane is not in EXEC."""
    value = np.take_along_axis(data, lane, axis=1)
    if not group.full:
        value[~np.take_along_axis(group.mask, lane, axis=1)] = 0
    return value


@define("DS_BPERMUTE_B32")
def gather_lanes(instruction: Instruction, context: Context) -> Step:
    """D = DATA0 of lane (ADDR + offset) / 4 % 64, 0 if that lane is not in EXEC (AMD pseudocode)."""
    address = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
    data = operands.vector_reader(operands.vector_row(instruction.data0 - 256, context), "u32")
    row = operands.vector_row(instruction.vdst - 256, context, accumulator=bool(instruction.acc))
    write, offset = operands.vector_writer(row, "u32"), np.uint32(_offset(instruction))

    def step(group: Group) -> None:
        lane = ((address(group) + offset) >> np.uint32(2) & np.uint32(63)).astype(np.intp)
        write(group, _gather(group, data(group), lane))

    return step


@define("DS_PERMUTE_B32")
def scatter_lanes(instruction: Instruction, context: Context) -> Step:
    """Lane (ADDR + offset) / 4 % 64 of D = DATA0; the highest of several lanes wins, lanes nobody names get 0."""
    address = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
    data = operands.vector_reader(operands.vector_row(instruction.data0 - 256, context), "u32")
    row = operands.vector_row(instruction.vdst - 256, context, accumulator=bool(instruction.acc))
    write, offset = operands.vector_writer(row, "u32"), np.uint32(_offset(instruction))

    def step(group: Group) -> None:
        lane = ((address(group) + offset) >> np.uint32(2) & np.uint32(63)).astype(np.intp)
        target = np.zeros((group.n, LANES), np.uint32)
        waves, senders = np.nonzero(group.mask)
        # Assignment by index arrays goes in order, so that the last, highest lane wins.
        target[waves, lane[waves, senders]] = data(group)[waves, senders]
        write(group, target)

    return step


def swizzle_lanes(pattern: int) -> Array:
    """Source lane of each lane by DS_SWIZZLE's offset field.

    Bit 15 clear: within 32 lanes, ((lane & and) | or) ^ xor of bits 4:0, 9:5 and 14:10. 0x80xx: within four lanes, two
    bits for each (CDNA3 ISA, DS_SWIZZLE_B32; LLVM AMDGPUUsage, "swizzle").

    Raises:
        InstructionUnsupported: the rotating and FFT modes (0xC000 and above), or reserved bits.
    """
    lane = np.arange(LANES)
    if not pattern & 0x8000:
        low = (lane & pattern & 31 | pattern >> 5 & 31) ^ (pattern >> 10 & 31)
        return lane & 32 | low
    if pattern & 0x7F00:
        raise InstructionUnsupported(f"DS_SWIZZLE_B32 with pattern {pattern:#x}")
    return lane & ~3 | pattern >> 2 * (lane & 3) & 3


@define("DS_SWIZZLE_B32")
def swizzle(instruction: Instruction, context: Context) -> Step:
    """D = the data in ADDR of a lane chosen by the offset, 0 if that lane is not in EXEC."""
    lanes = swizzle_lanes(_offset(instruction))
    data = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
    row = operands.vector_row(instruction.vdst - 256, context, accumulator=bool(instruction.acc))
    write = operands.vector_writer(row, "u32")
    return lambda group: write(group, _gather(group, data(group), np.broadcast_to(lanes, (group.n, LANES))))
