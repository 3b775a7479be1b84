"""float64 division as LLVM expands it is IEEE division; half precision's V_DIV_FIXUP by its table.

LLVM, AMDGPULegalizerInfo.cpp, ``legalizeFDIV64``: V_DIV_SCALE twice, V_RCP, refinement, V_DIV_FMAS, V_DIV_FIXUP, run
here as instructions. That the result is correctly rounded settles what the pseudocode leaves open (see
``test_core_division``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from waveproof.selftest.emulate import scalar_floats as sf
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.float_trial import EXEC_MASKS, specials
from waveproof.selftest.emulate.single_step import bare_group, execute, set_exec

VCC = 106


def vop3(mnemonic: str, vdst: int, *sources: int, neg: int = 0, one: int | None = None) -> tuple[int, ...]:
    """VGPR numbers as sources; ``one`` is the position of the constant 1.0."""
    numbers: dict[str, Any] = {f"src{at}": 242 if at == one else 256 + register for at, register in enumerate(sources)}
    return assemble("VOP3", mnemonic, vdst=vdst, neg=neg, **numbers)


def scale(vdst: int, *sources: int) -> tuple[int, ...]:
    """V_DIV_SCALE_F64 with its flags to VCC."""
    numbers: dict[str, Any] = {f"src{at}": 256 + register for at, register in enumerate(sources)}
    return assemble("VOP3SD", "V_DIV_SCALE_F64", vdst=vdst, sdst=VCC, **numbers)


# v[2:3] / v[4:5] to v[10:11]; the second V_DIV_SCALE's flags are those that V_DIV_FMAS reads.
PROGRAM = (
    *scale(12, 4, 4, 2),
    *assemble("VOP1", "V_RCP_F64", vdst=14, src0=256 + 12),
    *vop3("V_FMA_F64", 16, 12, 14, 0, neg=1, one=2),
    *vop3("V_FMA_F64", 14, 14, 16, 14),
    *vop3("V_FMA_F64", 16, 12, 14, 0, neg=1, one=2),
    *vop3("V_FMA_F64", 14, 14, 16, 14),
    *scale(18, 2, 4, 2),
    *vop3("V_MUL_F64", 20, 18, 14),
    *vop3("V_FMA_F64", 12, 12, 20, 18, neg=1),
    *vop3("V_DIV_FMAS_F64", 12, 12, 14, 20),
    *vop3("V_DIV_FIXUP_F64", 10, 12, 4, 2),
)


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Numerators and denominators of 16 waves: specials by specials, then random bit patterns."""
    extremes = [0x0010000000000001, 0x001FFFFFFFFFFFFF, 0x7FD0000000000000, 0x7FE0000000000003, 0x03B0000000000000]
    extremes += [0x4330000000000000, 0x3CA0000000000001, 0x0000000100000000, 0x0360000000000000, 0xFFE5555555555555]
    table = np.array([*specials("f64"), *extremes], np.uint64)
    rng = np.random.default_rng(0)
    special = np.array(np.meshgrid(table, table)).reshape(2, -1)
    count = 16 * 64 - special.shape[1]
    noise = rng.integers(0, 1 << 64, (2, count), dtype=np.uint64)
    both = np.concatenate([special, noise], axis=1).reshape(2, 16, 64)
    return both[0], both[1]


def test_division_is_correctly_rounded() -> None:
    numerator, denominator = pairs()
    group = bare_group(waves=16)
    for row, value in ((2, numerator), (4, denominator)):
        group.state.v[row], group.state.v[row + 1] = value.astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)
    execute(group, *PROGRAM)
    got = group.state.v[10].astype(np.uint64) | group.state.v[11].astype(np.uint64) << np.uint64(32)
    with np.errstate(all="ignore"):
        want = numerator.view(np.float64) / denominator.view(np.float64)
    same = (got == want.view(np.uint64)) | (np.isnan(got.view(np.float64)) & np.isnan(want))
    wrong = np.argwhere(~same)
    assert not len(wrong), [
        (hex(int(numerator[tuple(i)])), hex(int(denominator[tuple(i)])), hex(int(got[tuple(i)]))) for i in wrong[:5]
    ]


def test_flags_are_zero_outside_exec_and_lanes_keep_their_registers() -> None:
    group = bare_group()
    group.v[2][:], group.v[3][:] = 0, 0x7FE00000
    group.v[4][:], group.v[5][:] = 0, 0x00100000
    group.v[12][:] = group.v[13][:] = 7
    set_exec(group, EXEC_MASKS["partial"])
    execute(group, *scale(12, 4, 4, 2))
    live = np.array([EXEC_MASKS["partial"] >> lane & 1 for lane in range(64)], bool)
    # The exponents are 2045 apart: the denominator is scaled up by 2^128 and the flag set.
    assert (group.lane_mask(VCC)[0] == live).all()
    assert (group.v[13][0] == np.where(live, 0x08100000, 7)).all()


@pytest.mark.parametrize("masks", ["full", "partial"])
def test_half_precision_fixup(masks: str) -> None:
    form, values = sf.FORMS["f16"], np.array(specials("f16"), np.uint32)
    group = bare_group(waves=len(values) * len(values) // 64 + 1)
    lanes = np.arange(group.n * 64)
    quotient, denominator, numerator = (
        values[lanes % 7],
        values[lanes % len(values)],
        values[lanes // len(values) % len(values)],
    )
    for row, value in ((2, quotient), (4, denominator), (6, numerator)):
        group.state.v[row] = value.reshape(group.n, 64)
    group.v[10][:] = 0xABCD1234
    set_exec(group, EXEC_MASKS[masks])
    execute(group, *vop3("V_DIV_FIXUP_F16", 10, 2, 4, 6))
    for lane, got in enumerate(int(x) for x in group.v[10].reshape(-1)):
        if not EXEC_MASKS[masks] >> lane % 64 & 1:
            assert got == 0xABCD1234
            continue
        q, d, n = int(quotient[lane]), int(denominator[lane]), int(numerator[lane])
        sign = (d ^ n) & form.sign
        zeros, infinities = (
            (sf.is_zero(n, form), sf.is_zero(d, form)),
            (sf.is_infinite(n, form), sf.is_infinite(d, form)),
        )
        if sf.is_nan(n, form) or sf.is_nan(d, form) or all(zeros) or all(infinities):
            assert sf.is_nan(got, form)
        elif zeros[1] or infinities[0]:
            assert got == sign | form.infinity
        elif zeros[0] or infinities[1]:
            assert got == sign
        else:
            assert got == sign | q & 0x7FFF
