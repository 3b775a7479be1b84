"""Dot products of packed elements, and multiply-add of mixed precision (CDNA3 and CDNA4 ISA, "VOP2", "VOP3P").

Floating-point dots: in the order of AMD's pseudocode, each addition rounded to float32 (products of half-precision or
bfloat16 numbers are exact in it, but for their range). float32 operands and results are flushed whatever MODE says
(LLVM, SIISelLowering.cpp, performFMACombine: "fdot2_f32_f16 always flushes fp32 denormal operand and output to zero").
OP_SEL and NEG on dots are refused: the pseudocode does not say what they do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.transcendental import flushed
from waveproof.kernels.runtimes.emulate.isa.valu_float import fused_multiply_add
from waveproof.kernels.runtimes.emulate.operands import Reader
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import ARCHITECTURES, Context, Step, define
from waveproof.kernels.runtimes.emulate.vector import valu

Dot = Callable[[Array, Array, Array], Array]


def _halves(a: Array) -> list[Array]:
    bits = [a.astype(np.uint16), (a >> np.uint32(16)).astype(np.uint16)]
    return [half.view(np.float16).astype(np.float32) for half in bits]


def _bfloats(a: Array) -> list[Array]:
    return [(a << np.uint32(16)).view(np.float32), (a & np.uint32(0xFFFF0000)).view(np.float32)]


def dot2_f16(a: Array, b: Array, c: Array) -> Array:
    """S2 + S0.lo * S1.lo + S0.hi * S1.hi, from left to right."""
    (a0, a1), (b0, b1) = _halves(a), _halves(b)
    return flushed(flushed(flushed(c) + a0 * b0) + a1 * b1)


def dot2_bf16(a: Array, b: Array, c: Array) -> Array:
    """S0.lo * S1.lo + S0.hi * S1.hi + S2, from left to right."""
    (a0, a1), (b0, b1) = _bfloats(a), _bfloats(b)
    products = flushed(flushed(a0) * flushed(b0)) + flushed(flushed(a1) * flushed(b1))
    return flushed(flushed(products) + flushed(c))


def dot2_bf16_accumulate(a: Array, b: Array, c: Array) -> Array:
    """D + S0.lo * S1.lo + S0.hi * S1.hi, from left to right."""
    (a0, a1), (b0, b1) = _bfloats(a), _bfloats(b)
    first = flushed(flushed(c) + flushed(flushed(a0) * flushed(b0)))
    return flushed(first + flushed(flushed(a1) * flushed(b1)))


def _integer_dot(bits: int, signed: bool) -> Dot:
    """S2 + the sum of 32/bits products, in int64."""

    def dot(a: Array, b: Array, c: Array) -> Array:
        total = c.view(np.int32).astype(np.int64) if signed else c.astype(np.int64)
        for at in range(0, 32, bits):
            parts = [(x.astype(np.int64) >> at) & ((1 << bits) - 1) for x in (a, b)]
            if signed:
                parts = [(part ^ (1 << (bits - 1))) - (1 << (bits - 1)) for part in parts]
            total = total + parts[0] * parts[1]
        return total

    return dot


def _define_dot(name: str, dot: Dot, kind: str, architectures: tuple[str, ...] = ARCHITECTURES) -> None:
    @define(name, architectures=architectures)
    def build(instruction: Instruction, context: Context) -> Step:
        i = instruction
        if i.opsel or i.opsel_hi != 3 or i.neg or i.neg_hi:
            raise InstructionUnsupported(f"{i.mnemonic} with OP_SEL or NEG")
        numbers = (i.src0, i.src1, i.src2)
        if any(128 <= number < 256 for number in numbers[:2]):
            raise InstructionUnsupported(f"{i.mnemonic} with a constant for packed elements")
        readers = [operands.source(number, "u32", context, at=at) for at, number in enumerate(numbers)]
        row = operands.vector_row(i.vdst - 256 + context.gpr_index[3], context)
        write = operands.vector_writer(row, kind)
        if kind == "f32":
            finish = modifiers.finish("f32", context, i.clmp, 0) or (lambda value: value)
            third = readers[2]
            readers[2] = lambda group: third(group).view(np.float32)
        else:
            dtype = operands.DTYPES[kind]
            limits = np.iinfo(np.int32) if kind == "i32" else np.iinfo(np.uint32)
            clamp = i.clmp
            finish = lambda value: (  # noqa: E731
                np.clip(value, limits.min, limits.max) if clamp else value
            ).astype(dtype)
        return lambda group: write(group, finish(dot(*[read(group) for read in readers])))


_define_dot("V_DOT2_F32_F16", dot2_f16, "f32")
_define_dot("V_DOT2_F32_BF16", dot2_bf16, "f32", ("gfx950",))
for _name, _bits in (("DOT2_{}32_{}16", 16), ("DOT4_{}32_{}8", 8), ("DOT8_{}32_{}4", 4)):
    for _letter in "IU":
        _define_dot("V_" + _name.format(_letter, _letter), _integer_dot(_bits, _letter == "I"), f"{_letter.lower()}32")

valu("V_DOT2C_F32_F16", signature="b32 b32 old:f32 -> f32")(dot2_f16)
valu("V_DOT2C_F32_BF16", signature="b32 b32 old:f32 -> f32", architectures=("gfx950",))(dot2_bf16_accumulate)
for _name, _bits in (("V_DOT2C_I32_I16", 16), ("V_DOT4C_I32_I8", 8), ("V_DOT8C_I32_I4", 4)):

    @valu(_name, signature="b32 b32 old:b32 -> i32")
    def accumulate(a: Array, b: Array, c: Array, dot: Dot = _integer_dot(_bits, True)) -> Array:  # noqa: B008
        """D + the sum of products, modulo 2^32."""
        return dot(a, b, c).astype(np.int32)


def _mixed_source(i: Instruction, context: Context, at: int) -> Reader:
    """A float32, or with OP_SEL_HI the half-precision number in the half that OP_SEL names, as float32."""
    number = (i.src0, i.src1, i.src2)[at]
    negate, absolute = bool(i.neg >> at & 1), bool(i.neg_hi >> at & 1)
    if not (i.opsel_hi | i.opsel_hi2 << 2) >> at & 1:
        if i.opsel >> at & 1:
            raise InstructionUnsupported(f"{i.mnemonic} with OP_SEL on a float32 source")
        read = modifiers.signs(operands.source(number, "f32", context, at=at), "f32", negate, absolute)
        return modifiers.flushed_input(read, "f32", context)
    if 128 <= number < 256:
        raise InstructionUnsupported(f"{i.mnemonic} with a constant as a half-precision source")
    read = operands.source(number, "f16", context, half=i.opsel >> at & 1, at=at)
    read = modifiers.flushed_input(modifiers.signs(read, "f16", negate, absolute), "f16", context)
    return lambda group: read(group).astype(np.float32)


@define("V_MAD_MIX_F32", "V_MAD_MIXLO_F16", "V_MAD_MIXHI_F16")
def mixed_multiply_add(instruction: Instruction, context: Context) -> Step:
    """S0 * S1 + S2 in float32, then to half precision for LO and HI, which keep the other half.

    Fused on these architectures (LLVM, AMDGPU.td: FeatureFmaMixInsts; there the mnemonics are V_FMA_MIX*). NEG_HI is
    the absolute value here.
    """
    i = instruction
    readers = [_mixed_source(i, context, at) for at in range(3)]
    row = operands.vector_row(i.vdst - 256 + context.gpr_index[3], context)
    single = i.mnemonic.endswith("F32")
    kind = "f32" if single else "f16"
    write = operands.vector_writer(row, kind, int("MIXHI" in i.mnemonic))
    finish = modifiers.finish(kind, context, i.clmp, 0) or (lambda value: value)
    flush_single = not modifiers.denormals(context, "f32")[1]

    def step(group: Group) -> None:
        value = fused_multiply_add(*[read(group) for read in readers])
        if not single:
            value = (modifiers.flush(value, "f32") if flush_single else value).astype(np.float16)
        write(group, finish(value))

    return step
