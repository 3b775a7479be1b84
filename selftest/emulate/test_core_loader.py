"""The loader reads descriptors as LLVM lays them out, and refuses what it cannot run; the decoder's traps mended."""

from __future__ import annotations

import struct

import pytest

from waveproof.kernels.runtimes.emulate.decode import decode
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid
from waveproof.kernels.runtimes.emulate.loader import load
from waveproof.selftest.emulate.single_step import instructions
from waveproof.selftest.emulate.tiny_code_object import TEXT, code_object, code_object_bytes

END = 0xBF810000


def test_descriptor_fields() -> None:
    code = code_object(
        [END],
        "gfx942",
        vgprs=64,
        accum_offset=24,
        lds_bytes=12345,
        kernarg_bytes=96,
        float_mode=0xC0,
        user_sgprs=16,
        workgroup_ids=0b101,
        preload_length=14,
        preload_offset=3,
        private_bytes=48,
    )
    kernel = code.kernel()
    assert code.arch == "gfx942"
    assert (kernel.name, kernel.entry) == ("kernel", TEXT)
    assert (kernel.total_vgprs, kernel.accum_offset) == (64, 24)
    assert (kernel.group_segment_bytes, kernel.kernarg_bytes, kernel.private_segment_bytes) == (12345, 96, 48)
    assert (kernel.float_mode, kernel.ieee, kernel.dx10_clamp) == (0xC0, True, True)
    assert (kernel.user_sgprs, kernel.workgroup_id_enabled) == (16, (True, False, True))
    assert (kernel.preload_length, kernel.preload_offset) == (14, 3)


def test_image_keeps_relative_addresses() -> None:
    code = code_object([0xBF800000, END], entry=TEXT + 4)
    assert code.image[TEXT : TEXT + 8] == struct.pack("<II", 0xBF800000, END)
    assert code.kernel().entry == TEXT + 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b"MZ" + b[2:], "no 64-bit ELF"),
        (lambda b: b[:18] + struct.pack("<H", 62) + b[20:], "ELF machine 62"),
        (lambda b: b[:48] + struct.pack("<I", 0x41) + b[52:], "EF_AMDGPU_MACH 0x41"),
        (lambda b: b.replace(b"kernel.kd", b"kernel.xx"), "no kernel descriptor"),
        (lambda b: b.replace(b".text", b".tixt"), "no section .text"),
    ],
)
def test_what_is_no_code_object_is_refused(change: object, says: str) -> None:
    good = code_object_bytes([END])
    assert load(good).kernels
    with pytest.raises(CodeObjectInvalid, match=says):
        load(change(good))  # type: ignore[operator]


def test_wave32_is_refused() -> None:
    with pytest.raises(CodeObjectInvalid, match="wave32"):
        code_object([END], properties=1 << 10 | 1 << 3)


def test_unknown_kernel_name() -> None:
    with pytest.raises(CodeObjectInvalid, match=r"kernel 'other' .*\['kernel'\]"):
        code_object([END]).kernel("other")


@pytest.mark.parametrize(
    ("words", "mnemonic", "form", "variant", "size", "fields"),
    [
        # v_add_u32_e32 v1, 0x12345678, v2
        ((0x680204FF, 0x12345678), "V_ADD_U32", "VOP2", "", 8, {"src0": 255, "vsrc1": 258, "vdst": 257}),
        # v_madak_f32 v1, v2, v3, 0x40400000: a literal without source number 255
        ((0x30020702, 0x40400000), "V_FMAAK_F32", "VOP2", "", 8, {"vdst": 257}),
        # v_add_f32_dpp v2, v2, v2 row_shr:8
        ((0x020404FA, 0xFF091802), "V_ADD_F32", "VOP2", "DPP16", 8, {"vsrc0": 258, "dpp": 0x118, "bc": 1}),
        # v_and_b32_sdwa v1, v2, v3 src0_sel:WORD_1
        ((0x260206F9, 0x06050602), "V_AND_B32", "VOP2", "SDWA", 8, {"src0_sel": 5, "src1_sel": 6}),
        # v_readfirstlane_b32 s7, v3 and v_readlane_b32 vcc_lo, v3, 5: the destination is scalar
        ((0x7E0E0503,), "V_READFIRSTLANE_B32", "VOP1", "", 4, {"vdst": 7}),
        ((0xD289006A, 0x00010B03), "V_READLANE_B32", "VOP3", "", 8, {"vdst": 106}),
        # global_load_dword v1, v[2:3], off offset:-16 and s_load_dword s4, s[2:3], -0x10: signed offsets
        ((0xDC509FF0, 0x017F0002), "GLOBAL_LOAD_DWORD", "GLOBAL", "", 8, {"offset": -16, "saddr": 127}),
        ((0xC0020101, 0x001FFFF0), "S_LOAD_DWORD", "SMEM", "", 8, {"offset": -16, "sbase": 2, "sdata": 4}),
        # v_fma_f32 v1, -v2, |v3|, s4
        ((0xD1CB0201, 0x20120702), "V_FMA_F32", "VOP3", "", 8, {"neg": 1, "abs": 2, "src2": 4}),
        # s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3
        ((0xBA000901, 0x00000003), "S_SETREG_IMM32_B32", "SOPK", "", 8, {"simm16": 0x0901}),
        # buffer_load_dwordx4 v[4:7], v1, s[8:11], s5 offen offset:4095: an unsigned offset
        ((0xE05C1FFF, 0x05020401), "BUFFER_LOAD_DWORDX4", "MUBUF", "", 8, {"offset": 4095, "srsrc": 8, "soffset": 5}),
    ],
)
def test_decoder_traps(
    words: tuple[int, ...], mnemonic: str, form: str, variant: str, size: int, fields: dict[str, int]
) -> None:
    (found,) = instructions(words)
    assert (found.mnemonic, found.format, found.variant, found.size) == (mnemonic, form, variant, size)
    assert {name: found.get(name) for name in fields} == fields
    assert found.literal == (words[1] if words[0] in (0x680204FF, 0x30020702, 0xBA000901) else None)
    assert mnemonic.lower() in found.text


def test_undecodable_and_cut_short() -> None:
    with pytest.raises(CodeObjectInvalid, match="no CDNA instruction: ffffffff"):
        decode(b"\xff" * 16)
    with pytest.raises(CodeObjectInvalid, match="needs 8 bytes, 4 are left"):
        decode(struct.pack("<I", 0x680204FF))
