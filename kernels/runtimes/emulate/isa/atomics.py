"""Atomics on global memory: GLOBAL, FLAT and BUFFER (CDNA3 ISA, "Vector Memory", "Flat Memory"; AMD pseudocode).

Lanes with one address take turns, lowest first; the ISA does not say in which order, ascending makes float sums
repeatable here. SC0 asks for the value before (LLVM, "Memory Model gfx942"). Buffer lanes out of range change nothing
and get 0. Floating-point additions keep denormals whatever MODE says (LLVM, AMDGPU.td:
FeatureMemoryAtomicFAddF32DenormalSupport, which gfx940 has). FLAT reaches global memory only, see :mod:`.flat`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import Access, AccessViolation, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.convert import to_bfloat16
from waveproof.kernels.runtimes.emulate.isa.flat import as_global
from waveproof.kernels.runtimes.emulate.isa.vmem_buffer import BufferAddress
from waveproof.kernels.runtimes.emulate.isa.vmem_global import global_address
from waveproof.kernels.runtimes.emulate.memory import Allocation, lane_of
from waveproof.kernels.runtimes.emulate.operands import Reader
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

Update = Callable[..., Array]
"""(memory, data) to the new content of memory; the compare-and-swap gets (memory, new, expected)."""


def _chosen(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no)


def _increment(memory: Array, data: Array) -> Array:
    return np.where(memory >= data, memory.dtype.type(0), memory + memory.dtype.type(1))


def _decrement(memory: Array, data: Array) -> Array:
    return np.where((memory == 0) | (memory > data), data, memory - memory.dtype.type(1))


def _add_halves(memory: Array, data: Array) -> Array:
    return (memory.view(np.float16) + data.view(np.float16)).view(np.uint32)


def _add_bfloats(memory: Array, data: Array) -> Array:
    # A sum of bfloat16 in float32, rounded again, is rounded once: 24 >= 2 * 8 + 2 bits.
    low = (memory << np.uint32(16)).view(np.float32) + (data << np.uint32(16)).view(np.float32)
    top = np.uint32(0xFFFF0000)
    high = (memory & top).view(np.float32) + (data & top).view(np.float32)
    return to_bfloat16(low) | to_bfloat16(high) << np.uint32(16)


_INTEGER: dict[str, tuple[str, Update]] = {
    "SWAP": ("u", lambda memory, data: data),
    "CMPSWAP": ("u", lambda memory, new, expected: _chosen(memory == expected, new, memory)),
    "ADD": ("u", np.add),
    "SUB": ("u", np.subtract),
    "SMIN": ("i", np.minimum),
    "UMIN": ("u", np.minimum),
    "SMAX": ("i", np.maximum),
    "UMAX": ("u", np.maximum),
    "AND": ("u", np.bitwise_and),
    "OR": ("u", np.bitwise_or),
    "XOR": ("u", np.bitwise_xor),
    "INC": ("u", _increment),
    "DEC": ("u", _decrement),
}
_OTHERS: dict[str, tuple[str, Update]] = {
    "ADD_F32": ("f32", np.add),
    "ADD_F64": ("f64", np.add),
    "MIN_F64": ("f64", lambda memory, data: _chosen(data < memory, data, memory)),
    "MAX_F64": ("f64", lambda memory, data: _chosen(data > memory, data, memory)),
    "PK_ADD_F16": ("u32", _add_halves),
    "PK_ADD_BF16": ("u32", _add_bfloats),
}


def _turns(address: Array) -> Array:
    """For each access of [k] how many before it have the same address."""
    order = np.argsort(address, kind="stable")
    ordered = address[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    turn = np.empty(len(address), np.intp)
    turn[order] = np.arange(len(address)) - np.repeat(starts, np.diff(np.r_[starts, len(address)]))
    return turn


def update_memory(group: Group, address: Array, data: list[Array], update: Update, hint: list[Allocation]) -> Array:
    """Update memory at [k] addresses; returns what each access found there.

    Args:
        group: for its memory.
        address: uint64 [k].
        data: one or two arrays [k] of 4- or 8-byte elements, the kind of the operation.
        update: the operation.
        hint: see :meth:`.memory.Memory.load`.

    Raises:
        AccessViolation: outside all buffers, or not aligned to the element.
    """
    dtype = data[0].dtype
    size = dtype.itemsize
    before = np.empty(len(address), dtype)
    if not len(address):
        return before
    if (address & np.uint64(size - 1)).any():
        at = int(np.flatnonzero(address & np.uint64(size - 1))[0])
        where = int(address[at])
        raise AccessViolation(Access(f"atomic of {size} bytes at {where:#x}, not aligned", "global", where, size, at))
    turn = _turns(address)
    for now in range(int(turn.max()) + 1):
        lanes = np.flatnonzero(turn == now)
        words = np.stack(group.memory.load(address[lanes], size, hint), axis=-1)
        old = np.ascontiguousarray(words).view(dtype)[:, 0]
        before[lanes] = old
        new = update(old, *[np.ascontiguousarray(value[lanes]) for value in data]).astype(dtype, copy=False)
        parts = np.ascontiguousarray(new).view(np.uint32).reshape(len(lanes), -1)
        group.memory.store(address[lanes], [parts[:, j] for j in range(size // 4)], size, hint)
    return before


Where = Callable[[Group], "tuple[Array, Array]"]


def _address(instruction: Instruction, context: Context, size: int) -> tuple[Where, int, int]:
    """Addresses and lanes that are in range; first data register; first result register."""
    if instruction.format == "MUBUF":
        if instruction.get("lds"):
            raise InstructionUnsupported(f"{instruction.mnemonic} to LDS")
        buffer = BufferAddress.of(instruction, context)

        def resolve(group: Group) -> tuple[Array, Array]:
            address, ranges = buffer.resolve(group, size)
            inside = np.logical_and.reduce(np.broadcast_arrays(*ranges)) if len(ranges) > 1 else ranges[0]
            return address, inside

        return resolve, instruction.vdata, instruction.vdata
    plain = as_global(instruction) if instruction.format == "FLAT" else instruction
    read: Reader = global_address(plain, context)
    everywhere = np.ones((1, 1), np.bool_)
    return (lambda group: (read(group), everywhere)), instruction.data, instruction.vdst


def _define(name: str, kind: str, update: Update, sources: int = 1) -> None:
    dtype, size = operands.DTYPES[kind], operands.width(kind) // 8

    @define(*(f"{space}_ATOMIC_{name}" for space in ("GLOBAL", "FLAT", "BUFFER")))
    def build(instruction: Instruction, context: Context) -> Step:
        where, data, result = _address(instruction, context, size)
        accumulator, bits, dwords = bool(instruction.acc), f"b{8 * size}", size // 4
        # The new value comes first, the expected one behind it.
        first = operands.vector_row(data - 256, context, dwords * sources, accumulator)
        readers = [operands.vector_reader(first + dwords * at, bits) for at in range(sources)]
        write = None
        if instruction.sc0:
            write = operands.vector_writer(operands.vector_row(result - 256, context, dwords, accumulator), bits)
        hint: list[Allocation] = []

        def step(group: Group) -> None:
            address, inside = where(group)
            mask = group.mask & inside
            values = [read(group)[mask].view(dtype) for read in readers]
            places = np.broadcast_to(address, (group.n, LANES))[mask]
            try:
                before = update_memory(group, places, values, update, hint)
            except AccessViolation as violation:
                raise lane_of(violation, mask) from None
            if write is not None:
                whole = np.zeros((group.n, LANES), operands.DTYPES[bits])
                whole[mask] = before.view(whole.dtype)
                write(group, whole)

        return step


for _name, (_letter, _update) in _INTEGER.items():
    for _suffix, _bits in (("", 32), ("_X2", 64)):
        _define(_name + _suffix, f"{_letter}{_bits}", _update, 2 if _name == "CMPSWAP" else 1)
for _name, (_kind, _update) in _OTHERS.items():
    _define(_name, _kind, _update)
