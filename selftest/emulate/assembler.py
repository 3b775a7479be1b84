"""A table-driven assembler for the instruction tests: fields to words.

The bit positions are those of the CDNA3 ISA document, chapter "Microcode formats", typed in here and not taken from the
decoder under test; :mod:`.test_assembler` holds a sample of them against the output of LLVM's assembler. Opcode numbers
are tinygrad's.
"""

from __future__ import annotations

import functools
from enum import Enum

from tinygrad.runtime.autogen.amd.cdna import enum as opcodes

_SDWA_MARK, _DPP_MARK, LITERAL = 0xF9, 0xFA, 0xFF

_SOURCES = {"src0": (32, 9), "src1": (41, 9), "src2": (50, 9)}
FORMATS: dict[str, tuple[int, int, dict[str, tuple[int, int]]]] = {
    "SOP2": (32, 0b10 << 30, {"op": (23, 7), "sdst": (16, 7), "ssrc1": (8, 8), "ssrc0": (0, 8)}),
    "SOPK": (32, 0b1011 << 28, {"op": (23, 5), "sdst": (16, 7), "simm16": (0, 16)}),
    "SOP1": (32, 0b101111101 << 23, {"sdst": (16, 7), "op": (8, 8), "ssrc0": (0, 8)}),
    "SOPC": (32, 0b101111110 << 23, {"op": (16, 7), "ssrc1": (8, 8), "ssrc0": (0, 8)}),
    "SOPP": (32, 0b101111111 << 23, {"op": (16, 7), "simm16": (0, 16)}),
    "SMEM": (64, 0b110000 << 26, {
        "op": (18, 8), "imm": (17, 1), "glc": (16, 1), "soffset_en": (14, 1), "sdata": (6, 7), "sbase": (0, 6),
        "offset": (32, 21), "soffset": (57, 7),
    }),
    "VOP2": (32, 0, {"op": (25, 6), "vdst": (17, 8), "vsrc1": (9, 8), "src0": (0, 9)}),
    "VOP1": (32, 0b0111111 << 25, {"vdst": (17, 8), "op": (9, 8), "src0": (0, 9)}),
    "VOPC": (32, 0b0111110 << 25, {"op": (17, 8), "vsrc1": (9, 8), "src0": (0, 9)}),
    "VOP3": (64, 0b110100 << 26, {
        "op": (16, 10), "clamp": (15, 1), "opsel": (11, 4), "abs": (8, 3), "vdst": (0, 8), "omod": (59, 2),
        "neg": (61, 3), **_SOURCES,
    }),
    "VOP3SD": (64, 0b110100 << 26, {
        "op": (16, 10), "clamp": (15, 1), "sdst": (8, 7), "vdst": (0, 8), "omod": (59, 2), "neg": (61, 3), **_SOURCES,
    }),
    "VOP3P": (64, 0b110100111 << 23, {
        "op": (16, 7), "clamp": (15, 1), "opsel_hi2": (14, 1), "opsel": (11, 3), "neg_hi": (8, 3), "vdst": (0, 8),
        "opsel_hi": (59, 2), "neg": (61, 3), **_SOURCES,
    }),
    "GLOBAL": (64, 0b110111 << 26 | 2 << 14, {
        "op": (18, 7), "sc1": (25, 1), "nt": (17, 1), "sc0": (16, 1), "offset": (0, 13), "addr": (32, 8),
        "data": (40, 8), "saddr": (48, 7), "acc": (55, 1), "vdst": (56, 8),
    }),
    "SCRATCH": (64, 0b110111 << 26 | 1 << 14, {
        "op": (18, 7), "sc1": (25, 1), "nt": (17, 1), "sc0": (16, 1), "sve": (13, 1), "offset": (0, 13),
        "addr": (32, 8), "data": (40, 8), "saddr": (48, 7), "acc": (55, 1), "vdst": (56, 8),
    }),
    "MUBUF": (64, 0b111000 << 26, {
        "op": (18, 7), "lds": (16, 1), "sc0": (14, 1), "idxen": (13, 1), "offen": (12, 1), "offset": (0, 12),
        "vaddr": (32, 8), "vdata": (40, 8), "srsrc": (48, 5), "acc": (55, 1), "soffset": (56, 8),
    }),
}  # fmt: skip
"""Bits of the instruction, fixed bits, and low bit and width of each field."""

DPP = {
    "vsrc0": (0, 8), "ctrl": (8, 9), "bound_ctrl": (19, 1), "src0_neg": (20, 1), "src0_abs": (21, 1),
    "src1_neg": (22, 1), "src1_abs": (23, 1), "bank_mask": (24, 4), "row_mask": (28, 4),
}  # fmt: skip
SDWA = {
    "vsrc0": (0, 8), "dst_sel": (8, 3), "dst_unused": (11, 2), "clamp": (13, 1), "omod": (14, 2), "src0_sel": (16, 3),
    "src0_sext": (19, 1), "src0_neg": (20, 1), "src0_abs": (21, 1), "s0": (23, 1), "src1_sel": (24, 3),
    "src1_sext": (27, 1), "src1_neg": (28, 1), "src1_abs": (29, 1), "s1": (31, 1),
}  # fmt: skip


@functools.cache
def opcode(format: str, mnemonic: str) -> int | None:
    """The opcode of a mnemonic (without encoding suffix) in a format, None if that format has none."""
    table: type[Enum] = getattr(opcodes, f"{format}Op")
    for suffix in ("_E64", "", "_E32") if format.startswith("VOP3") else ("_E32", ""):
        member = table.__members__.get(mnemonic + suffix)
        if member is not None:
            return int(member.value)
    return None


@functools.cache
def formats(mnemonic: str) -> tuple[str, ...]:
    """The formats that have the mnemonic."""
    return tuple(format for format in FORMATS if opcode(format, mnemonic) is not None)


def _packed(fields: dict[str, int], places: dict[str, tuple[int, int]], what: str) -> int:
    word = 0
    for name, value in fields.items():
        low, width = places[name]
        if not -(1 << (width - 1)) <= value < 1 << width:
            raise ValueError(f"{what}: {name} = {value} does not fit {width} bits")
        word |= (value & ((1 << width) - 1)) << low
    return word


def assemble(
    format: str,
    mnemonic: str,
    *,
    literal: int | None = None,
    dpp: dict[str, int] | None = None,
    sdwa: dict[str, int] | None = None,
    **fields: int,
) -> tuple[int, ...]:
    """Words of one instruction.

    Args:
        format: a key of :data:`FORMATS`.
        mnemonic: without encoding suffix.
        literal: the word after it.
        dpp: fields of the DPP word; src0 then says so.
        sdwa: fields of the SDWA word.
        fields: field values; sources are 9-bit numbers (256 + n for VGPR n), ``vdst`` and ``vsrc1`` register numbers.

    Raises:
        ValueError: the format has no such mnemonic, or a value does not fit its field.
    """
    bits, fixed, places = FORMATS[format]
    op = opcode(format, mnemonic)
    if op is None:
        raise ValueError(f"{mnemonic} has no {format} encoding")
    if dpp is not None:
        fields["src0"] = _DPP_MARK
    if sdwa is not None:
        fields["src0"] = _SDWA_MARK
    word = fixed | _packed({"op": op, **fields}, places, f"{mnemonic} {format}")
    words = [word >> shift & 0xFFFFFFFF for shift in range(0, bits, 32)]
    if dpp is not None:
        words.append(_packed({"row_mask": 15, "bank_mask": 15, **dpp}, DPP, f"{mnemonic} DPP"))
    if sdwa is not None:
        words.append(_packed({"dst_sel": 6, "src0_sel": 6, "src1_sel": 6, **sdwa}, SDWA, f"{mnemonic} SDWA"))
    if literal is not None:
        words.append(literal & 0xFFFFFFFF)
    return tuple(words)
