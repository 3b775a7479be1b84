"""The encodings that the floating-point, packed and atomic tests stand on, against LLVM's assembler.

Lines of assembly and their words as LLVM (the one in Triton 3.9) gives them for gfx950; beside them the format,
mnemonic and fields from which the test assembler must make these words, and which the decoder must find in them.
"""

from __future__ import annotations

from typing import Any

import pytest

from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.single_step import instructions
from waveproof.selftest.emulate.test_atomics import flat_words

ENCODINGS: list[tuple[str, str, str, dict[str, Any], tuple[int, ...]]] = [
    ("v_cvt_f16_f32_e32 v10, v2", "VOP1", "V_CVT_F16_F32", {"vdst": 10, "src0": 258}, (0x7E141502,)),
    (
        "v_cvt_f32_f16_sdwa v10, v2 dst_sel:DWORD dst_unused:UNUSED_PRESERVE src0_sel:WORD_1",
        "VOP1",
        "V_CVT_F32_F16",
        {"vdst": 10, "sdwa": {"vsrc0": 2, "src0_sel": 5, "src1_sel": 0, "dst_unused": 2}},
        (
            0x7E1416F9,
            0x00051602,
        ),
    ),
    (
        "v_cvt_pk_fp8_f32 v10, v2, v4 op_sel:[0,0,1]",
        "VOP3",
        "V_CVT_PK_FP8_F32",
        {"vdst": 10, "src0": 258, "src1": 260, "opsel": 8},
        (
            0xD2A2400A,
            0x00020902,
        ),
    ),
    (
        "v_cvt_pk_bf8_f32 v10, v2, v4",
        "VOP3",
        "V_CVT_PK_BF8_F32",
        {"vdst": 10, "src0": 258, "src1": 260},
        (
            0xD2A3000A,
            0x00020902,
        ),
    ),
    (
        "v_cvt_pk_f32_fp8_sdwa v[10:11], v2 src0_sel:WORD_1",
        "VOP1",
        "V_CVT_PK_F32_FP8",
        {"vdst": 10, "sdwa": {"vsrc0": 2, "src0_sel": 5, "src1_sel": 0}},
        (
            0x7E14ACF9,
            0x00050602,
        ),
    ),
    (
        "v_cvt_f32_bf8_sdwa v10, v2 src0_sel:BYTE_3",
        "VOP1",
        "V_CVT_F32_BF8",
        {"vdst": 10, "sdwa": {"vsrc0": 2, "src0_sel": 3, "src1_sel": 0}},
        (
            0x7E14AAF9,
            0x00030602,
        ),
    ),
    (
        "v_cvt_pkrtz_f16_f32 v10, v2, v4",
        "VOP3",
        "V_CVT_PKRTZ_F16_F32",
        {"vdst": 10, "src0": 258, "src1": 260},
        (
            0xD296000A,
            0x00020902,
        ),
    ),
    (
        "v_cvt_pk_bf16_f32 v10, v2, v4",
        "VOP3",
        "V_CVT_PK_BF16_F32",
        {"vdst": 10, "src0": 258, "src1": 260},
        (
            0xD268000A,
            0x00020902,
        ),
    ),
    (
        "v_cvt_pk_f16_f32 v10, v2, v4",
        "VOP3",
        "V_CVT_PK_F16_F32",
        {"vdst": 10, "src0": 258, "src1": 260},
        (
            0xD267000A,
            0x00020902,
        ),
    ),
    (
        "v_cvt_scalef32_pk_fp4_f32 v10, v2, v4, v6 op_sel:[0,0,1,1]",
        "VOP3",
        "V_CVT_SCALEF32_PK_FP4_F32",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "opsel": 12},
        (
            0xD23D600A,
            0x041A0902,
        ),
    ),
    (
        "v_cvt_scalef32_pk_f32_fp4 v[10:11], v2, v4 op_sel:[1,0,0]",
        "VOP3",
        "V_CVT_SCALEF32_PK_F32_FP4",
        {"vdst": 10, "src0": 258, "src1": 260, "opsel": 1},
        (
            0xD23F080A,
            0x00020902,
        ),
    ),
    (
        "v_cvt_scalef32_pk_f32_fp8 v[10:11], v2, v4 op_sel:[1,0,0]",
        "VOP3",
        "V_CVT_SCALEF32_PK_F32_FP8",
        {"vdst": 10, "src0": 258, "src1": 260, "opsel": 1},
        (
            0xD239080A,
            0x00020902,
        ),
    ),
    ("v_cvt_off_f32_i4_e32 v10, v2", "VOP1", "V_CVT_OFF_F32_I4", {"vdst": 10, "src0": 258}, (0x7E141D02,)),
    (
        "v_med3_f16 v10, v2, -v4, |v6| op_sel:[1,0,0,1]",
        "VOP3",
        "V_MED3_F16",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "neg": 2, "abs": 4, "opsel": 9},
        (
            0xD1FA4C0A,
            0x441A0902,
        ),
    ),
    (
        "v_max3_f32 v10, v2, v4, v6 clamp mul:2",
        "VOP3",
        "V_MAX3_F32",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "clamp": 1, "omod": 1},
        (
            0xD1D3800A,
            0x0C1A0902,
        ),
    ),
    (
        "v_maximum3_f32 v10, v2, v4, v6",
        "VOP3",
        "V_MAXIMUM3_F32",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262},
        (
            0xD2A9000A,
            0x041A0902,
        ),
    ),
    (
        "v_fma_f64 v[10:11], v[2:3], s[20:21], -v[6:7]",
        "VOP3",
        "V_FMA_F64",
        {"vdst": 10, "src0": 258, "src1": 20, "src2": 262, "neg": 4},
        (
            0xD1CC000A,
            0x84182902,
        ),
    ),
    (
        "v_fmac_f64_e32 v[10:11], v[2:3], v[4:5]",
        "VOP2",
        "V_FMAC_F64",
        {"vdst": 10, "src0": 258, "vsrc1": 4},
        (0x08140902,),
    ),
    (
        "v_ldexp_f32 v10, v2, v4",
        "VOP3",
        "V_LDEXP_F32",
        {"vdst": 10, "src0": 258, "src1": 260},
        (
            0xD288000A,
            0x00020902,
        ),
    ),
    (
        "v_ldexp_f64 v[10:11], v[2:3], v4",
        "VOP3",
        "V_LDEXP_F64",
        {"vdst": 10, "src0": 258, "src1": 260},
        (
            0xD284000A,
            0x00020902,
        ),
    ),
    ("v_frexp_exp_i32_f64_e32 v10, v[2:3]", "VOP1", "V_FREXP_EXP_I32_F64", {"vdst": 10, "src0": 258}, (0x7E146102,)),
    ("v_rndne_f64_e32 v[10:11], v[2:3]", "VOP1", "V_RNDNE_F64", {"vdst": 10, "src0": 258}, (0x7E143302,)),
    ("v_sin_f16_e32 v10, v2", "VOP1", "V_SIN_F16", {"vdst": 10, "src0": 258}, (0x7E149302,)),
    (
        "v_rsq_f32_e64 v10, |v2| div:2",
        "VOP3",
        "V_RSQ_F32",
        {"vdst": 10, "src0": 258, "abs": 1, "omod": 3},
        (
            0xD164010A,
            0x18000102,
        ),
    ),
    (
        "v_cmp_nlg_f64_e64 s[40:41], v[2:3], v[4:5]",
        "VOP3",
        "V_CMP_NLG_F64",
        {"vdst": 40, "src0": 258, "src1": 260},
        (
            0xD06A0028,
            0x00020902,
        ),
    ),
    ("v_cmpx_class_f16_e32 vcc, v2, v4", "VOPC", "V_CMPX_CLASS_F16", {"src0": 258, "vsrc1": 4}, (0x7C2A0902,)),
    ("v_cmp_t_u64_e32 vcc, v[2:3], v[4:5]", "VOPC", "V_CMP_T_U64", {"src0": 258, "vsrc1": 4}, (0x7DDE0902,)),
    (
        "v_pk_add_f16 v10, v2, v4 op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[0,1] neg_hi:[0,1] clamp",
        "VOP3P",
        "V_PK_ADD_F16",
        {
            "vdst": 10,
            "src0": 258,
            "src1": 260,
            "opsel": 1,
            "opsel_hi": 2,
            "opsel_hi2": 1,
            "neg": 2,
            "neg_hi": 2,
            "clamp": 1,
        },
        (
            0xD38FCA0A,
            0x50020902,
        ),
    ),
    (
        "v_pk_mad_i16 v10, v2, v4, v6 op_sel_hi:[1,1,0]",
        "VOP3P",
        "V_PK_MAD_I16",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "opsel_hi": 3},
        (
            0xD380000A,
            0x1C1A0902,
        ),
    ),
    (
        "v_pk_minimum3_f16 v10, v2, v4, v6",
        "VOP3P",
        "V_PK_MINIMUM3_F16",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "opsel_hi": 3, "opsel_hi2": 1},
        (
            0xD39B400A,
            0x1C1A0902,
        ),
    ),
    (
        "v_dot2_f32_f16 v10, v2, v4, v6",
        "VOP3P",
        "V_DOT2_F32_F16",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "opsel_hi": 3, "opsel_hi2": 1},
        (
            0xD3A3400A,
            0x1C1A0902,
        ),
    ),
    (
        "v_dot2_f32_bf16 v10, v2, v4, v6",
        "VOP3P",
        "V_DOT2_F32_BF16",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "opsel_hi": 3, "opsel_hi2": 1},
        (
            0xD39A400A,
            0x1C1A0902,
        ),
    ),
    (
        "v_dot2c_f32_bf16_e32 v10, v2, v4",
        "VOP2",
        "V_DOT2C_F32_BF16",
        {"vdst": 10, "src0": 258, "vsrc1": 4},
        (0x2C140902,),
    ),
    (
        "v_fma_mix_f32 v10, -v2, v4, |v6| op_sel:[1,0,0] op_sel_hi:[1,1,0]",
        "VOP3P",
        "V_MAD_MIX_F32",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262, "opsel": 1, "opsel_hi": 3, "neg": 1, "neg_hi": 4},
        (
            0xD3A00C0A,
            0x3C1A0902,
        ),
    ),
    (
        "v_fma_mixhi_f16 v10, v2, v4, v6",
        "VOP3P",
        "V_MAD_MIXHI_F16",
        {"vdst": 10, "src0": 258, "src1": 260, "src2": 262},
        (
            0xD3A2000A,
            0x041A0902,
        ),
    ),
    (
        "global_atomic_cmpswap_x2 v[10:11], v[2:3], v[6:9], off offset:40 sc0",
        "GLOBAL",
        "GLOBAL_ATOMIC_CMPSWAP_X2",
        {"addr": 2, "data": 6, "vdst": 10, "saddr": 127, "offset": 40, "sc0": 1},
        (
            0xDD858028,
            0x0A7F0602,
        ),
    ),
    (
        "global_atomic_pk_add_bf16 v2, v6, s[20:21]",
        "GLOBAL",
        "GLOBAL_ATOMIC_PK_ADD_BF16",
        {"addr": 2, "data": 6, "saddr": 20},
        (
            0xDD488000,
            0x00140602,
        ),
    ),
    (
        "buffer_atomic_add_f32 v6, v2, s[8:11], 0 offen sc0",
        "MUBUF",
        "BUFFER_ATOMIC_ADD_F32",
        {"vaddr": 2, "vdata": 6, "srsrc": 2, "soffset": 128, "offen": 1, "sc0": 1},
        (
            0xE1345000,
            0x80020602,
        ),
    ),
    (
        "flat_atomic_add v10, v[2:3], v6 offset:40 sc0",
        "FLAT",
        "FLAT_ATOMIC_ADD",
        {"addr": 2, "data": 6, "vdst": 10, "offset": 40, "sc0": 1},
        (
            0xDD090028,
            0x0A000602,
        ),
    ),
    (
        "flat_load_dwordx4 v[10:13], v[2:3] offset:8",
        "FLAT",
        "FLAT_LOAD_DWORDX4",
        {"addr": 2, "vdst": 10, "offset": 8},
        (
            0xDC5C0008,
            0x0A000002,
        ),
    ),
    (
        "flat_store_short v[2:3], v6",
        "FLAT",
        "FLAT_STORE_SHORT",
        {"addr": 2, "data": 6},
        (
            0xDC680000,
            0x00000602,
        ),
    ),
]


@pytest.mark.parametrize(("text", "format", "mnemonic", "fields", "words"), ENCODINGS, ids=[e[0] for e in ENCODINGS])
def test_words_are_llvms(text: str, format: str, mnemonic: str, fields: dict[str, Any], words: tuple[int, ...]) -> None:
    made = flat_words(mnemonic, **fields) if format == "FLAT" else assemble(format, mnemonic, **fields)
    assert made == words
    (instruction,) = instructions(words)
    assert instruction.mnemonic == mnemonic
    assert instruction.size == 4 * len(words)
    assert instruction.variant == ("SDWA" if "sdwa" in fields else "")
    for name in ("opsel", "opsel_hi", "neg", "abs", "omod", "sc0", "offset"):
        assert instruction.get(name) == fields.get(name, 0)
