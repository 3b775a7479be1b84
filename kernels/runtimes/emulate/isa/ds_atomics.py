"""Atomics on LDS (CDNA3 ISA, "DS": DS_ADD_U32, ...; AMD pseudocode). Lanes with one address take turns, lowest first.

The order among lanes is not specified by the ISA; ascending order makes float sums repeatable here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.emulate import operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.ds import lds_index
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

Update = Callable[..., Array]
"""(memory, DATA0, DATA1) to the new content of memory."""


def _add_bf16(memory: Array, data: Array) -> Array:
    form = narrow_floats.BFLOAT16
    halves = [narrow_floats.widen(np.ascontiguousarray(x).view(np.uint16), form) for x in (memory, data)]
    return narrow_floats.narrow(halves[0] + halves[1], form).view(np.uint32)


def _add_f16(memory: Array, data: Array) -> Array:
    halves = [np.ascontiguousarray(x).view(np.float16) for x in (memory, data)]
    return (halves[0] + halves[1]).view(np.uint32)


def _increment(memory: Array, data: Array) -> Array:
    return np.where(memory >= data, 0, memory + 1).astype(memory.dtype)


def _decrement(memory: Array, data: Array) -> Array:
    return np.where((memory == 0) | (memory > data), data, memory - 1).astype(memory.dtype)


def _replace_if_equal(memory: Array, expected: Array, data: Array) -> Array:
    return np.where(memory == expected, data, memory)


_INTEGER: dict[str, tuple[str, Update]] = {
    "ADD": ("U", np.add),
    "SUB": ("U", np.subtract),
    "RSUB": ("U", lambda memory, data: data - memory),
    "INC": ("U", _increment),
    "DEC": ("U", _decrement),
    "AND": ("B", np.bitwise_and),
    "OR": ("B", np.bitwise_or),
    "XOR": ("B", np.bitwise_xor),
}
_TWO_OPERANDS: dict[str, Update] = {
    "MSKOR": lambda memory, mask, data: memory & ~mask | data,
    "CMPST": _replace_if_equal,
}


def _define(name: str, kind: str, update: Update, sources: int = 1, returning: bool = True) -> None:
    """DS_<name>_<kind> and DS_<name>_RTN_<kind>."""
    packed = kind in ("F16", "BF16")
    bits = 32 if packed else int(kind[-2:])
    dtype = operands.DTYPES[f"{'b' if packed or kind[0] == 'B' else kind[0].lower()}{bits}"]
    names = [f"DS_{name}_RTN_{kind}"] if returning else []
    if name != "WRXCHG":
        names.append(f"DS_{name}_{kind}")

    @define(*names)
    def build(instruction: Instruction, context: Context) -> Step:
        if instruction.gds:
            raise InstructionUnsupported("GDS")
        if instruction.acc:
            raise InstructionUnsupported(f"{instruction.mnemonic} on AccVGPRs")
        offset = instruction.offset0 | instruction.offset1 << 8
        kind_of_data = f"b{bits}"
        address = operands.vector_reader(operands.vector_row(instruction.addr - 256, context), "u32")
        data = []
        for register in (instruction.data0, instruction.data1)[:sources]:
            row = operands.vector_row(register - 256, context, bits // 32)
            data.append(operands.vector_reader(row, kind_of_data))
        write = None
        if "_RTN_" in instruction.mnemonic:
            row = operands.vector_row(instruction.vdst - 256, context, bits // 32)
            write = operands.vector_writer(row, kind_of_data)

        def step(group: Group) -> None:
            mask = group.mask
            start = address(group).astype(np.int64) + offset
            index = lds_index(group, start, bits // 8, 4, mask, write=True)
            unit = index if bits == 32 else _pairs(index)
            cells = group.lds.words if bits == 32 else group.lds.words.view(np.uint64)
            operands_now = [np.broadcast_to(read(group), mask.shape)[mask].view(dtype) for read in data]
            before = _in_turns(cells.view(dtype), unit, operands_now, update)
            group.machine.lds_bytes_read += index.size * bits // 8
            group.machine.lds_bytes_written += index.size * bits // 8
            if write is not None:
                whole = np.zeros((group.n, LANES), np.uint32 if bits == 32 else np.uint64)
                whole[mask] = before.view(whole.dtype)
                write(group, whole)

        return step


def _pairs(index: Array) -> Array:
    if (index & 1).any():
        raise InstructionUnsupported("64-bit LDS atomic at an address that is not a multiple of 8")
    return index >> 1


def _in_turns(cells: Array, index: Array, data: list[Array], update: Update) -> Array:
    """Apply the update one lane after another where addresses coincide; returns what each lane found."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]] if len(index) else np.zeros(0, np.bool_)
    starts = np.flatnonzero(first)
    turn = np.empty(len(index), np.intp)
    turn[order] = np.arange(len(index)) - np.repeat(starts, np.diff(np.r_[starts, len(index)]))
    before = np.empty(len(index), cells.dtype)
    for now in range(int(turn.max(initial=-1)) + 1):
        lanes = np.flatnonzero(turn == now)
        old = cells[index[lanes]]
        before[lanes] = old
        cells[index[lanes]] = update(old, *[value[lanes] for value in data])
    return before


def _smaller(memory: Array, data: Array) -> Array:
    return np.where(data < memory, data, memory)


def _larger(memory: Array, data: Array) -> Array:
    return np.where(data > memory, data, memory)


def _exchange(memory: Array, data: Array) -> Array:
    return data


def _define_all() -> None:
    for bits in (32, 64):
        for name, (family, update) in _INTEGER.items():
            _define(name, f"{family}{bits}", update)
        for family in ("I", "U", "F"):
            _define("MIN", f"{family}{bits}", _smaller)
            _define("MAX", f"{family}{bits}", _larger)
        for name, two in _TWO_OPERANDS.items():
            _define(name, f"B{bits}", two, 2)
        _define("CMPST", f"F{bits}", _TWO_OPERANDS["CMPST"], 2)
        _define("ADD", f"F{bits}", np.add)
        _define("WRXCHG", f"B{bits}", _exchange)
    _define("PK_ADD", "F16", _add_f16)
    _define("PK_ADD", "BF16", _add_bf16)


_define_all()
