"""Where matrix elements lie in registers and lanes: data for the MFMA tests, written from the published layouts.

Sources: AMD matrix instruction calculator (``--register-layout``, CDNA3) for 16x16x16, 32x32x8, 16x16x4, 32x32x2,
16x16x32 and 32x32x16; the HIP kernels of the ROCm blog "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture",
sections 5.1 to 5.5, for 32x32x2, 16x16x16, 32x32x16 with fp8, and 32x32x64 with fp8 and fp4. The CDNA4 shapes with the
same number of k in a lane follow the same rule (CDNA4 ISA, "Dense matrix layouts").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Place = Callable[[int, int], tuple[int, int]]
"""(lane, element of the lane) to (row of A or column of B, k)."""

PLACES: dict[str, Place] = {
    "16x16x4": lambda lane, e: (lane % 16, lane // 16),
    "32x32x2": lambda lane, e: (lane % 32, lane // 32),
    "16x16x16": lambda lane, e: (lane % 16, 4 * (lane // 16) + e),
    "32x32x8": lambda lane, e: (lane % 32, 4 * (lane // 32) + e),
    "16x16x32": lambda lane, e: (lane % 16, 8 * (lane // 16) + e),
    "32x32x16": lambda lane, e: (lane % 32, 8 * (lane // 32) + e),
    "16x16x64": lambda lane, e: (lane % 16, 16 * (lane // 16) + e),
    "32x32x32": lambda lane, e: (lane % 32, 16 * (lane // 32) + e),
    "16x16x128 of 8 bits": lambda lane, e: (lane % 16, 64 * (e // 16) + 16 * (lane // 16) + e % 16),
    "32x32x64 of 8 bits": lambda lane, e: (lane % 32, 32 * (e // 16) + 16 * (lane // 32) + e % 16),
    "16x16x128 of fewer bits": lambda lane, e: (lane % 16, 32 * (lane // 16) + e),
    "32x32x64 of fewer bits": lambda lane, e: (lane % 32, 32 * (lane // 32) + e),
}

RESULTS: dict[int, Place] = {
    16: lambda lane, register: (4 * (lane // 16) + register, lane % 16),
    32: lambda lane, register: (8 * (register // 4) + 4 * (lane // 32) + register % 4, lane % 32),
}
"""By M: (lane, register) to (row, column) of C and D."""

BITS = {"f32": 32, "f16": 16, "bf16": 16, "fp8": 8, "bf8": 8, "i8": 8, "fp6": 6, "bf6": 6, "fp4": 4}

PATTERNS: dict[tuple[str, str], dict[int, int]] = {
    ("fp8", "gfx950"): {1: 0x38, 2: 0x40, 3: 0x44, -1: 0xB8},  # e4m3fn, bias 7
    ("fp8", "gfx942"): {1: 0x40, 2: 0x48, 3: 0x4C, -1: 0xC0},  # e4m3fnuz, bias 8
    ("bf8", "gfx950"): {1: 0x3C, 2: 0x40, 3: 0x42, -1: 0xBC},  # e5m2, bias 15
    ("bf8", "gfx942"): {1: 0x40, 2: 0x44, 3: 0x46, -1: 0xC0},  # e5m2fnuz, bias 16
    ("fp6", "gfx950"): {1: 0x08, 2: 0x10, 3: 0x14, -1: 0x28},  # e2m3, bias 1
    ("bf6", "gfx950"): {1: 0x0C, 2: 0x10, 3: 0x12, -1: 0x2C},  # e3m2, bias 3
    ("fp4", "gfx950"): {1: 0x2, 2: 0x4, 3: 0x5, -1: 0xA},  # e2m1, bias 1
}
"""Bit patterns of a few integers, worked out by hand from the formats' definitions."""


def pattern(value: int, kind: str, arch: str) -> int:
    """Bit pattern of a small integer."""
    if value == 0:
        return 0
    if kind == "i8":
        return value & 0xFF
    if kind == "f32":
        return int(np.float32(value).view(np.uint32))
    if kind == "f16":
        return int(np.float16(value).view(np.uint16))
    if kind == "bf16":
        return int(np.float32(value).view(np.uint32)) >> 16
    return PATTERNS[kind, arch][value]


def place_of(size: str, kind: str) -> Place:
    """Layout of A (of B with rows and columns exchanged) of an instruction of that size with elements of that kind."""
    if size in ("16x16x128", "32x32x64"):
        size += " of 8 bits" if BITS[kind] == 8 else " of fewer bits"
    return PLACES[size]


def registers(matrix: npt.NDArray[np.int_], size: str, kind: str, arch: str) -> npt.NDArray[np.uint32]:
    """Operand registers [r, 64] that hold A [M, K], or B as [N, K], of small integers."""
    bits, place = BITS[kind], place_of(size, kind)
    count = matrix.size // 64
    lanes = [0] * 64
    for lane in range(64):
        for e in range(count):
            row, k = place(lane, e)
            lanes[lane] |= pattern(int(matrix[row, k]), kind, arch) << bits * e
    return np.array([[lane >> 32 * r & 0xFFFFFFFF for lane in lanes] for r in range(count * bits // 32)], np.uint32)


def matrix_of(result: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """C or D [M, M] from its registers [r, 64]."""
    m = {4: 16, 16: 32}[len(result)]
    matrix = np.empty((m, m), result.dtype)
    for register in range(len(result)):
        for lane in range(64):
            matrix[RESULTS[m](lane, register)] = result[register, lane]
    return matrix
