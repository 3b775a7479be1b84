"""Operand modifiers of vector instructions: negate, absolute, clamp, output scale, denormals, DPP16 and SDWA."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.operands import DTYPES, Reader
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context

_LANE = np.arange(LANES)
_UNSIGNED: dict[int, type[np.generic]] = {16: np.uint16, 32: np.uint32, 64: np.uint64}
_TINY: dict[str, float] = {"f16": 2.0**-14, "f32": 2.0**-126, "f64": 2.0**-1022}


def signs(read: Reader, kind: str, negate: bool, absolute: bool) -> Reader:
    """Apply ABS, then NEG, to a floating-point (or 32-bit untyped, as V_CNDMASK_B32's) operand, on the bit pattern.

    Raises:
        InstructionUnsupported: the modifiers stand on an integer operand, where they have no meaning.
    """
    if not (negate or absolute):
        return read
    if kind[0] not in "fb":
        raise InstructionUnsupported(f"neg or abs on a source of kind {kind}")
    bits = int(kind[1:])
    unsigned, dtype = _UNSIGNED[bits], DTYPES[kind]
    sign, keep = unsigned(1 << (bits - 1)), unsigned((1 << (bits - 1)) - 1)
    if absolute and negate:
        return lambda group: (read(group).view(unsigned) | sign).view(dtype)
    if absolute:
        return lambda group: (read(group).view(unsigned) & keep).view(dtype)
    return lambda group: (read(group).view(unsigned) ^ sign).view(dtype)


def flush(value: Array, kind: str) -> Array:
    """Denormals to zeros of the same sign."""
    # A product with 0 keeps the sign; NaN stays NaN.
    return value * (np.abs(value) >= DTYPES[kind](_TINY[kind]))


def denormals(context: Context, kind: str) -> tuple[bool, bool]:
    """Whether denormal inputs, and denormal results, of ``kind`` are kept.

    MODE.FP_DENORM, bits 5:4 for single and 7:6 for half and double precision: 0 flush both, 1 allow input and flush
    output, 2 flush input and allow output, 3 allow both (CDNA3 ISA, "MODE register").
    """
    field = context.float_mode >> (4 if kind == "f32" else 6) & 3
    return bool(field & 1), bool(field & 2)


def flushed_input(read: Reader, kind: str, context: Context) -> Reader:
    """A reader whose denormals are flushed where MODE asks for it."""
    if kind[0] != "f" or denormals(context, kind)[0]:
        return read
    return lambda group: flush(read(group), kind)


def finish(kind: str, context: Context, clamp: int, scale: int) -> Callable[[Array], Array] | None:
    """What becomes of a floating-point result: output scale, denormal flush, clamp; None if nothing.

    Output scale (OMOD 1: *2, 2: *4, 3: /2) is ignored where MODE.IEEE is set or output denormals are kept ("Vega ISA",
    "Output modifiers"; LLVM ``SIFoldOperands::tryFoldOMod`` folds only under the same conditions). Denormals are
    flushed before it and after; zeros become +0 by it. Clamp is to [0, 1]; -0 becomes +0, and NaN too with DX10_CLAMP
    (zeros as measured on RDNA4 for ROCm's rocjitsu emulator).
    """
    if kind == "f16" and context.fp16_overflow:
        raise InstructionUnsupported("half-precision result with MODE.FP16_OVFL set")
    dtype = DTYPES[kind]
    keep = denormals(context, kind)[1]
    stages: list[Callable[[Array], Array]] = []
    if scale and not keep and not context.ieee:
        stages.append(lambda value: flush(value, kind))
        factor, zero = dtype({1: 2.0, 2: 4.0, 3: 0.5}[scale]), dtype(0)
        stages.append(lambda value: value * factor + zero)
    if not keep:
        stages.append(lambda value: flush(value, kind))
    if clamp:
        low, high = dtype(0), dtype(1)
        if context.dx10_clamp:
            stages.append(lambda value: np.fmin(np.fmax(value, low), high) + low)
        else:
            stages.append(lambda value: np.clip(value, low, high) + low)
    if not stages:
        return None
    if len(stages) == 1:
        return stages[0]
    return lambda value: functools.reduce(lambda v, stage: stage(v), stages, value)


def dpp_source(control: int) -> tuple[Array, Array]:
    """For DPP_CTRL: the lane that each lane reads, and whether it is a lane at all (CDNA3 ISA, table "DPP_CTRL").

    Raises:
        InstructionUnsupported: a reserved control value.
    """
    row, column = _LANE & ~15, _LANE & 15
    always = np.ones(LANES, np.bool_)
    amount = control & 15
    if control < 0x100:
        quad = np.array([control >> 2 * i & 3 for i in range(4)])
        return (_LANE & ~3) + quad[_LANE & 3], always
    family = control & 0x1F0
    if family == 0x100 and amount:
        return np.minimum(_LANE + amount, 63), column + amount < 16
    if family == 0x110 and amount:
        return np.maximum(_LANE - amount, 0), column >= amount
    if family == 0x120 and amount:
        return row + ((column - amount) & 15), always
    if family == 0x150:
        return row + amount, always
    others = {
        0x130: (np.minimum(_LANE + 1, 63), _LANE < 63),
        0x134: ((_LANE + 1) & 63, always),
        0x138: (np.maximum(_LANE - 1, 0), _LANE > 0),
        0x13C: ((_LANE - 1) & 63, always),
        0x140: (row + 15 - column, always),
        0x141: ((_LANE & ~7) + 7 - (_LANE & 7), always),
        0x142: (np.maximum(row - 1, 0), _LANE >= 16),
        0x143: (np.full(LANES, 31), _LANE >= 32),
    }
    if control not in others:
        raise InstructionUnsupported(f"DPP_CTRL {control:#x}")
    return others[control]


def dpp_enabled(row_mask: int, bank_mask: int) -> Array:
    """Lanes that the row mask (bit: row of 16) and the bank mask (bit: four lanes of a row) leave enabled."""
    rows = (row_mask >> (_LANE >> 4) & 1).astype(np.bool_)
    banks = (bank_mask >> ((_LANE & 15) >> 2) & 1).astype(np.bool_)
    return rows & banks


def select_part(read: Reader, part: int, extend: int) -> Reader:
    """SDWA source selection: 0-3 a byte, 4-5 a word, 6 the whole; zero- or sign-extended to 32 bits. uint32 in and out.

    Raises:
        InstructionUnsupported: the reserved selector 7.
    """
    if part == 6:
        return read
    if part == 7:
        raise InstructionUnsupported("SDWA selector 7 is reserved")
    bits = 8 if part < 4 else 16
    up = 32 - bits - (8 * part if part < 4 else 16 * (part - 4))
    left, right = np.uint32(up), 32 - bits
    if extend:
        return lambda group: ((read(group) << left).view(np.int32) >> np.int32(right)).view(np.uint32)
    return lambda group: (read(group) << left) >> np.uint32(right)


def merge_part(value: Array, old: Array, part: int, unused: int) -> Array:
    """SDWA destination: put the low bits of ``value`` into a part of the register.

    ``unused``: what becomes of the rest: 0 zeros, 1 sign extension to the left and zeros to the right, 2 kept.
    """
    if part == 6:
        return value
    bits = 8 if part < 4 else 16
    shift = 8 * part if part < 4 else 16 * (part - 4)
    field = ((1 << bits) - 1) << shift
    placed = (value << np.uint32(shift)) & np.uint32(field)
    if unused == 2:
        return placed | (old & np.uint32(~field & 0xFFFFFFFF))
    if unused == 1:
        up = 32 - bits - shift
        return ((placed << np.uint32(up)).view(np.int32) >> np.int32(up)).view(np.uint32)
    if unused:
        raise InstructionUnsupported("SDWA DST_UNUSED 3 is reserved")
    return placed


def dpp_reader(row: int, control: int, bound_control: int) -> tuple[Reader, Callable[[Group], Array | None]]:
    """Reader (uint32) of a permuted VGPR, and the lanes that it leaves without a source (None: none).

    A source lane is invalid if it is outside the row or wave, or not in EXEC. With BOUND_CTRL the operand is then 0;
    without, the lane is disabled (CDNA3 ISA, "Data Parallel Processing").
    """
    lanes, valid = dpp_source(control)
    every = bool(valid.all())

    def read(group: Group) -> Array:
        value = group.v[row].take(lanes, axis=1)
        if bound_control:
            bad = ~valid if group.full else ~(valid & group.mask[:, lanes])
            if not group.full or not every:
                np.copyto(value, 0, where=bad)
        return value

    def enabled(group: Group) -> Array | None:
        if bound_control or (group.full and every):
            return None
        return valid[None] if group.full else valid & group.mask[:, lanes]

    return read, enabled
