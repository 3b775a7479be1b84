from __future__ import annotations

import pytest

from waveproof.selftest.emulate.assembler import assemble, formats

# Bytes from llvm-mc 14 (-arch=amdgcn -mcpu=gfx90a -show-encoding) for the text at the end of each line.
SAMPLE: list[tuple[tuple[int, ...], str, str, dict[str, object], str]] = [
    ((0x8007FF03, 0x12345678), "SOP2", "S_ADD_U32", {"sdst": 7, "ssrc0": 3, "ssrc1": 255, "literal": 0x12345678},
     "s_add_u32 s7, s3, 0x12345678"),
    ((0xBF04C504,), "SOPC", "S_CMP_LT_I32", {"ssrc0": 4, "ssrc1": 197}, "s_cmp_lt_i32 s4, -5"),
    ((0xB0098001,), "SOPK", "S_MOVK_I32", {"sdst": 9, "simm16": 0x8001}, "s_movk_i32 s9, 0x8001"),
    ((0xBE8A090C,), "SOP1", "S_BREV_B64", {"sdst": 10, "ssrc0": 12}, "s_brev_b64 s[10:11], s[12:13]"),
    ((0xBF870010,), "SOPP", "S_CBRANCH_VCCNZ", {"simm16": 16}, "s_cbranch_vccnz 16"),
    ((0xC00A0202, 0x40), "SMEM", "S_LOAD_DWORDX4", {"sdata": 8, "sbase": 2, "imm": 1, "offset": 0x40},
     "s_load_dwordx4 s[8:11], s[4:5], 0x40"),
    ((0x02060AF2,), "VOP2", "V_ADD_F32", {"vdst": 3, "src0": 242, "vsrc1": 5}, "v_add_f32 v3, 1.0, v5"),
    ((0x7F900211,), "VOP1", "V_MOV_B32", {"vdst": 200, "src0": 17}, "v_mov_b32 v200, s17"),
    ((0x7D981304,), "VOPC", "V_CMP_GT_U32", {"src0": 260, "vsrc1": 9}, "v_cmp_gt_u32 vcc, v4, v9"),
    ((0xD0CC0014, 0x00001304), "VOP3", "V_CMP_GT_U32", {"vdst": 20, "src0": 260, "src1": 9},
     "v_cmp_gt_u32 s[20:21], v4, s9"),
    ((0xD1CB8201, 0x2BD20702), "VOP3", "V_FMA_F32",
     {"vdst": 1, "src0": 258, "src1": 259, "src2": 244, "neg": 1, "abs": 2, "clamp": 1, "omod": 1},
     "v_fma_f32 v1, -v2, |v3|, 2.0 clamp mul:2"),
    ((0xD11C0401, 0x001A0702), "VOP3SD", "V_ADDC_CO_U32",
     {"vdst": 1, "sdst": 4, "src0": 258, "src1": 259, "src2": 6}, "v_addc_co_u32 v1, s[4:5], v2, v3, s[6:7]"),
    ((0xD1E80402, 0x041A0B04), "VOP3SD", "V_MAD_U64_U32",
     {"vdst": 2, "sdst": 4, "src0": 260, "src1": 261, "src2": 262}, "v_mad_u64_u32 v[2:3], s[4:5], v4, v5, v[6:7]"),
    ((0xD3B05002, 0x2C200D04), "VOP3P", "V_PK_FMA_F32",
     {"vdst": 2, "src0": 260, "src1": 6, "src2": 264, "opsel": 2, "opsel_hi": 1, "opsel_hi2": 1, "neg": 1},
     "v_pk_fma_f32 v[2:3], v[4:5], s[6:7], v[8:9] op_sel:[0,1,0] op_sel_hi:[1,0,1] neg_lo:[1,0,0]"),
    ((0xD3B34802, 0x18020D04), "VOP3P", "V_PK_MOV_B32",
     {"vdst": 2, "src0": 260, "src1": 262, "opsel": 1, "opsel_hi": 3, "opsel_hi2": 1},
     "v_pk_mov_b32 v[2:3], v[4:5], v[6:7] op_sel:[1,0]"),
    ((0x7E0202FA, 0xA5091302), "VOP1", "V_MOV_B32",
     {"vdst": 1, "dpp": {"vsrc0": 2, "ctrl": 0x113, "row_mask": 10, "bank_mask": 5, "bound_ctrl": 1}},
     "v_mov_b32 v1, v2 row_shr:3 row_mask:0xa bank_mask:0x5 bound_ctrl:0"),
    ((0x680206FA, 0xFF001B02), "VOP2", "V_ADD_U32", {"vdst": 1, "vsrc1": 3, "dpp": {"vsrc0": 2, "ctrl": 0x1B}},
     "v_add_u32 v1, v2, v3 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf"),
    ((0x680206F9, 0x03051202), "VOP2", "V_ADD_U32",
     {"vdst": 1, "vsrc1": 3, "sdwa": {"vsrc0": 2, "dst_sel": 2, "dst_unused": 2, "src0_sel": 5, "src1_sel": 3}},
     "v_add_u32 v1, v2, v3 dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:BYTE_3"),
    ((0x260206F9, 0x0C800602), "VOP2", "V_AND_B32",
     {"vdst": 1, "vsrc1": 3, "sdwa": {"vsrc0": 2, "s0": 1, "src0_sel": 0, "src1_sel": 4, "src1_sext": 1}},
     "v_and_b32 v1, s2, sext(v3) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:WORD_0"),
    ((0xDC549FF0, 0x047F0002), "GLOBAL", "GLOBAL_LOAD_DWORDX2", {"vdst": 4, "addr": 2, "saddr": 0x7F, "offset": -16},
     "global_load_dwordx2 v[4:5], v[2:3], off offset:-16"),
    ((0xDC6C87FF, 0x00020907), "GLOBAL", "GLOBAL_STORE_SHORT_D16_HI",
     {"data": 9, "addr": 7, "saddr": 2, "offset": 2047},
     "global_store_short_d16_hi v7, v9, s[2:3] offset:2047"),
    ((0xE0843FFF, 0x03020506), "MUBUF", "BUFFER_LOAD_UBYTE_D16_HI",
     {"vdata": 5, "vaddr": 6, "srsrc": 2, "soffset": 3, "idxen": 1, "offen": 1, "offset": 4095},
     "buffer_load_ubyte_d16_hi v5, v[6:7], s[8:11], s3 idxen offen offset:4095"),
    ((0xE07C0000, 0x84020400), "MUBUF", "BUFFER_STORE_DWORDX4", {"vdata": 4, "srsrc": 2, "soffset": 132},
     "buffer_store_dwordx4 v[4:7], off, s[8:11], 4"),
    ((0xD2890005, 0x00000F06), "VOP3", "V_READLANE_B32", {"vdst": 5, "src0": 262, "src1": 7},
     "v_readlane_b32 s5, v6, s7"),
    ((0xD28A0005, 0x00014206), "VOP3", "V_WRITELANE_B32", {"vdst": 5, "src0": 6, "src1": 161},
     "v_writelane_b32 v5, s6, 33"),
    ((0x7E120504,), "VOP1", "V_READFIRSTLANE_B32", {"vdst": 9, "src0": 260}, "v_readfirstlane_b32 s9, v4"),
    ((0xD28D0001, 0x000204C1), "VOP3", "V_MBCNT_HI_U32_B32", {"vdst": 1, "src0": 193, "src1": 258},
     "v_mbcnt_hi_u32_b32 v1, -1, v2"),
    # From the LLVM of Triton 3.9.0 (gfx950), since gfx90a has no SVE bit.
    ((0xDC506008, 0x02090003), "SCRATCH", "SCRATCH_LOAD_DWORD",
     {"vdst": 2, "addr": 3, "sve": 1, "saddr": 9, "offset": 8}, "scratch_load_dword v2, v3, s9 offset:8"),
    ((0xDC505FFC, 0x02090000), "SCRATCH", "SCRATCH_LOAD_DWORD", {"vdst": 2, "saddr": 9, "offset": -4},
     "scratch_load_dword v2, off, s9 offset:-4"),
    ((0xDC704004, 0x007F0100), "SCRATCH", "SCRATCH_STORE_DWORD", {"data": 1, "saddr": 0x7F, "offset": 4},
     "scratch_store_dword off, v1, off offset:4"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "format", "mnemonic", "fields", "text"), SAMPLE, ids=[row[4] for row in SAMPLE])
def test_words_equal_llvm(
    words: tuple[int, ...], format: str, mnemonic: str, fields: dict[str, object], text: str
) -> None:
    assert assemble(format, mnemonic, **fields) == words, text  # type: ignore[arg-type]


def test_a_value_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        assemble("VOP1", "V_MOV_B32", vdst=256, src0=0)
    with pytest.raises(ValueError, match="no VOP2 encoding"):
        assemble("VOP2", "V_MOV_B32", vdst=0, src0=0)


def test_formats_by_mnemonic() -> None:
    assert formats("V_CMP_LT_I64") == ("VOPC", "VOP3")
    assert formats("V_ADDC_CO_U32") == ("VOP2", "VOP3SD")
    assert formats("S_MOVK_I32") == ("SOPK",)
