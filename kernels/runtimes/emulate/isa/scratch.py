"""Private memory of each lane: SCRATCH instructions (CDNA3 ISA, "Flat Memory Instructions", scratch).

The address is relative to the lane's own private segment: VGPR (if SVE is set) + SGPR (unless SADDR is off) + signed
immediate, modes SV, SS, SVS and ST of LLVM's "Flat scratch". How the device interleaves lanes cannot be seen by these
instructions, so each lane simply has its own bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import Access, AccessViolation
from waveproof.kernels.runtimes.emulate.isa.vmem_global import OFF, SIZES, extend
from waveproof.kernels.runtimes.emulate.memory import lane_of
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_LANE = np.arange(LANES)
Place = Callable[[Group, "Array | None"], Array]


def _place(instruction: Instruction, context: Context, size: int) -> Place:
    """Byte index into the batch's private memory: [n, 64], or [k] under a mask."""
    vector = scalar = None
    if instruction.sve:
        vector = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
    if instruction.saddr != OFF:
        scalar = operands.scalar_reader(instruction.saddr, "u32")
    offset, unit = instruction.offset, min(size, 4)

    def place(group: Group, mask: Array | None) -> Array:
        at: Array = np.full((1, 1), offset, np.int64)
        for part in (vector, scalar):
            if part is not None:
                at = at + part(group).astype(np.int32)
        at = np.broadcast_to(at, (group.n, LANES))
        at = at if mask is None else at[mask]
        scratch = group.machine.scratch
        bad = (at < 0) | (at > scratch.size - size) | (at & (unit - 1) != 0)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            where = int(at.flat[first])
            rule = f"scratch access of {size} bytes at {where:#x}, a lane has {scratch.size} bytes (unit {unit})"
            raise lane_of(AccessViolation(Access(rule, "scratch", where, size, first)), mask)
        owner = group.state.wave[group.first : group.last, None] * LANES + _LANE
        return at + (owner if mask is None else owner[mask]) * scratch.stride

    return place


@define(
    *(f"SCRATCH_LOAD_{kind}" for kind in SIZES if kind not in ("BYTE", "SHORT")),
    *(f"SCRATCH_LOAD_{kind}_D16{half}" for kind in ("UBYTE", "SBYTE", "SHORT") for half in ("", "_HI")),
)
def load(instruction: Instruction, context: Context) -> Step:
    """Load; D16 forms write one half of the register and keep the other."""
    kind, _, high = instruction.mnemonic.removeprefix("SCRATCH_LOAD_").partition("_D16")
    size, signed = SIZES[kind], kind in ("SBYTE", "SSHORT")
    half = "D16" in instruction.mnemonic
    dwords, unit = max(1, size // 4), min(size, 4)
    row = operands.vector_row(instruction.vdst - 256, context, dwords, bool(instruction.acc))
    place = _place(instruction, context, size)

    def step(group: Group) -> None:
        mask = None if group.full else group.mask
        index = place(group, mask) // unit
        memory = group.machine.scratch.units[unit]
        values = [memory[index + at].astype(np.uint32) for at in range(dwords)]
        for at, value in enumerate(values):
            value = extend(value, size, signed)
            if half:
                target, value = group.hu[2 * row + bool(high)], value.astype(np.uint16)
            else:
                target = group.v[row + at]
            target[... if mask is None else mask] = value

    return step


@define(
    *(f"SCRATCH_STORE_{kind}" for kind in ("BYTE", "SHORT", "DWORD", "DWORDX2", "DWORDX3", "DWORDX4")),
    "SCRATCH_STORE_BYTE_D16_HI",
    "SCRATCH_STORE_SHORT_D16_HI",
)
def store(instruction: Instruction, context: Context) -> Step:
    """Store; D16_HI forms store bits 31:16."""
    high = instruction.mnemonic.endswith("_D16_HI")
    size = SIZES[instruction.mnemonic.removeprefix("SCRATCH_STORE_").removesuffix("_D16_HI")]
    dwords, unit = max(1, size // 4), min(size, 4)
    row = operands.vector_row(instruction.data - 256, context, dwords, bool(instruction.acc))
    place = _place(instruction, context, size)

    def step(group: Group) -> None:
        mask = None if group.full else group.mask
        index = place(group, mask) // unit
        memory = group.machine.scratch.units[unit]
        for at in range(dwords):
            value = group.v[row + at] if mask is None else group.v[row + at][mask]
            if high:
                value = value >> np.uint32(16)
            memory[index + at] = value.astype(memory.dtype)

    return step
