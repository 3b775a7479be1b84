"""Local data share (CDNA3 ISA, "Data Share Operations"). Byte address: VGPR + 16-bit offset.

Hardware drops accesses beyond the LDS of the workgroup; here they are faults, since no program means them.
"""

from __future__ import annotations

import re

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import Access, AccessViolation, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.vmem_global import extend
from waveproof.kernels.runtimes.emulate.memory import lane_of
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_BYTES = {"B8": 1, "U8": 1, "I8": 1, "B16": 2, "U16": 2, "I16": 2, "B32": 4, "B64": 8, "B96": 12, "B128": 16}
_READ = re.compile(r"DS_READ(2)?(ST64)?_([BUI]\d+)(_D16)?(_HI)?$")
_WRITE = re.compile(r"DS_WRITE(2)?(ST64)?_(B\d+)(_D16_HI)?$")


def lds_index(group: Group, address: Array, size: int, unit: int, mask: Array | None, write: bool = False) -> Array:
    """Index, in units of 1, 2 or 4 bytes, into the batch's LDS; [n, 64], or [k] under a mask.

    Every access to LDS comes through here, so that ``write`` tells the diagnostics of :mod:`.lds_watch` the truth.

    Raises:
        AccessViolation: beyond the workgroup's LDS, or not aligned to the unit.
    """
    if mask is not None:
        address = address[mask]
    limit = group.lds.size
    if address.size and (int(address.max()) > limit - size or int(address.min()) < 0):
        bad = np.flatnonzero((address > limit - size) | (address < 0))
        at = int(bad[0])
        where = int(address.flat[at])
        more = f" ({len(bad)} lanes do)" if len(bad) > 1 else ""
        rule = f"LDS access of {size} bytes at {where:#x}, the workgroup has {limit} bytes{more}"
        raise lane_of(AccessViolation(Access(rule, "lds", where, size, at)), mask)
    if unit > 1 and int(np.bitwise_or.reduce(address, axis=None)) & (unit - 1):
        bad = np.flatnonzero(address & (unit - 1))
        at = int(bad[0])
        where = int(address.flat[at])
        more = f" ({len(bad)} lanes do)" if len(bad) > 1 else ""
        rule = f"LDS access of {size} bytes at {where:#x}, which is not a multiple of {unit}{more}"
        raise lane_of(AccessViolation(Access(rule, "lds", where, size, at)), mask)
    base = group.lds_base
    if mask is not None:
        base = np.broadcast_to(base, mask.shape)[mask]
    index: Array = address + base
    if group.lds.watch is not None:
        group.lds.watch.note(group, index, size, mask, write)
    return index >> (unit.bit_length() - 1) if unit > 1 else index


def _offsets(instruction: Instruction, size: int, two: bool, strided: bool) -> list[int]:
    if not two:
        return [instruction.offset0 | instruction.offset1 << 8]
    scale = size * (64 if strided else 1)
    return [instruction.offset0 * scale, instruction.offset1 * scale]


_SINGLE = ("U8", "I8", "U16", "I16", "B32", "B64", "B96", "B128", "U8_D16", "U8_D16_HI", "I8_D16", "I8_D16_HI",
           "U16_D16", "U16_D16_HI")  # fmt: skip


@define(
    *(f"DS_READ_{kind}" for kind in _SINGLE),
    *(f"DS_READ2{st}_B{bits}" for st in ("", "ST64") for bits in (32, 64)),
)
def read(instruction: Instruction, context: Context) -> Step:
    """Read one value, or two at scaled offsets, into consecutive registers."""
    found = _READ.match(instruction.mnemonic)
    assert found is not None
    if instruction.gds:
        raise InstructionUnsupported("GDS")
    two, strided, kind, half, high = found.groups()
    size = _BYTES[kind]
    unit, dwords = min(size, 4), max(1, size // 4)
    offsets = _offsets(instruction, size, bool(two), bool(strided))
    row = operands.vector_row(instruction.vdst - 256, context, dwords * len(offsets), bool(instruction.acc))
    address = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")

    def step(group: Group) -> None:
        mask = None if group.full else group.mask
        start = address(group).astype(np.int64)
        lds = group.lds.words if unit == 4 else group.lds.halves if unit == 2 else group.lds.bytes
        values = []
        for offset in offsets:
            index = lds_index(group, start + offset if offset else start, size, unit, mask)
            values += [lds.take(index + at if at else index, mode="clip") for at in range(dwords)]
            group.machine.lds_bytes_read += index.size * size
        for at, value in enumerate(values):
            if unit < 4:
                value = extend(value.astype(np.uint32), size, kind[0] == "I")
            if half:
                target, value = group.hu[2 * row + bool(high)], value.astype(np.uint16)
            else:
                target = group.v[row + at]
            if mask is None:
                target[:] = value
            else:
                target[mask] = value

    return step


@define(
    *(f"DS_WRITE_B{bits}" for bits in (8, 16, 32, 64, 96, 128)),
    "DS_WRITE_B8_D16_HI",
    "DS_WRITE_B16_D16_HI",
    *(f"DS_WRITE2{st}_B{bits}" for st in ("", "ST64") for bits in (32, 64)),
)
def write(instruction: Instruction, context: Context) -> Step:
    """Write one value, or two at scaled offsets; of lanes with one address the highest wins."""
    found = _WRITE.match(instruction.mnemonic)
    assert found is not None
    if instruction.gds:
        raise InstructionUnsupported("GDS")
    two, strided, kind, high = found.groups()
    size = _BYTES[kind]
    unit, dwords = min(size, 4), max(1, size // 4)
    offsets = _offsets(instruction, size, bool(two), bool(strided))
    sources = [instruction.data0, instruction.data1][: len(offsets)]
    rows = [operands.vector_row(data - 256, context, dwords, bool(instruction.acc)) for data in sources]
    address = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
    dtype = {1: np.uint8, 2: np.uint16, 4: np.uint32}[unit]

    def step(group: Group) -> None:
        mask = None if group.full else group.mask
        start = address(group).astype(np.int64)
        lds = group.lds.words if unit == 4 else group.lds.halves if unit == 2 else group.lds.bytes
        for offset, row in zip(offsets, rows, strict=True):
            index = lds_index(group, start + offset if offset else start, size, unit, mask, write=True)
            group.machine.lds_bytes_written += index.size * size
            for at in range(dwords):
                value = group.v[row + at]
                if mask is not None:
                    value = value[mask]
                if high:
                    value = value >> np.uint32(16)
                lds[index + at if at else index] = value.astype(dtype, copy=False)

    return step
