"""Packed 16-bit arithmetic (CDNA3 and CDNA4 ISA, "VOP3P"; AMD pseudocode).

The low result uses of each source the half that OP_SEL names, the high result the one that OP_SEL_HI names. Inline
constants are 32 bits wide here: integers sign-extended; floats as half precision with a zero high half in
floating-point instructions, as single precision in integer ones (LLVM, AMDGPUBaseInfo.cpp, getInlineEncodingV216).

Not here, and so refused: V_PK_FMAC_F16, whose constants have no OP_SEL to tell their halves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa import float_order
from waveproof.kernels.runtimes.emulate.isa.valu_f16 import fused_multiply_add
from waveproof.kernels.runtimes.emulate.operands import Reader
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import ARCHITECTURES, Context, Step, define


def half_source(instruction: Instruction, context: Context, at: int, high: bool, kind: str) -> Reader:
    """Source ``at`` of the low or high result as a 16-bit kind.

    Raises:
        CodeObjectInvalid: a literal, which VOP3P has not.
    """
    i = instruction
    number = (i.src0, i.src1, i.src2)[at]
    select = (i.opsel_hi | i.opsel_hi2 << 2) if high else i.opsel
    half = select >> at & 1
    if number == operands.LITERAL:
        raise CodeObjectInvalid(f"{i.mnemonic} with a literal")
    if 128 <= number < 256:
        # Floats of 240 and up have another pattern in floating-point instructions; integers are the same in both.
        bits = operands.constant_bits(number, "f16" if kind == "f16" and number >= 240 else "b32")
        if bits is None:
            raise InstructionUnsupported(f"source operand number {number} of {i.mnemonic}")
        value = operands.constant(bits >> 16 * half & 0xFFFF, kind)
        read: Reader = lambda group: value  # noqa: E731
    else:
        read = operands.source(number, kind, context, half=half, at=at)
    negate = bool((i.neg_hi if high else i.neg) >> at & 1)
    return modifiers.flushed_input(modifiers.signs(read, kind, negate, False), kind, context)


@dataclass(frozen=True)
class _Packed:
    """One packed operation."""

    function: Callable[..., Any]
    kind: str
    sources: int = 2
    ieee: Callable[..., Any] | None = None
    saturate: bool = False
    """Whether CLAMP saturates the integer result, which ``function`` gives in int64."""
    architectures: tuple[str, ...] = ARCHITECTURES


def _define(name: str, packed: _Packed) -> None:
    @define(name, architectures=packed.architectures)
    def build(instruction: Instruction, context: Context) -> Step:
        i, kind = instruction, packed.kind
        readers = [[half_source(i, context, at, high, kind) for at in range(packed.sources)] for high in (False, True)]
        row = operands.vector_row(i.vdst - 256 + context.gpr_index[3], context)
        writers = [operands.vector_writer(row, kind, half) for half in (0, 1)]
        function = packed.ieee if packed.ieee is not None and context.ieee else packed.function
        finish = _finish(i, context, packed)

        def step(group: Group) -> None:
            values = [finish(function(*[read(group) for read in half])) for half in readers]
            for write, value in zip(writers, values, strict=True):
                write(group, value)

        return step


def _finish(instruction: Instruction, context: Context, packed: _Packed) -> Callable[[Array], Array]:
    dtype = operands.DTYPES[packed.kind]
    if packed.kind == "f16":
        return modifiers.finish("f16", context, instruction.clmp, 0) or (lambda value: value)
    if instruction.clmp and not packed.saturate:
        raise InstructionUnsupported(f"CLAMP on {instruction.mnemonic}")
    if instruction.clmp:
        limits = np.iinfo(np.int16) if packed.kind == "i16" else np.iinfo(np.uint16)
        return lambda value: np.clip(value, limits.min, limits.max).astype(dtype)
    return lambda value: value.astype(dtype)


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *sources: function(*[value.astype(np.int64) for value in sources])


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _define_integers() -> None:
    for kind in ("i16", "u16"):
        name = kind.upper()
        _define(f"V_PK_ADD_{name}", _Packed(_wide(np.add), kind, saturate=True))
        _define(f"V_PK_SUB_{name}", _Packed(_wide(np.subtract), kind, saturate=True))
        _define(f"V_PK_MAD_{name}", _Packed(_wide(_multiply_add), kind, 3, saturate=True))
        _define(f"V_PK_MIN_{name}", _Packed(np.minimum, kind))
        _define(f"V_PK_MAX_{name}", _Packed(np.maximum, kind))
    _define("V_PK_MUL_LO_U16", _Packed(_wide(np.multiply), "u16"))
    _define("V_PK_LSHLREV_B16", _Packed(lambda a, b: b << (a & np.uint16(15)), "u16"))
    _define("V_PK_LSHRREV_B16", _Packed(lambda a, b: b >> (a & np.uint16(15)), "u16"))
    _define("V_PK_ASHRREV_I16", _Packed(lambda a, b: b >> (a & np.int16(15)), "i16"))


def _propagating(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def three(a: Array, b: Array, c: Array) -> Array:
        nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
        return np.where(nan, np.float16(np.nan), function(function(a, b), c))

    return three


def _define_floats() -> None:
    _define("V_PK_ADD_F16", _Packed(np.add, "f16"))
    _define("V_PK_MUL_F16", _Packed(np.multiply, "f16"))
    _define("V_PK_FMA_F16", _Packed(fused_multiply_add, "f16", 3))
    _define("V_PK_MIN_F16", _Packed(float_order.minimum, "f16", ieee=float_order.minimum_ieee))
    _define("V_PK_MAX_F16", _Packed(float_order.maximum, "f16", ieee=float_order.maximum_ieee))
    for name, function in (("MINIMUM", float_order.minimum), ("MAXIMUM", float_order.maximum)):
        _define(f"V_PK_{name}3_F16", _Packed(_propagating(function), "f16", 3, architectures=("gfx950",)))


_define_integers()
_define_floats()
