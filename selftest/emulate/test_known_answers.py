"""Tricky instructions by answers worked out by hand: the check on the pseudocode's translator as much as on handlers.

Each line can be followed with the sentence of the CDNA3 ISA document that describes the instruction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.instruction_forms import VCC
from waveproof.selftest.emulate.pcode_reference import reference
from waveproof.selftest.emulate.pcode_values import Value
from waveproof.selftest.emulate.single_step import bare_group, execute

SCALAR: tuple[tuple[str, str, tuple[int, ...], int, int, bool, bool], ...] = (
    # mnemonic, format, S0 S1, bits of D, D, SCC before, SCC after
    ("S_ADD_U32", "SOP2", (0xFFFFFFFF, 1), 32, 0, False, True),
    ("S_ADD_U32", "SOP2", (0x7FFFFFFF, 1), 32, 0x80000000, True, False),
    ("S_ADD_I32", "SOP2", (0x7FFFFFFF, 1), 32, 0x80000000, False, True),
    ("S_ADD_I32", "SOP2", (0xFFFFFFFF, 1), 32, 0, True, False),
    ("S_SUB_I32", "SOP2", (0x80000000, 1), 32, 0x7FFFFFFF, False, True),
    ("S_SUB_U32", "SOP2", (0, 1), 32, 0xFFFFFFFF, False, True),
    ("S_ADDC_U32", "SOP2", (0xFFFFFFFF, 0), 32, 0, True, True),
    ("S_ADDC_U32", "SOP2", (0xFFFFFFFF, 0xFFFFFFFF), 32, 0xFFFFFFFF, True, True),
    ("S_SUBB_U32", "SOP2", (5, 5), 32, 0xFFFFFFFF, True, True),
    ("S_SUBB_U32", "SOP2", (0, 0xFFFFFFFF), 32, 0, True, True),
    ("S_MAX_U32", "SOP2", (7, 7), 32, 7, False, True),
    ("S_MIN_U32", "SOP2", (7, 7), 32, 7, True, False),
    ("S_BFE_I32", "SOP2", (0x00000F80, 7 | 5 << 16), 32, 0xFFFFFFFF, False, True),
    ("S_BFE_I32", "SOP2", (0x80000000, 28 | 16 << 16), 32, 0xFFFFFFF8, False, True),
    ("S_BFE_U32", "SOP2", (0x80000000, 28 | 16 << 16), 32, 8, False, True),
    ("S_BFE_U32", "SOP2", (0xFFFFFFFF, 3), 32, 0, True, False),
    ("S_BFE_U32", "SOP2", (0xDEADBEEF, 32 << 16), 32, 0xDEADBEEF, False, True),
    ("S_BFM_B32", "SOP2", (4, 8), 32, 0xF00, True, True),
    ("S_BFM_B32", "SOP2", (32, 8), 32, 0, True, True),
    ("S_ASHR_I32", "SOP2", (0x80000000, 31), 32, 0xFFFFFFFF, False, True),
    ("S_LSHL_B32", "SOP2", (1, 32), 32, 1, False, True),
    ("S_LSHL3_ADD_U32", "SOP2", (0x20000000, 5), 32, 5, False, True),
    ("S_MUL_HI_I32", "SOP2", (0xFFFFFFFF, 2), 32, 0xFFFFFFFF, False, False),
    ("S_PACK_LH_B32_B16", "SOP2", (0x1111AAAA, 0xBBBB2222), 32, 0xBBBBAAAA, True, True),
    ("S_ABS_I32", "SOP1", (0x80000000,), 32, 0x80000000, False, True),
    ("S_BREV_B32", "SOP1", (0x00000001,), 32, 0x80000000, True, True),
    ("S_BREV_B32", "SOP1", (0x12345678,), 32, 0x1E6A2C48, False, False),
    ("S_FF1_I32_B32", "SOP1", (0x00000500,), 32, 8, True, True),
    ("S_FF1_I32_B32", "SOP1", (0,), 32, 0xFFFFFFFF, False, False),
    ("S_FLBIT_I32_B32", "SOP1", (0x00010000,), 32, 15, False, False),
    ("S_FLBIT_I32", "SOP1", (0xFFFF0000,), 32, 16, False, False),
    ("S_FLBIT_I32", "SOP1", (0xFFFFFFFF,), 32, 0xFFFFFFFF, False, False),
    ("S_BCNT1_I32_B32", "SOP1", (0xF0F0F0F0,), 32, 16, False, True),
    ("S_SEXT_I32_I8", "SOP1", (0x12345680,), 32, 0xFFFFFF80, True, True),
)  # fmt: skip

VECTOR: tuple[tuple[str, str, tuple[int, ...], int], ...] = (
    ("V_PERM_B32", "VOP3", (0x44556677, 0x80112233, 0x07_04_03_00), 0x44778033),
    ("V_PERM_B32", "VOP3", (0x80556677, 0x80112233, 0x0B_09_0C_0D), 0xFFFF00FF),
    ("V_PERM_B32", "VOP3", (0x00556677, 0x00112233, 0x0B_09_08_0A), 0x00000000),
    ("V_ALIGNBIT_B32", "VOP3", (0x12345678, 0x9ABCDEF0, 8), 0x789ABCDE),
    ("V_ALIGNBIT_B32", "VOP3", (0x12345678, 0x9ABCDEF0, 32), 0x9ABCDEF0),
    ("V_ALIGNBYTE_B32", "VOP3", (0x12345678, 0x9ABCDEF0, 3), 0x3456789A),
    ("V_BFI_B32", "VOP3", (0x0000FFFF, 0x12345678, 0x9ABCDEF0), 0x9ABC5678),
    ("V_BFE_I32", "VOP3", (0x00000F80, 7, 5), 0xFFFFFFFF),
    ("V_BFE_I32", "VOP3", (0x80000000, 28, 16), 0xFFFFFFF8),
    ("V_BFE_U32", "VOP3", (0x80000000, 28, 16), 8),
    ("V_BFM_B32", "VOP3", (3, 30), 0xC0000000),
    ("V_LSHL_ADD_U32", "VOP3", (3, 33, 10), 16),
    ("V_ADD_LSHL_U32", "VOP3", (3, 4, 2), 28),
    ("V_XAD_U32", "VOP3", (0xFF, 0x0F, 0x10), 0x100),
    ("V_MED3_I32", "VOP3", (0xFFFFFFFF, 5, 3), 3),
    ("V_MED3_U32", "VOP3", (0xFFFFFFFF, 5, 3), 5),
    ("V_SAD_U32", "VOP3", (3, 10, 100), 107),
    ("V_BCNT_U32_B32", "VOP3", (0xFF00FF00, 5), 21),
    ("V_MUL_HI_U32", "VOP3", (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFE),
    ("V_MUL_HI_I32", "VOP3", (0xFFFFFFFF, 0xFFFFFFFF), 0),
    ("V_MUL_I32_I24", "VOP2", (0x00FFFFFF, 0x12000002), 0xFFFFFFFE),
    ("V_MUL_U32_U24", "VOP2", (0xAB000003, 0x00FFFFFF), 0x02FFFFFD),
    ("V_MUL_HI_U32_U24", "VOP2", (0x00FFFFFF, 0x00FFFFFF), 0xFFFF),
    ("V_ASHRREV_I32", "VOP2", (33, 0x80000000), 0xC0000000),
    ("V_SUBREV_U32", "VOP2", (1, 10), 9),
    ("V_FFBH_U32", "VOP1", (0x00010000,), 15),
    ("V_FFBH_I32", "VOP1", (0xFFFF0000,), 16),
    ("V_FFBL_B32", "VOP1", (0x00000500,), 8),
    ("V_BFREV_B32", "VOP1", (0x12345678,), 0x1E6A2C48),
    ("V_MIN_F32", "VOP2", (0x7FC00000, 0x3F800000), 0x3F800000),
    ("V_MIN_F32", "VOP2", (0x00000000, 0x80000000), 0x80000000),
    ("V_MAX_F32", "VOP2", (0x80000000, 0x00000000), 0x00000000),
    ("V_FMA_F32", "VOP3", (0x3F800001, 0x3F800001, 0xBF800002), 0x28800000),
    ("V_ADD_F32", "VOP2", (0x3F800000, 0x33800000), 0x3F800000),
    ("V_ADD_F32", "VOP2", (0x3F800001, 0x33800000), 0x3F800002),
)  # fmt: skip


@pytest.mark.parametrize(("mnemonic", "format", "sources", "bits", "result", "before", "after"), SCALAR)
def test_scalar(
    mnemonic: str, format: str, sources: tuple[int, ...], bits: int, result: int, before: bool, after: bool
) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.scc[:] = before
    for at, value in enumerate(sources):
        group.s[20 + 2 * at][:] = value
    second: dict[str, Any] = {"ssrc1": 22} if len(sources) > 1 else {}
    execute(group, *assemble(format, mnemonic, sdst=12, ssrc0=20, **second))
    assert (int(group.s[12][0, 0]), bool(group.scc[0, 0])) == (result, after)
    registers = {f"S{at}": Value(value, 32) for at, value in enumerate(sources)}
    registers.update(D0=Value(0, 64), SCC=Value(before, 1))
    reference(mnemonic)(registers)
    assert (registers["D0"].bits, bool(registers["SCC"])) == (result, after), "the reference itself"


@pytest.mark.parametrize(("mnemonic", "format", "sources", "result"), VECTOR)
def test_vector(mnemonic: str, format: str, sources: tuple[int, ...], result: int) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    for at, value in enumerate(sources):
        group.v[1 + at][:] = value
    names = ("src0", "vsrc1" if format == "VOP2" else "src1", "src2")
    fields: dict[str, Any] = {
        name: at + 1 + (0 if name == "vsrc1" else 256) for at, name in enumerate(names[: len(sources)])
    }
    execute(group, *assemble(format, mnemonic, vdst=7, **fields))
    assert set(group.v[7][0].tolist()) == {result}
    float_kind = "F" if mnemonic.endswith("F32") else "B"
    registers = {f"S{at}": Value(value, 32, float_kind) for at, value in enumerate(sources)}
    registers.update({"D0": Value(0, 64), "laneId": Value(0, 32), "WAVE_MODE.IEEE": Value(1, 1)})
    reference(mnemonic)(registers)
    assert registers["D0"].bits == result, "the reference itself"


def test_a_64_bit_sum_by_carry() -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    a, b = 0x0123_4567_FFFF_FFF0, 0x0000_0001_0000_0020
    for row, word in enumerate((a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32)):
        group.v[row][:] = word
    execute(group, *assemble("VOP2", "V_ADD_CO_U32", vdst=4, src0=256, vsrc1=2))
    assert int(group.s[VCC][0, 0]) == 0xFFFFFFFF
    execute(group, *assemble("VOP2", "V_ADDC_CO_U32", vdst=5, src0=257, vsrc1=3))
    assert int(group.s[VCC][0, 0]) == 0
    total = group.v[4].astype(np.uint64) | group.v[5].astype(np.uint64) << np.uint64(32)
    assert set(total[0].tolist()) == {a + b}


def test_lane_numbers_by_mbcnt() -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    execute(group, *assemble("VOP3", "V_MBCNT_LO_U32_B32", vdst=1, src0=193, src1=128))
    execute(group, *assemble("VOP3", "V_MBCNT_HI_U32_B32", vdst=1, src0=193, src1=257))
    assert group.v[1][0].tolist() == list(range(64))


@pytest.mark.parametrize("carry_in", [0, 1])
def test_mad_u64_u32_carries_out_of_64_bits(carry_in: int) -> None:
    group = bare_group(Context(vgprs=8, accvgprs=4))
    group.v[1][:], group.v[2][:] = 0xFFFFFFFF, 0xFFFFFFFF
    # (2^32 - 1)^2 = 2^64 - 2^33 + 1
    addend = (1 << 33) - 2 + carry_in
    group.v[4][:], group.v[5][:] = addend & 0xFFFFFFFF, addend >> 32
    execute(group, *assemble("VOP3SD", "V_MAD_U64_U32", vdst=6, sdst=30, src0=257, src1=258, src2=260))
    expected = ((1 << 64) - (1 << 33) + 1 + addend) & ((1 << 64) - 1)
    assert (int(group.v[6][0, 0]), int(group.v[7][0, 0])) == (expected & 0xFFFFFFFF, expected >> 32)
    assert int(group.s[30][0, 0]) == (0xFFFFFFFF if carry_in else 0)
