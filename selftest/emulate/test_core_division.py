"""float32 division as LLVM expands it is IEEE division: V_RCP, V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP together.

LLVM, AMDGPULegalizerInfo.cpp, ``legalizeFDIV32``. OpenCL and HIP require the result to be correctly rounded where
denormals are kept, which settles what AMD's pseudocode of these instructions leaves open.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.isa import transcendental, valu_float

SPECIAL = np.array(
    [0.0, 1.0, 3.0, 7.0, 1 / 3, 1e-20, 1e-45, 1e-40, 2.0**-126, 2.0**-100, 2.0**100, 2.0**126, 2.0**127, 3.4e38,
     np.finfo(np.float32).max, np.inf, np.nan],
    np.float32,
)  # fmt: skip


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    fma, one = valu_float.fused_multiply_add, np.ones((1, 1), np.float32)
    scaled, _ = valu_float.division_scale(denominator, denominator, numerator)
    dividend, vcc = valu_float.division_scale(numerator, denominator, numerator)
    guess = transcendental.reciprocal(scaled)
    guess = fma(fma(-scaled, guess, one), guess, guess)
    quotient = dividend * guess
    quotient = fma(fma(-scaled, quotient, dividend), guess, quotient)
    rest = fma(-scaled, quotient, dividend)
    quotient = valu_float.division_fmas(rest, guess, quotient, np.broadcast_to(vcc, quotient.shape))
    return valu_float.division_fixup(quotient, denominator, numerator)


def assert_divides(numerator: np.ndarray, denominator: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        got, want = divide(numerator, denominator), numerator / denominator
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    wrong = np.argwhere(~same)
    assert not len(wrong), [(numerator[tuple(i)], denominator[tuple(i)], got[tuple(i)]) for i in wrong[:5]]


def test_special_values() -> None:
    values = np.concatenate([SPECIAL, -SPECIAL])
    numerator, denominator = np.meshgrid(values, values)
    assert_divides(np.ascontiguousarray(numerator), np.ascontiguousarray(denominator))


@pytest.mark.parametrize("kind", ["patterns", "probabilities", "tiny quotients", "huge quotients"])
def test_random_values(kind: str) -> None:
    generator = np.random.default_rng(0)
    shape = (1000, 64)
    numerator, denominator = (generator.integers(0, 1 << 32, shape, np.uint32).view(np.float32) for _ in range(2))
    if kind != "patterns":
        numerator, denominator = (generator.random(shape, np.float32) + np.float32(2.0**-30) for _ in range(2))
    if kind == "tiny quotients":
        numerator, denominator = numerator * np.float32(2.0**-70), denominator * np.float32(2.0**62)
    if kind == "huge quotients":
        numerator, denominator = numerator * np.float32(2.0**70), denominator * np.float32(2.0**-60)
    assert_divides(numerator, denominator)


def test_fma_rounds_once() -> None:
    """Cases in which rounding to float64 first gives another float32, by exact arithmetic."""
    generator = np.random.default_rng(1)
    # c half an ulp (a tie for the float32 sum) above a float, the product a tiny bit beyond float64's reach
    a = (generator.integers(1 << 23, 1 << 24, (4000, 1)) * 2.0**-80).astype(np.float32)
    b = (generator.integers(1 << 23, 1 << 24, (4000, 1)) * 2.0**-24).astype(np.float32)
    tie = generator.integers(1 << 23, 1 << 24, (4000, 1)).astype(np.float32)
    cases = [(a, b, tie), (np.ones_like(tie) + np.float32(2.0**-23), np.full_like(tie, 2.0**-24), tie)]
    for x, y, z in cases:
        got = valu_float.fused_multiply_add(x, y, z)
        for i in range(0, len(x), 7):
            exact = Fraction(float(x[i, 0])) * Fraction(float(y[i, 0])) + Fraction(float(z[i, 0]))
            near = float(got[i, 0])
            error = abs(Fraction(near) - exact)
            neighbours = [float(np.nextafter(got[i, 0], np.float32(s))) for s in (-np.inf, np.inf)]
            assert all(error <= abs(Fraction(other) - exact) for other in neighbours)
    # 1 + 2^-24 + 2^-70 is above the tie between 1 and its successor; float64 sees the tie itself
    one = np.ones((1, 1), np.float32)
    up = valu_float.fused_multiply_add(np.float32(2.0**-35) * one, np.float32(2.0**-35) * one, one)
    assert up[0, 0] == 1
    tied = valu_float.fused_multiply_add(
        np.float32(1 + 2.0**-23) * one, np.float32(1 - 2.0**-23) * np.float32(2.0**-24) * one, one
    )
    # the product is 2^-24 * (1 - 2^-46): just below the tie, rounds down
    assert tied[0, 0] == 1
    above = valu_float.fused_multiply_add(
        np.float32(1 + 2.0**-23) * one, np.float32(1 + 2.0**-22) * np.float32(2.0**-24) * one, one
    )
    assert above[0, 0] == np.float32(1 + 2.0**-23)
    # 2^-24 + 2^-70 over 1: inexact in float64 and a tie there
    beyond = valu_float.round_to_odd(np.array([[2.0**-24 + 2.0**-76]]), np.array([[1.0]]), np.array([[1 + 2.0**-24]]))
    assert beyond.astype(np.float32)[0, 0] == np.float32(1 + 2.0**-23)
