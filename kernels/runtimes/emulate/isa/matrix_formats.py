"""Element formats of matrix operands: tables from bit pattern to value, and how elements lie in a lane's registers.

The 8-bit floats differ by architecture: gfx942 has the "fnuz" formats, gfx950 the OCP ones (LLVM "User Guide for
AMDGPU Backend"; AMD CDNA4 ISA, "Matrix core data types"). 6- and 4-bit formats: OCP Microscaling Formats (MX)
Specification 1.0, section 5.3: no infinity, no NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.emulate.registers import Array

Table = npt.NDArray[np.float64]

_EIGHT_BITS = {
    ("fp8", "gfx942"): "fp8e4b8", ("bf8", "gfx942"): "fp8e5b16",
    ("fp8", "gfx950"): "fp8e4nv", ("bf8", "gfx950"): "fp8e5",
}  # fmt: skip
_SMALL = {"fp6": (2, 3, 1), "bf6": (3, 2, 3), "fp4": (2, 1, 1)}
"""Bits of exponent and mantissa, and the bias: E2M3, E3M2, E2M1."""


def eight_bit_float(name: str, arch: str) -> narrow_floats.NarrowFloat:
    """The format that ``fp8`` or ``bf8`` means on an architecture."""
    return narrow_floats.BY_TRITON_NAME[_EIGHT_BITS[name, arch]]


@dataclass(frozen=True, eq=False)
class ElementFormat:
    """An element format of matrix operands."""

    bits: int
    table: Table | None
    """Value of each bit pattern, float64 [2**bits]; None for f32, which is its own value."""


@cache
def element_format(name: str, arch: str) -> ElementFormat:
    """By name: ``f32 bf16 f16 fp8 bf8 fp6 bf6 fp4 i8`` (integers are values like others here)."""
    if name == "f32":
        return ElementFormat(32, None)
    if name == "bf16":
        table: Array = narrow_floats.values(narrow_floats.BFLOAT16)
    elif name == "f16":
        table = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    elif name == "i8":
        table = np.arange(1 << 8, dtype=np.uint8).view(np.int8)
    elif name in _SMALL:
        table = _small_float(*_SMALL[name])
    else:
        table = narrow_floats.values(eight_bit_float(name, arch))
    with np.errstate(invalid="ignore"):  # signalling NaNs of the table become quiet ones
        return ElementFormat(len(table).bit_length() - 1, table.astype(np.float64))


def _small_float(exponent_bits: int, mantissa_bits: int, bias: int) -> Table:
    pattern = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = pattern & ((1 << mantissa_bits) - 1)
    exponent = pattern >> mantissa_bits & ((1 << exponent_bits) - 1)
    significand = mantissa + np.where(exponent == 0, 0, 1 << mantissa_bits)
    magnitude = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    return np.where(pattern >> (exponent_bits + mantissa_bits), -magnitude, magnitude)


def unpack(packed: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Elements of 4 or 6 bits, lowest bits first: bytes [..., b] to [..., 8 * b / bits]."""
    single = np.unpackbits(packed, axis=-1, bitorder="little")
    grouped = single.reshape(*packed.shape[:-1], -1, bits)
    return np.packbits(grouped, axis=-1, bitorder="little")[..., 0]


def pack(elements: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[Any]:
    """The inverse of :func:`unpack`."""
    single = np.unpackbits(elements[..., None], axis=-1, bitorder="little")[..., :bits]
    return np.packbits(single.reshape(*elements.shape[:-1], -1), axis=-1, bitorder="little")
