"""Buffer loads and stores of plain data (CDNA3 ISA, "Vector Memory Buffer Instructions").

Descriptor (four SGPRs): base [47:0], stride [61:48], swizzle enable [63], num_records [95:64], flags [127:96].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import AccessViolation, CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa import lds_dma
from waveproof.kernels.runtimes.emulate.isa.vmem_global import SIZES, extend
from waveproof.kernels.runtimes.emulate.memory import Allocation, lane_of
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_BASE_BITS = np.uint64((1 << 48) - 1)
_SWIZZLE, _ADD_TID = 31, 23
"""Bits of word 1 and word 3 that choose addressings which are refused."""


@dataclass(frozen=True)
class BufferAddress:
    """Resolved address operands of a MUBUF instruction."""

    descriptor: int
    offset: int
    index: operands.Reader | None
    lane_offset: operands.Reader | None
    soffset: operands.Reader

    @classmethod
    def of(cls, instruction: Instruction, context: Context) -> BufferAddress:
        """From the instruction. VADDR holds the index, then the offset, as far as IDXEN and OFFEN ask for them."""
        i = instruction
        if i.srsrc & 3:
            raise CodeObjectInvalid(f"buffer descriptor in s{i.srsrc}, which is not a multiple of 4")
        first = i.vaddr - 256
        index = offset = None
        if i.idxen:
            index = operands.vector_reader(operands.vector_row(first, context), "u32")
        if i.offen:
            offset = operands.vector_reader(operands.vector_row(first + i.idxen, context), "u32")
        # 0x7f is no register but "off" in no known code: soffset is an SGPR, M0 or an inline constant.
        return cls(i.srsrc, i.offset, index, offset, operands.source(i.soffset, "u32", context))

    def resolve(self, group: Group, size: int) -> tuple[Array, list[Array]]:
        """Addresses uint64 [n, 64], and for each dword (or the one smaller element) which lanes are in range.

        Range rules, raw and structured buffers (stride zero, or not): CDNA3 ISA, "Range checking": raw: out of range
        if offset >= num_records - soffset, where each dword of x2, x3, x4 is checked by itself (LLVM pull request
        134734 for the hardware's behaviour); structured: if index >= num_records, or the offset is at or beyond stride.

        Raises:
            InstructionUnsupported: swizzled addressing or ADD_TID_ENABLE.
        """
        d = self.descriptor
        uniform = self._resolve_uniform(group, size)
        if uniform is not None:
            return uniform
        word1, records = group.s[d + 1], group.s[d + 2].astype(np.int64)
        if (word1 >> np.uint32(_SWIZZLE)).any() or (group.s[d + 3] >> np.uint32(_ADD_TID) & np.uint32(1)).any():
            raise InstructionUnsupported("buffer descriptor with swizzled addressing or ADD_TID_ENABLE")
        stride = (word1 >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.int64)
        soffset = self.soffset(group).astype(np.int64)
        offset: Array = np.full((1, 1), self.offset, np.int64)
        if self.lane_offset is not None:
            offset = self.lane_offset(group) + offset
        index = None if self.index is None else self.index(group).astype(np.int64)
        place = soffset + offset if index is None else soffset + offset + index * stride
        address = (group.s64[d // 2] & _BASE_BITS) + place.astype(np.uint64)
        ranges = []
        step = min(size, 4)
        for at in range(0, size, step):
            end = offset + (at + step)
            if index is None:
                inside = end <= records - soffset
            else:
                raw = end + index * stride <= records - soffset
                inside = np.where(stride == 0, raw, (index < records) & (end <= np.maximum(stride, 1)))
            ranges.append(inside)
        return address, ranges

    def _resolve_uniform(self, group: Group, size: int) -> tuple[Array, list[Array]] | None:
        """:meth:`resolve` for the usual case, in few steps: equal raw descriptors, and everything in range."""
        words = group.scalars[:, self.descriptor : self.descriptor + 4]
        soffset = self.soffset(group)
        if self.index is not None or self.lane_offset is None:
            return None
        if group.n > 1 and not ((words == words[0]).all() and (soffset == soffset[0]).all()):
            return None
        low, high, records, flags = words[0].tolist()
        start, offset = int(soffset[0, 0]), self.lane_offset(group)
        limit = records - start - self.offset - size
        if high >> _SWIZZLE or flags >> _ADD_TID & 1 or limit < 0 or int(offset.max()) > limit:
            return None
        base = (low | high << 32) & int(_BASE_BITS)
        return offset + np.uint64(base + start + self.offset), [_EVERYWHERE] * max(1, size // 4)


_EVERYWHERE = np.ones((1, 1), np.bool_)


def _whole(group: Group, value: Array) -> Array:
    return value if value.shape == (group.n, LANES) else np.broadcast_to(value, (group.n, LANES))


@define(
    *(f"BUFFER_LOAD_{kind}" for kind in SIZES if kind not in ("BYTE", "SHORT")),
    *(f"BUFFER_LOAD_{kind}_D16{half}" for kind in ("UBYTE", "SBYTE", "SHORT") for half in ("", "_HI")),
)
def load(instruction: Instruction, context: Context) -> Step:
    """Load; dwords out of range give 0. D16 forms write one half of the register and keep the other."""
    if instruction.lds:
        return lds_dma.buffer_to_lds(instruction, context)
    kind, _, high = instruction.mnemonic.removeprefix("BUFFER_LOAD_").partition("_D16")
    size, signed = SIZES[kind], kind in ("SBYTE", "SSHORT")
    half = "D16" in instruction.mnemonic
    dwords = max(1, size // 4)
    row = operands.vector_row(instruction.vdata - 256, context, dwords, bool(instruction.acc))
    where = BufferAddress.of(instruction, context)
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        address, ranges = where.resolve(group, size)
        for at, value in enumerate(fetch(group, address, ranges, size, hint)):
            value = extend(value, size, signed)
            if half:
                target, value = group.hu[2 * row + bool(high)], value.astype(np.uint16)
            else:
                target = group.v[row + at]
            np.copyto(target, value, where=True if group.full else group.mask)

    return step


def fetch(group: Group, address: Array, ranges: list[Array], size: int, hint: list[Allocation]) -> list[Array]:
    """Dwords (or the one smaller element), uint32 [n, 64]; 0 out of range and outside EXEC."""
    address = _whole(group, address)
    everywhere = group.full and all(bool(inside.all()) for inside in ranges)
    if everywhere:
        try:
            return group.memory.load(address, size, hint)
        except AccessViolation as violation:
            raise lane_of(violation, None) from None
    values = []
    for at, inside in enumerate(ranges):
        mask = _whole(group, inside) & group.mask
        value = np.zeros((group.n, LANES), np.uint32)
        if mask.any():
            try:
                value[mask] = group.memory.load(address[mask] + np.uint64(4 * at), min(size, 4), hint)[0]
            except AccessViolation as violation:
                raise lane_of(violation, mask) from None
        values.append(value)
    return values


@define(
    *(f"BUFFER_STORE_{kind}" for kind in ("BYTE", "SHORT", "DWORD", "DWORDX2", "DWORDX3", "DWORDX4")),
    "BUFFER_STORE_BYTE_D16_HI",
    "BUFFER_STORE_SHORT_D16_HI",
)
def store(instruction: Instruction, context: Context) -> Step:
    """Store; dwords out of range are dropped. D16_HI forms store bits 31:16."""
    high = instruction.mnemonic.endswith("_D16_HI")
    size = SIZES[instruction.mnemonic.removeprefix("BUFFER_STORE_").removesuffix("_D16_HI")]
    dwords = max(1, size // 4)
    row = operands.vector_row(instruction.vdata - 256, context, dwords, bool(instruction.acc))
    where = BufferAddress.of(instruction, context)
    hint: list[Allocation] = []

    def step(group: Group) -> None:
        address, ranges = where.resolve(group, size)
        address = _whole(group, address)
        values = [group.v[row + at] >> np.uint32(16) if high else group.v[row + at] for at in range(dwords)]
        if group.full and all(bool(inside.all()) for inside in ranges):
            try:
                group.memory.store(address, values, size, hint)
            except AccessViolation as violation:
                raise lane_of(violation, None) from None
            return
        for at, (inside, value) in enumerate(zip(ranges, values, strict=True)):
            mask = _whole(group, inside) & group.mask
            if not mask.any():
                continue
            try:
                group.memory.store(address[mask] + np.uint64(4 * at), [value[mask]], min(size, 4), hint)
            except AccessViolation as violation:
                raise lane_of(violation, mask) from None

    return step
