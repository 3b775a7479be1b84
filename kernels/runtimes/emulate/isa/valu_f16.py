"""Half-precision arithmetic (CDNA3 ISA, "VOP1", "VOP2", "VOP3"). Round to nearest even.

numpy computes each operation in float32 and rounds again, which for one addition or multiplication is the same as
rounding once (float32 has 24 >= 2 * 11 + 2 bits). Not here, and so refused: V_MAD_F16, V_MAC_F16, V_MADMK_F16,
V_MADAK_F16 and the LEGACY forms, whose treatment of denormals is not documented; compilers use V_FMA_F16.
"""

from __future__ import annotations

import numpy as np

from waveproof.kernels.runtimes.emulate import modifiers
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define
from waveproof.kernels.runtimes.emulate.vector import valu, vector_step

valu("V_ADD_F16", signature="f16 f16 -> f16")(np.add)
valu("V_SUB_F16", signature="f16 f16 -> f16")(np.subtract)
valu("V_MUL_F16", signature="f16 f16 -> f16")(np.multiply)


@valu("V_SUBREV_F16", signature="f16 f16 -> f16")
def subtract_reversed(a: Array, b: Array) -> Array:
    """D = S1 - S0."""
    return b - a


@valu("V_FMA_F16", signature="f16 f16 f16 -> f16")
def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """S0 * S1 + S2, rounded once.

    The product has 22 bits: the sum in float64 is exact unless it is below 2^-31 of S2, and then it is no tie.
    """
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float16)


@valu("V_LDEXP_F16", signature="f16 i16 -> f16")
def scale(a: Array, b: Array) -> Array:
    """S0 * 2^S1, rounded once."""
    return np.ldexp(a.astype(np.float64), b.astype(np.int32)).astype(np.float16)


@valu("V_DIV_FIXUP_F16", signature="f16 f16 f16 -> f16", raw_denormals=True)
def division_fixup(a: Array, b: Array, c: Array) -> Array:
    """Special cases of S2 / S1, whose quotient is S0 otherwise (AMD pseudocode)."""
    negative = np.signbit(b) ^ np.signbit(c)
    infinite = (b == 0) | np.isinf(c)
    zero = np.isinf(b) | (c == 0)
    magnitude = np.where(infinite, np.float16(np.inf), np.where(zero, np.float16(0), np.abs(a)))
    signed = np.where(negative, -magnitude, magnitude)
    invalid = ((b == 0) & (c == 0)) | (np.isinf(b) & np.isinf(c))
    signed = np.where(invalid, np.array(0xFE00, np.uint16).view(np.float16), signed)
    return np.where(np.isnan(c), c, np.where(np.isnan(b), b, signed)).astype(np.float16)


@define("V_PACK_B32_F16")
def pack(instruction: Instruction, context: Context) -> Step:
    """S0 in the low half, S1 in the high half, bits as they are (AMD pseudocode)."""
    if not all(modifiers.denormals(context, "f16")):
        raise InstructionUnsupported(f"{instruction.mnemonic} with MODE that flushes half precision")
    return vector_step(
        instruction, context, "b16 b16 -> b32", lambda a, b: a.astype(np.uint32) | b.astype(np.uint32) << np.uint32(16)
    )
