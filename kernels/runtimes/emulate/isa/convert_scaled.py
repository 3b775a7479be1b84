"""V_CVT_SCALEF32_*: between FP8, BF8 or FP4 and wider floats, with a power of two that is shared (CDNA4 ISA, "VOP3").

The scale is a float32 of which only the exponent counts (AMD pseudocode, ``exponent(S.f32)``), an E8M0 scale of the OCP
Microscaling Formats 1.0. Narrowing divides by it and rounds once, to nearest even; widening multiplies by it. Both are
what ROCm/composable_kernel takes the instructions for: ``f4_convert_rne``, which saturates, for FP4, and for FP8 and
BF8 ``mxf8_utils.hpp`` ("If fval / scale > max fp8, returns Nan", "> max bf8, returns Inf"). Triton has those saturated
by MODE.FP16_OVFL, see :func:`.convert.to_eight_bits`.

Not here, and so refused: the stochastic _SR_ forms (see :mod:`.convert`), the FP6 and BF6 forms of 16 and 32 numbers.
Refused for want of a source are also CLAMP, OMOD, signs on packed sources, a scale that is infinite or NaN, packed
inline constants, and modes that flush single precision where bfloat16 is converted.
"""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.convert import to_bfloat16, to_eight_bits, to_half
from waveproof.kernels.runtimes.emulate.isa.matrix_formats import eight_bit_float, element_format
from waveproof.kernels.runtimes.emulate.operands import Reader
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define

_WIDE = ("F32", "F16", "BF16")
_NARROW = {"FP4": 4, "FP8": 8, "BF8": 8}
"""Bits of a number."""
_OVERFLOW = {"F16": 0x7C00, "BF16": 0x7F80}
"""Infinity, which finite numbers beyond the range become."""

_FP4_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
"""Between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 of E2M1 (OCP Microscaling Formats 1.0, section 5.3.3)."""


def to_fp4(a: Array) -> Array:
    """float64 without NaN to E2M1, nearest even, saturated: uint32 in 0..15."""
    magnitude = np.abs(a)
    below = np.searchsorted(_FP4_MIDPOINTS, magnitude, side="left")
    code = np.where(below & 1, np.searchsorted(_FP4_MIDPOINTS, magnitude, side="right"), below)
    return (code | np.where(np.signbit(a), 8, 0)).astype(np.uint32)


def _exponent(i: Instruction, context: Context, at: int) -> Reader:
    """Reader of the exponent of the scale, source ``at``: int32 in -127..127."""
    if i.neg >> at & 1 or i.abs >> at & 1:
        raise InstructionUnsupported(f"{i.mnemonic} with a sign modifier on the scale")
    read = operands.source((i.src0, i.src1, i.src2)[at], "u32", context, i.literal, at=at)

    def exponent(group: Group) -> Array:
        field = (read(group) >> np.uint32(23) & np.uint32(255)).astype(np.int32)
        if ((field == 255) & group.mask).any():
            raise InstructionUnsupported(f"{i.mnemonic} with an infinity or NaN as scale, which E8M0 takes for NaN")
        return field - 127

    return exponent


def _refuse(i: Instruction, context: Context, wide: str, allowed: int, signs: bool = False) -> None:
    """Raises InstructionUnsupported for what has no documented meaning. ``allowed``: bits of OP_SEL that have one."""
    if i.clmp or i.omod or i.opsel & ~allowed or ((i.neg or i.abs) and not signs):
        raise InstructionUnsupported(f"{i.mnemonic} with CLAMP, OMOD, signs or OP_SEL on another operand")
    if wide == "BF16" and not all(modifiers.denormals(context, "f32")):
        raise InstructionUnsupported(f"{i.mnemonic} with MODE that flushes single precision")


def _numbers(i: Instruction, context: Context, wide: str) -> tuple[Reader, Reader]:
    """Readers of the two numbers to be narrowed: S0 and S1 of F32, both halves of S0 of 16-bit formats."""
    if wide == "F32":
        first, second = (
            modifiers.flushed_input(
                modifiers.signs(
                    operands.source((i.src0, i.src1)[at], "f32", context, i.literal, at=at),
                    "f32",
                    bool(i.neg >> at & 1),
                    bool(i.abs >> at & 1),
                ),
                "f32",
                context,
            )
            for at in (0, 1)
        )
        return first, second
    if 128 < i.src0 <= 248:
        raise InstructionUnsupported(f"{i.mnemonic} with an inline constant for two numbers")
    word = operands.source(i.src0, "u32", context, i.literal)

    def half(shift: int) -> Reader:
        def bits(group: Group) -> Array:
            return word(group) >> np.uint32(shift) & np.uint32(0xFFFF)

        if wide == "BF16":
            return lambda group: (bits(group) << np.uint32(16)).view(np.float32)
        return modifiers.flushed_input(lambda group: bits(group).astype(np.uint16).view(np.float16), "f16", context)

    return half(0), half(16)


def _define_narrowing(wide: str, narrow: str) -> None:
    bits = _NARROW[narrow]
    at_scale = 2 if wide == "F32" else 1
    # OP_SEL[3:2] names a byte, OP_SEL[3] a word of the destination.
    allowed = 0b1100 if narrow == "FP4" else 0b1000

    @define(f"V_CVT_SCALEF32_PK_{narrow}_{wide}", architectures=("gfx950",))
    def build(i: Instruction, context: Context) -> Step:
        """Two numbers divided by the scale, to the part of D that OP_SEL names; the rest is kept."""
        _refuse(i, context, wide, allowed, signs=wide == "F32")
        first, second = _numbers(i, context, wide)
        exponent = _exponent(i, context, at_scale)
        row = operands.vector_row(i.vdst - 256 + context.gpr_index[3], context)
        shift = 2 * bits * (i.opsel >> (2 if narrow == "FP4" else 3))
        keep = np.uint32(~((1 << 2 * bits) - 1 << shift) & 0xFFFFFFFF)
        write = operands.vector_writer(row, "b32")

        def code(group: Group, value: Array) -> Array:
            if narrow != "FP4":
                form = eight_bit_float(narrow.lower(), context.arch)
                return to_eight_bits(value, form, context.fp16_overflow).astype(np.uint32)
            if (np.isnan(value) & np.broadcast_to(group.mask, (group.n, LANES))).any():
                raise InstructionUnsupported(f"{i.mnemonic} of NaN, which FP4 has not")
            return to_fp4(value)

        def step(group: Group) -> None:
            power = -exponent(group)
            # In float64 the quotient is exact, so that it is rounded once.
            low, high = (code(group, np.ldexp(read(group).astype(np.float64), power)) for read in (first, second))
            write(group, group.v[row] & keep | (low | high << np.uint32(bits)) << np.uint32(shift))

        return step


def _scaled(table: Array, code: Array, exponent: Array) -> Array:
    """Values of codes times a power of two, exact: float64."""
    return np.ldexp(table[code], exponent)


def _sixteen_bits(i: Instruction, context: Context, wide: str, value: Array, live: Array) -> Array:
    """float64 to F16 or BF16: uint32 in 0..0xffff.

    With MODE.FP16_OVFL what overflows F16 becomes the largest number, "while still preserving true INF values" (CDNA3
    ISA, "MODE register"); whether BF16 does is not said there.
    """
    # To bfloat16 by way of float32: the value has at most 4 significant bits, only its range counts.
    result = to_half(value) if wide == "F16" else to_bfloat16(value.astype(np.float32))
    if context.fp16_overflow:
        over = np.isfinite(value) & ((result & np.uint32(0x7FFF)) == _OVERFLOW[wide])
        if wide == "BF16" and (over & live).any():
            raise InstructionUnsupported(f"{i.mnemonic} that overflows bfloat16 with MODE.FP16_OVFL set")
        result = result - over.astype(np.uint32)
    return result


def _define_widening(wide: str, narrow: str) -> None:
    bits = _NARROW[narrow]
    table = element_format(narrow.lower(), "gfx950").table
    assert table is not None
    mask = np.uint32((1 << bits) - 1)

    def prepare(i: Instruction, context: Context, allowed: int) -> tuple[Reader, Reader]:
        _refuse(i, context, wide, allowed)
        if wide == "F16" and not all(modifiers.denormals(context, "f16")):
            raise InstructionUnsupported(f"{i.mnemonic} with MODE that flushes half precision")
        return operands.source(i.src0, "u32", context, i.literal), _exponent(i, context, 1)

    @define(f"V_CVT_SCALEF32_PK_{wide}_{narrow}", architectures=("gfx950",))
    def build_pair(i: Instruction, context: Context) -> Step:
        """Two codes of S0 that OP_SEL selects (a byte for FP4, a word for 8-bit formats), times the scale S1."""
        source, exponent = prepare(i, context, 0b11 if narrow == "FP4" else 0b1)
        shift = np.uint32(i.opsel * 2 * bits)
        finish = modifiers.finish("f32", context, 0, 0)
        row = operands.vector_row(i.vdst - 256 + context.gpr_index[3], context, 2 if wide == "F32" else 1)

        def step(group: Group) -> None:
            word, power = source(group) >> shift, exponent(group)
            pair = [_scaled(table, word >> np.uint32(bits * at) & mask, power) for at in (0, 1)]
            if wide == "F32":
                for at, value in enumerate(pair):
                    single = value.astype(np.float32)
                    operands.vector_writer(row + at, "f32")(group, single if finish is None else finish(single))
                return
            low, high = (_sixteen_bits(i, context, wide, value, group.mask) for value in pair)
            operands.vector_writer(row, "b32")(group, low | high << np.uint32(16))

        return step

    if narrow == "FP4" or wide == "BF16":
        return

    @define(f"V_CVT_SCALEF32_{wide}_{narrow}", architectures=("gfx950",))
    def build(i: Instruction, context: Context) -> Step:
        """The byte of S0 that OP_SEL[1:0] names, times the scale S1; F16 to the half that OP_SEL[3] names.

        The other half is kept: ``llvm.amdgcn.cvt.scalef32.f16.fp8`` has the old destination as an operand.
        """
        source, exponent = prepare(i, context, 0b11 if wide == "F32" else 0b1011)
        shift = np.uint32(8 * (i.opsel & 3))
        finish = modifiers.finish("f32", context, 0, 0)
        row = operands.vector_row(i.vdst - 256 + context.gpr_index[3], context)
        write = operands.vector_writer(row, wide.lower() if wide == "F32" else "b16", i.opsel >> 3)

        def step(group: Group) -> None:
            value = _scaled(table, source(group) >> shift & mask, exponent(group))
            if wide == "F32":
                single = value.astype(np.float32)
                write(group, single if finish is None else finish(single))
            else:
                write(group, _sixteen_bits(i, context, wide, value, group.mask).astype(np.uint16))

        return step


for _narrow in _NARROW:
    for _wide in _WIDE:
        _define_narrowing(_wide, _narrow)
        _define_widening(_wide, _narrow)
