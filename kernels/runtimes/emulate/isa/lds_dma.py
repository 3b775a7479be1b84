"""Loads from global memory straight to LDS (CDNA3 ISA, "Memory Buffer Load to LDS"; CDNA4 adds 96 and 128 bits).

Lane L's data goes to byte M0 + offset + L * size of the workgroup's LDS: no register takes part, lanes outside EXEC
leave a gap. The instruction's offset counts on both sides: it is in the ISA's address rule for buffers, and LLVM says
it of both intrinsics (IntrinsicsAMDGPU.td, int_amdgcn_raw_ptr_buffer_load_lds and int_amdgcn_global_load_lds: "imm
offset (included in bounds checking ...)", "applied to both global and LDS address").

M0 holds 16 bits of LDS address on gfx942, whose LDS has 64 KiB; gfx950 has 160 KiB and needs 18.
"""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import AccessViolation, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa import vmem_buffer
from waveproof.kernels.runtimes.emulate.isa.ds import lds_index
from waveproof.kernels.runtimes.emulate.isa.vmem_global import SIZES, global_address
from waveproof.kernels.runtimes.emulate.memory import Allocation, lane_of
from waveproof.kernels.runtimes.emulate.registers import LANES, M0, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_M0_BITS = {"gfx942": 16, "gfx950": 18}
_WIDE = ("DWORDX3", "DWORDX4")


def _size(kind: str, instruction: Instruction, context: Context) -> int:
    if kind != "DWORD" and not (kind in _WIDE and context.arch == "gfx950"):
        raise InstructionUnsupported(f"{instruction.mnemonic} to LDS on {context.arch}")
    return SIZES[kind]


class _Target:
    """Where the lanes' data goes."""

    def __init__(self, size: int, offset: int, context: Context) -> None:
        self.size = size
        self.mask = np.uint32((1 << _M0_BITS[context.arch]) - 1)
        self.lanes = np.arange(LANES, dtype=np.int64) * size + offset

    def write(self, group: Group, values: list[Array], mask: Array | None) -> None:
        """Write dwords [n, 64] of the lanes of the mask ([k] already if there is one).

        Raises:
            AccessViolation: beyond the workgroup's LDS, or M0 + offset is not a multiple of 4.
        """
        address = (group.s[M0] & self.mask) + self.lanes
        index = lds_index(group, address, self.size, 4, mask, write=True)
        words = group.lds.words
        for at, value in enumerate(values):
            words[index + at if at else index] = value
        group.machine.lds_bytes_written += index.size * self.size


def buffer_to_lds(instruction: Instruction, context: Context) -> Step:
    """BUFFER_LOAD_* with LDS set. Dwords out of the buffer's range arrive as 0, as they do in registers."""
    size = _size(instruction.mnemonic.removeprefix("BUFFER_LOAD_"), instruction, context)
    where = vmem_buffer.BufferAddress.of(instruction, context)
    target = _Target(size, instruction.offset, context)
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        address, ranges = where.resolve(group, size)
        values = vmem_buffer.fetch(group, address, ranges, size, hint)
        mask = None if group.full else group.mask
        target.write(group, values if mask is None else [value[mask] for value in values], mask)

    return step


@define("GLOBAL_LOAD_LDS_DWORD", *(f"GLOBAL_LOAD_LDS_{kind}" for kind in _WIDE))
def global_to_lds(instruction: Instruction, context: Context) -> Step:
    """GLOBAL_LOAD_LDS_*."""
    size = _size(instruction.mnemonic.removeprefix("GLOBAL_LOAD_LDS_"), instruction, context)
    address = global_address(instruction, context)
    target = _Target(size, instruction.offset, context)
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        where = np.broadcast_to(address(group), (group.n, LANES))
        mask = None if group.full else group.mask
        try:
            values = group.memory.load(where if mask is None else where[mask], size, hint)
        except AccessViolation as violation:
            raise lane_of(violation, mask) from None
        target.write(group, values, mask)

    return step
