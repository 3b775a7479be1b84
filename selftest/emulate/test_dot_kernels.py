"""Matrix products that Triton compiles for gfx942 and gfx950, run whole: values, instructions used, exact counts."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

import triton

from waveproof.selftest.emulate.dot_kernels import Dot

BOUND = 1e-5
"""Absolute. Up to 256 products of N(0, 1) numbers are 16 rms; at 2**-24 relative a sum of float32, ten times over."""

# The shapes of the study's table, with what executes of each: wave instructions, the matrix instruction and its count,
# LDS-DMA loads, transposing reads, bytes of LDS. Counts belong to Triton 3.9.0 and the kernel of dot_kernels.py.
TABLE = [
    (Dot("gfx950", 16, 16, 32, 64, 1, 16), 146, "V_MFMA_F32_16X16X32_BF16", 2, 4, 4, 4128),
    (Dot("gfx950", 32, 32, 32, 64, 1, 32), 220, "V_MFMA_F32_32X32X16_BF16", 4, 8, 8, 8384),
    (Dot("gfx950", 64, 64, 64, 128, 4, 32), 916, "V_MFMA_F32_32X32X16_BF16", 32, 32, 64, 33968),
    (Dot("gfx950", 128, 128, 64, 256, 8, 16), 3504, "V_MFMA_F32_16X16X32_BF16", 512, 128, 256, 67520),
    (Dot("gfx942", 64, 64, 64, 256, 4, 16, pack=2), 1640, "V_MFMA_F32_16X16X16_BF16", 256, 0, 0, 16384),
    (Dot("gfx942", 32, 32, 64, 128, 1, 32, pack=2), 327, "V_MFMA_F32_32X32X8_BF16", 16, 0, 0, 8192),
]


@pytest.mark.parametrize(("dot", "instructions", "mfma", "count", "dma", "transposing", "lds"), TABLE)
def test_the_studys_shapes(
    dot: Dot, instructions: int, mfma: str, count: int, dma: int, transposing: int, lds: int
) -> None:
    statistics, c, want, shared = dot.run()
    assert np.abs(c - want).max() < BOUND
    assert statistics.by_mnemonic[mfma] == statistics.mfma == count
    if triton.__version__.startswith("3.9.0"):
        assert statistics.wave_instructions == instructions
        assert statistics.by_mnemonic["GLOBAL_LOAD_LDS_DWORDX4"] == dma
        assert statistics.by_mnemonic["DS_READ_B64_TR_B16"] == transposing
        assert shared == lds


@pytest.mark.parametrize(
    ("dot", "mfma"),
    [
        (Dot("gfx950", 32, 32, 32, 64, 1, 16, "f16"), "V_MFMA_F32_16X16X32_F16"),
        (Dot("gfx950", 32, 32, 32, 64, 1, 32, "f16"), "V_MFMA_F32_32X32X16_F16"),
        (Dot("gfx942", 32, 32, 32, 64, 1, 16, "f16"), "V_MFMA_F32_16X16X16_F16"),
        (Dot("gfx942", 32, 32, 32, 64, 1, 32, "f16"), "V_MFMA_F32_32X32X8_F16"),
        (Dot("gfx942", 32, 32, 64, 64, 1, 16, "i8"), "V_MFMA_I32_16X16X32_I8"),
        (Dot("gfx942", 32, 32, 64, 64, 1, 32, "i8"), "V_MFMA_I32_32X32X16_I8"),
        (Dot("gfx950", 32, 32, 64, 64, 1, 16, "i8"), "V_MFMA_I32_16X16X64_I8"),
        (Dot("gfx950", 32, 32, 64, 64, 1, 32, "i8"), "V_MFMA_I32_32X32X32_I8"),
        (Dot("gfx942", 32, 32, 64, 64, 1, 16, "fp8"), "V_MFMA_F32_16X16X32_FP8_FP8"),
        (Dot("gfx942", 32, 32, 64, 64, 1, 32, "bf8"), "V_MFMA_F32_32X32X16_BF8_BF8"),
        (Dot("gfx950", 32, 32, 64, 64, 1, 16, "fp8"), "V_MFMA_F32_16X16X32_FP8_FP8"),
        (Dot("gfx950", 32, 32, 128, 256, 1, 16, "fp8"), "V_MFMA_F32_16X16X128_F8F6F4"),
        (Dot("gfx950", 64, 32, 128, 128, 1, 32, "bf8"), "V_MFMA_F32_32X32X64_F8F6F4"),
        (Dot("gfx942", 32, 32, 32, 64, 1, 16, "f32"), "V_MFMA_F32_16X16X4_F32"),
        (Dot("gfx950", 32, 32, 32, 64, 1, 32, "f32"), "V_MFMA_F32_32X32X2_F32"),
    ],
    ids=lambda x: f"{x.arch}-{x.kind}" if isinstance(x, Dot) else x,
)
def test_other_types(dot: Dot, mfma: str) -> None:
    statistics, c, want, _ = dot.run()
    assert {name for name in statistics.by_mnemonic if "MFMA" in name} == {mfma}
    assert np.abs(c - want).max() <= (0 if dot.kind == "i8" else BOUND)
