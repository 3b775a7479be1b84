"""V_CVT_SCALEF32_*: which there are, and what is refused. What they compute is tried in :mod:`.scaled_trial`."""

from __future__ import annotations

from typing import Any

import pytest

from waveproof.kernels.runtimes.emulate import registry
from waveproof.kernels.runtimes.emulate.fault import InstructionUnsupported
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.scaled_trial import MNEMONICS
from waveproof.selftest.emulate.single_step import bare_group, execute, instructions

FP8, HALVES, BFLOATS = (f"V_CVT_SCALEF32_PK_FP8_{wide}" for wide in ("F32", "F16", "BF16"))
BYTE, TO_BFLOATS = "V_CVT_SCALEF32_F32_FP8", "V_CVT_SCALEF32_PK_BF16_FP8"


def test_all_that_are_registered_are_tried() -> None:
    assert {name for name in registry.operations() if "SCALEF32" in name} == set(MNEMONICS)
    assert len(set(MNEMONICS)) == 22


@pytest.mark.parametrize("mnemonic", MNEMONICS)
def test_gfx942_lacks(mnemonic: str) -> None:
    (instruction,) = instructions(assemble("VOP3", mnemonic, vdst=10, src0=258, src1=260))
    with pytest.raises(InstructionUnsupported, match="not implemented for gfx942"):
        build_step(instruction, Context(arch="gfx942"))


@pytest.mark.parametrize(
    ("mnemonic", "fields"),
    [
        (FP8, {"clamp": 1}),
        (FP8, {"omod": 1}),
        (FP8, {"opsel": 4}),
        (FP8, {"neg": 4}),
        (HALVES, {"neg": 1}),
        (HALVES, {"src0": 242}),
        (HALVES, {"src0": 193}),
        (BYTE, {"opsel": 8}),
        (BYTE, {"abs": 2}),
        (TO_BFLOATS, {"opsel": 2}),
    ],
)
def test_what_is_not_documented_is_refused(mnemonic: str, fields: dict[str, int]) -> None:
    given: dict[str, Any] = {"vdst": 10, "src0": 258, "src1": 260, **({"src2": 262} if mnemonic == FP8 else {})}
    (plain,) = instructions(assemble("VOP3", mnemonic, **given))
    build_step(plain, Context())
    (changed,) = instructions(assemble("VOP3", mnemonic, **{**given, **fields}))
    with pytest.raises(InstructionUnsupported, match=mnemonic):
        build_step(changed, Context())


@pytest.mark.parametrize("mnemonic", [BFLOATS, TO_BFLOATS])
def test_bfloat16_in_a_mode_that_flushes_is_refused(mnemonic: str) -> None:
    (instruction,) = instructions(assemble("VOP3", mnemonic, vdst=10, src0=258, src1=260))
    with pytest.raises(InstructionUnsupported, match="flushes single precision"):
        build_step(instruction, Context(float_mode=0xC0))


@pytest.mark.parametrize("scale", [0x7F800000, 0xFF800000, 0x7FC00000])
@pytest.mark.parametrize("mnemonic", [HALVES, BYTE])
def test_a_scale_that_is_no_number_is_refused_where_a_lane_has_it(mnemonic: str, scale: int) -> None:
    group = bare_group()
    group.v[2][:], group.v[4][:] = 0x3C003C00, 0x3F800000
    group.v[4][0, 5] = scale
    words = assemble("VOP3", mnemonic, vdst=10, src0=258, src1=260)
    with pytest.raises(InstructionUnsupported, match="infinity or NaN as scale"):
        execute(group, *words)
    group.s64[63][:] = ~(1 << 5) & (1 << 64) - 1
    group.refresh_exec()
    execute(group, *words)


def test_overflow_of_bfloat16_with_fp16_ovfl_is_refused() -> None:
    group = bare_group(Context(fp16_overflow=True))
    group.v[2][:], group.v[4][:] = 0x7E7E, 254 << 23
    words = assemble("VOP3", TO_BFLOATS, vdst=10, src0=258, src1=260)
    with pytest.raises(InstructionUnsupported, match="overflows bfloat16"):
        execute(group, *words)


def test_fp4_of_nan_is_refused() -> None:
    group = bare_group()
    group.v[2][:], group.v[4][:] = 0x7E003C00, 0x3F800000
    with pytest.raises(InstructionUnsupported, match="NaN, which FP4 has not"):
        execute(group, *assemble("VOP3", "V_CVT_SCALEF32_PK_FP4_F16", vdst=10, src0=258, src1=260))
