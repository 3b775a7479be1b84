"""Conversions between number formats (CDNA3 and CDNA4 ISA, "VOP1", "VOP3"; AMD pseudocode). Round to nearest even.

V_CVT_SCALEF32_* are in :mod:`.convert_scaled`. Not here, and so refused: V_CVT_PKNORM_*, V_CVT_NORM_* (their rounding
is not documented), V_CVT_PK_U16_U32, V_CVT_PK_I16_I32 and V_CVT_PK_U8_F32 (saturation or rounding is not) and
V_CVT_SR_* (the pseudocode adds random bits and then rounds to nearest, AMD's software truncates).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.emulate import modifiers, operands
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.isa.matrix_formats import eight_bit_float
from waveproof.kernels.runtimes.emulate.registers import Array
from waveproof.kernels.runtimes.emulate.registry import Context, Step, define
from waveproof.kernels.runtimes.emulate.vector import valu, vector_step


def _to_integer(a: Array, dtype: type[np.integer]) -> Array:
    """Toward zero, saturated, NaN becomes 0 (AMD pseudocode, f32_to_i32 and its like)."""
    limits = np.iinfo(dtype)
    # float64 holds all limits of up to 32 bits exactly.
    whole = np.trunc(a.astype(np.float64))
    whole = np.clip(np.where(np.isnan(whole), 0.0, whole), limits.min, limits.max)
    return whole.astype(dtype)


def _define_plain() -> None:
    """Conversions that numpy's casts do: to a wider or narrower float, and from integers."""
    types = {
        "F32_I32": "i32 -> f32", "F32_U32": "u32 -> f32", "F32_F16": "f16 -> f32", "F16_F32": "f32 -> f16",
        "F64_F32": "f32 -> f64", "F32_F64": "f64 -> f32", "F64_I32": "i32 -> f64", "F64_U32": "u32 -> f64",
        "F16_U16": "u16 -> f16", "F16_I16": "i16 -> f16",
    }  # fmt: skip
    for name, signature in types.items():
        dtype = operands.DTYPES[signature[-3:]]
        valu(f"V_CVT_{name}", signature=signature)(lambda a, dtype=dtype: a.astype(dtype))


def _define_to_integer() -> None:
    for name in ("U32_F32", "I32_F32", "U32_F64", "I32_F64", "U16_F16", "I16_F16"):
        target, _, source = name.lower().partition("_")
        dtype = operands.DTYPES[target]

        def convert(a: Array, dtype: type[np.integer] = dtype) -> Array:  # type: ignore[assignment]
            return _to_integer(a, dtype)

        # CLAMP asks for what the conversion does anyway.
        valu(f"V_CVT_{name}", signature=f"{source} -> {target}", saturate=convert)(convert)


_define_plain()
_define_to_integer()


@valu("V_CVT_RPI_I32_F32", signature="f32 -> i32")
def nearest_up(a: Array) -> Array:
    """floor(S0 + 0.5), the sum rounded to float32 (AMD pseudocode)."""
    return _to_integer(np.floor(a + np.float32(0.5)), np.int32)


@valu("V_CVT_FLR_I32_F32", signature="f32 -> i32")
def floor_integer(a: Array) -> Array:
    """floor(S0)."""
    return _to_integer(np.floor(a), np.int32)


@valu("V_CVT_OFF_F32_I4", signature="u32 -> f32")
def offset_of_nibble(a: Array) -> Array:
    """S0[3:0] as signed, in sixteenths (Vega ISA, V_CVT_OFF_F32_I4: a table from -0.5 to 0.4375)."""
    nibble = (a & np.uint32(15)).astype(np.int32)
    return ((nibble ^ 8) - 8).astype(np.float32) / np.float32(16)


for _byte in range(4):

    @valu(f"V_CVT_F32_UBYTE{_byte}", signature="u32 -> f32")
    def byte_to_float(a: Array, shift: np.uint32 = np.uint32(8 * _byte)) -> Array:  # noqa: B008
        """A byte of S0."""
        return (a >> shift & np.uint32(255)).astype(np.float32)


@valu("V_SAT_PK_U8_I16", signature="b32 -> b16")
def saturate_bytes(a: Array) -> Array:
    """Both halves as signed, saturated to 0..255, in two bytes."""
    signed = a.view(np.int32)
    low, high = (signed << 16) >> 16, signed >> 16
    return (np.clip(low, 0, 255) | np.clip(high, 0, 255) << 8).astype(np.uint16)


@valu("V_CVT_F32_BF16", signature="b16 -> f32", architectures=("gfx950",))
def from_bfloat16(a: Array) -> Array:
    """A bfloat16 is the high half of a float32."""
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(a: Array) -> Array:
    """float32 to bfloat16, nearest even, NaN made quiet: uint32 in 0..0xffff."""
    return narrow_floats.narrow(a, narrow_floats.BFLOAT16).astype(np.uint32)


def to_eight_bits(a: Array, form: narrow_floats.NarrowFloat, saturate: bool) -> Array:
    """float32 or float64 to an 8-bit float, nearest even; uint8.

    What overflows becomes infinity, or NaN in formats without one; with MODE.FP16_OVFL (``saturate``) the largest
    number. An infinity is then the largest number too in the OCP formats of gfx950, their specification's saturating
    mode: Triton relies on it (``test_typeconvert_downcast_clamping``) and AMD's rocjitsu clamps it
    (``f32_to_fp8_e4m3_rne_mode``). In those of gfx942 it stays, "while still preserving true INF values" (CDNA3 ISA,
    "MODE register").
    """
    if saturate and form.nans != "negative-zero":
        largest = np.nanmax(np.where(np.isinf(narrow_floats.values(form)), 0, narrow_floats.values(form)))
        a = np.clip(a, -largest, largest)
    code = narrow_floats.narrow(a, form)
    nan = 0x80 if form.nans == "negative-zero" else 0x7F
    if not saturate:
        finite = np.sort(narrow_floats.values(form)[:128])
        finite = finite[np.isfinite(finite)].astype(np.float64)
        limit = finite[-1] + (finite[-1] - finite[-2]) / 2
        magnitude = np.abs(a)
        # A tie goes to the even neighbour, which is the one beyond the range if the last number is odd.
        over = magnitude >= limit if (len(finite) - 1) & 1 else magnitude > limit
        beyond = np.where(np.signbit(a), 0x80, 0) | 0x7C if form.nans == "ieee" else nan
        code = np.where(over, beyond, code).astype(np.uint8)
    if form.nans != "negative-zero":
        # A NaN keeps the sign, which narrow() does not promise.
        invalid = np.isnan(a) | ((code & 0x7F) == nan)
        code = np.where(invalid, np.where(np.signbit(a), 0x80, 0) | nan, code).astype(np.uint8)
    return code


def to_half(a: Array) -> Array:
    """float32 or float64 to half precision, nearest even: uint32 in 0..0xffff."""
    return a.astype(np.float16).view(np.uint16).astype(np.uint32)


def _to_half_toward_zero(a: Array) -> Array:
    """Truncated: a finite number beyond the range becomes the largest one, not infinity."""
    nearest = a.astype(np.float16)
    bits = nearest.view(np.uint16).astype(np.uint32)
    away = np.abs(nearest.astype(np.float32)) > np.abs(a)
    return np.where(away, bits - np.uint32(1), bits)


def _define_pack(mnemonic: str, convert: Callable[[Array], Array], architectures: tuple[str, ...], half: bool) -> None:
    def pack(a: Array, b: Array) -> Array:
        return convert(a) | convert(b) << np.uint32(16)

    @define(mnemonic, architectures=architectures)
    def build(instruction: Instruction, context: Context) -> Step:
        if half and (context.fp16_overflow or not all(modifiers.denormals(context, "f16"))):
            raise InstructionUnsupported(f"{mnemonic} with MODE that flushes or saturates half precision")
        return vector_step(instruction, context, "f32 f32 -> b32", pack)


_define_pack("V_CVT_PKRTZ_F16_F32", _to_half_toward_zero, ("gfx942", "gfx950"), True)
_define_pack("V_CVT_PK_F16_F32", to_half, ("gfx950",), True)
_define_pack("V_CVT_PK_BF16_F32", to_bfloat16, ("gfx950",), False)


def _define_narrow(name: str) -> None:
    @define(f"V_CVT_F32_{name}")
    def widen(instruction: Instruction, context: Context) -> Step:
        """One byte, which SDWA selects; byte 0 without."""
        if instruction.get("src0_sel") in (4, 5) or instruction.get("src0_sext"):
            raise InstructionUnsupported(f"{instruction.mnemonic} with a word or sign extension selected")
        table = narrow_floats.values(eight_bit_float(name.lower(), context.arch))
        return vector_step(instruction, context, "u32 -> f32", lambda a: table[a & np.uint32(255)])

    @define(f"V_CVT_PK_F32_{name}")
    def widen_pair(instruction: Instruction, context: Context) -> Step:
        """Two bytes of a word, which SDWA selects; the low word without. Results in two registers."""
        if instruction.variant == "SDWA" and instruction.src0_sel < 4:
            # The pseudocode looks at two of the selector's bits, in which BYTE1 and WORD1 are equal.
            raise InstructionUnsupported(f"{instruction.mnemonic} with a byte selected")
        if instruction.get("src0_sext") or instruction.get("dst_sel", 6) != 6:
            raise InstructionUnsupported(f"{instruction.mnemonic} with sign extension or a part of the destination")
        table = narrow_floats.values(eight_bit_float(name.lower(), context.arch))

        def convert(a: Array) -> Array:
            pair = np.stack([table[a & np.uint32(255)], table[a >> np.uint32(8) & np.uint32(255)]], -1)
            return pair.view(np.uint64)[..., 0]

        return vector_step(instruction, context, "u32 -> b64", convert)

    @define(f"V_CVT_PK_{name}_F32")
    def narrow_pair(instruction: Instruction, context: Context) -> Step:
        """Two bytes into the half that OP_SEL[3] selects; the other half is kept."""
        form, saturate = eight_bit_float(name.lower(), context.arch), context.fp16_overflow

        def convert(a: Array, b: Array) -> Array:
            low, high = to_eight_bits(a, form, saturate), to_eight_bits(b, form, saturate)
            return low | high.astype(np.uint16) << np.uint16(8)

        return vector_step(instruction, context, "f32 f32 -> b16", convert, keep_high=True)


_define_narrow("FP8")
_define_narrow("BF8")
