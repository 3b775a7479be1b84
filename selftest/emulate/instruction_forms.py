"""The encodings in which an instruction is tried: operand kinds, overlaps, modifiers, DPP and SDWA.

A :class:`Form` is one encoding with the numbers of its operands: the reference finds them without the decoder.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tinygrad.runtime.autogen.amd.cdna import enum as opcodes
from tinygrad.runtime.autogen.amd.cdna.operands import OPERANDS

from waveproof.selftest.emulate.assembler import assemble, formats, opcode
from waveproof.selftest.emulate.pcode_reference import texts

T = TypeVar("T")
VCC, M0, EXEC, LITERAL = 106, 124, 126, 255


@dataclass(frozen=True)
class Form:
    """One encoding of one instruction."""

    mnemonic: str
    label: str
    format: str
    words: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    """9-bit source numbers, in the order of the pseudocode's S0, S1, S2."""
    kinds: tuple[str, ...] = ()
    """Kind of each source: a letter (u i f b m) and the width."""
    destination: int = -1
    """VGPR or SGPR number; -1 without."""
    result: str = ""
    """Kind of the destination, empty without."""
    mask_in: int = VCC
    mask_out: int = -1
    """Scalar pair that takes a lane mask, -1 without."""
    literal: int = 0
    fields: dict[str, int] = field(default_factory=dict, hash=False)
    """Modifier fields by the assembler's names."""
    dpp: dict[str, int] | None = field(default=None, hash=False)
    sdwa: dict[str, int] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Shape:
    """Operands of a mnemonic in a format, from AMD's machine-readable ISA (as tinygrad carries it)."""

    sources: tuple[tuple[str, str], ...]
    """Field and kind."""
    result: str


@functools.cache
def shape(format: str, mnemonic: str) -> Shape:
    """Operand kinds of a mnemonic in one format."""
    member: Any = getattr(opcodes, f"{format}Op")(opcode(format, mnemonic))
    table = OPERANDS[member]

    def kind(name: str) -> str:
        text = table[name][0].name.removeprefix("FMT_NUM_")
        width = table[name][1]
        if text.startswith("PK"):
            return f"p{width}" if format == "VOP3P" else f"b{width}"
        # 24-bit operands are registers of which the pseudocode takes 24 bits.
        return f"{text[0].lower()}{32 if width == 24 else width}"

    order = ("src0", "vsrc1", "src1", "src2", "ssrc0", "ssrc1", "simm16")
    sources = tuple((name, kind(name)) for name in order if name in table)
    result = next((kind(name) for name in ("vdst", "sdst") if name in table and format != "VOPC"), "")
    return Shape(sources, result)


def _named(number: int) -> str:
    return f"v{number - 256}" if number >= 256 else f"#{number}"


def _vector(format: str, mnemonic: str, label: str, sources: tuple[int, ...], vdst: int, **extra: Any) -> Form:
    """Assemble a vector form. ``extra``: literal, dpp, sdwa, mask_in, sdst and modifier fields."""
    what = shape(format, mnemonic)
    text = texts()[mnemonic]
    literal, dpp, sdwa = extra.pop("literal", None), extra.pop("dpp", None), extra.pop("sdwa", None)
    mask_in, sdst = extra.pop("mask_in", 30), extra.pop("sdst", 40)
    fields: dict[str, int] = dict(extra)
    numbers = list(sources)
    kinds = [kind for _, kind in what.sources]
    for (name, kind), number in zip(what.sources, numbers, strict=False):
        if kind == "m64":
            number = mask_in
        fields[name] = number - 256 if name == "vsrc1" else number
    compare = mnemonic.startswith("V_CMP")
    writes_mask = compare or "D1" in text or "VCC.u64[laneId] =" in text
    mask_out = -1
    if writes_mask:
        mask_out = sdst if format in ("VOP3", "VOP3SD") else VCC
    if format == "VOP3SD":
        fields["sdst"] = sdst
    if format != "VOPC":
        fields["vdst"] = sdst if compare else vdst
    if dpp is not None or sdwa is not None:
        word = dict(dpp if dpp is not None else sdwa or {})
        first = fields.pop("src0")
        word["vsrc0"] = first - 256 if first >= 256 else first
        if sdwa is not None:
            word["s0"] = int(first < 256)
        dpp, sdwa = (word, None) if dpp is not None else (None, word)
    modifiers = {k: v for k, v in extra.items() if k in ("neg", "abs", "clamp", "omod", "opsel", "opsel_hi", "neg_hi",
                                                         "opsel_hi2")}  # fmt: skip
    words = assemble(format, mnemonic, literal=literal, dpp=dpp, sdwa=sdwa, **fields)
    has_src2_mask = "m64" in kinds
    keep = [at for at, kind in enumerate(kinds) if kind != "m64"]
    return Form(
        mnemonic, f"{format} {label}", format, words, tuple(numbers[at] for at in keep if at < len(numbers)),
        tuple(kinds[at] for at in keep), -1 if compare else vdst, "" if compare else what.result,
        mask_in if has_src2_mask else VCC, mask_out, literal or 0, modifiers, dpp, sdwa,
    )  # fmt: skip


DPP_SAMPLE = (0x1B, 0x101, 0x10F, 0x111, 0x118, 0x121, 0x12C, 0x130, 0x134, 0x138, 0x13C, 0x140, 0x141, 0x142, 0x143)
_SDWA_SAMPLE: tuple[dict[str, int], ...] = (
    {"src0_sel": 5, "src1_sel": 1},
    {"src0_sel": 0, "src0_sext": 1, "src1_sel": 4, "src1_sext": 1},
    {"dst_sel": 2, "dst_unused": 2},
    {"dst_sel": 1, "dst_unused": 1},
    {"dst_sel": 5, "dst_unused": 0, "src0_sel": 3},
    {"dst_sel": 4, "dst_unused": 1, "src1_sel": 2, "src1_sext": 1},
)
_NO_DPP = ("FMAMK", "FMAAK", "READFIRSTLANE", "V_SWAP", "MADMK", "MADAK")


EVERY_DPP = ("V_MOV_B32", "V_ADD_F32", "V_SUB_U32", "V_MUL_U32_U24", "V_FMAC_F32", "V_CNDMASK_B32", "V_LSHLREV_B32")
"""Mnemonics that are tried with all sampled DPP and SDWA controls; each other one gets three of each."""


def _rotated(mnemonic: str, items: Sequence[T], count: int) -> tuple[T, ...]:
    """``count`` of the items, others for other mnemonics."""
    start = zlib.crc32(mnemonic.encode())
    return tuple(items[(start + at * (len(items) // count)) % len(items)] for at in range(count))


def vector_forms(mnemonic: str) -> Iterator[Form]:
    """All forms of a VALU mnemonic that computes lane by lane."""
    for format in formats(mnemonic):
        if format not in ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3SD", "VOP3P"):
            continue
        what = shape(format, mnemonic)
        count = len([kind for _, kind in what.sources if kind != "m64"])
        distinct = (258, 260, 262)[: len(what.sources)]
        literal_form = "SIMM32" in texts()[mnemonic]
        extra: dict[str, Any] = {"literal": 0x40B00000} if literal_form else {}
        if format == "VOP3P":
            yield from _packed_forms(mnemonic, count, distinct)
            continue
        yield _vector(format, mnemonic, "distinct", distinct, 10, **extra)
        yield _vector(format, mnemonic, "one source", (258,) * len(distinct), 10, **extra)
        if what.result:
            for at in range(count):
                yield _vector(format, mnemonic, f"dst=src{at}", distinct, distinct[at] - 256, **extra)
        scalar = (20, *distinct[1:])
        yield _vector(format, mnemonic, "sgpr src0", scalar, 10, **extra)
        constants = (161, 242) if literal_form else _rotated(mnemonic, (128, 161, 192, 193, 208, 240, 247, 248), 3)
        if mnemonic == "V_BITOP3_B16":  # refused with inline floats, whose low half is not settled
            constants = tuple(number for number in constants if number < 240)
        if mnemonic.startswith("V_CMP"):
            constants = constants[:1]
        for number in (*constants, VCC, EXEC):
            constant = (number, *distinct[1:])
            yield _vector(format, mnemonic, f"{_named(number)} src0", constant, 10, **extra)
        if format in ("VOP3", "VOP3SD"):
            yield from _vop3_forms(mnemonic, format, what, distinct)
        else:
            yield from _vop12_forms(mnemonic, format, what, distinct, literal_form)


def _vop12_forms(
    mnemonic: str, format: str, what: Shape, distinct: tuple[int, ...], literal_form: bool
) -> Iterator[Form]:
    widths = [int(kind[1:]) for _, kind in what.sources]
    if not literal_form:
        for literal in _rotated(mnemonic, (0x80000001, 0x3F9D70A4, 0x00012345), 1 if format == "VOPC" else 3):
            yield _vector(format, mnemonic, f"literal {literal:#x}", (LITERAL, *distinct[1:]), 10, literal=literal)
    if any(part in mnemonic for part in _NO_DPP) or 64 in widths or what.result[1:] == "64":
        return
    signed = "f" in {kind[0] for _, kind in what.sources}
    carries = "VCC.u64[laneId] =" in texts()[mnemonic]  # With DPP the emulator refuses them.
    if format != "VOPC" and not carries:
        for at, control in enumerate(DPP_SAMPLE if mnemonic in EVERY_DPP else _rotated(mnemonic, DPP_SAMPLE, 3)):
            for bound in (0, 1):
                dpp = {"ctrl": control, "bound_ctrl": bound, **({"row_mask": 0xA, "bank_mask": 0x7} if at % 3 else {})}
                vdst = 2 if at % 4 == 1 else 10
                yield _vector(format, mnemonic, f"dpp {control:#x} bc{bound}", distinct, vdst, dpp=dpp)
        if signed:
            yield _vector(
                format, mnemonic, "dpp neg abs", distinct, 10, dpp={"ctrl": 0xB1, "src0_neg": 1, "src1_abs": 1}
            )
    if format == "VOPC" or carries:
        return
    for sdwa in _SDWA_SAMPLE if mnemonic in EVERY_DPP else _rotated(mnemonic, _SDWA_SAMPLE, 3):
        if what.result[1:] == "16" or 16 in widths:
            continue
        if signed and any(name.endswith("sext") or name.startswith("dst") for name in sdwa):
            continue
        yield _vector(format, mnemonic, f"sdwa {sdwa}", distinct, 10, sdwa=sdwa)
        yield _vector(format, mnemonic, f"sdwa dst=src0 {sdwa}", distinct, 2, sdwa=sdwa)
    yield _vector(format, mnemonic, "sdwa sgpr", (21, *distinct[1:]), 10, sdwa={"src0_sel": 4})


def _vop3_forms(mnemonic: str, format: str, what: Shape, distinct: tuple[int, ...]) -> Iterator[Form]:
    kinds = [kind for _, kind in what.sources if kind != "m64"]
    if len(kinds) > 1:
        yield _vector(format, mnemonic, "sgpr src1", (258, 22, 262), 10)
        yield _vector(format, mnemonic, "constant src1", (258, 159, 262), 10)
        yield _vector(format, mnemonic, "vcc pair", distinct, 10, sdst=VCC, mask_in=VCC)
        yield _vector(format, mnemonic, "mask in place", distinct, 10, sdst=30, mask_in=30)
    if len(kinds) > 2:
        yield _vector(format, mnemonic, "sgpr src2", (258, 260, 24), 10)
        yield _vector(format, mnemonic, "constant src2", (258, 260, 195), 10)
        yield _vector(format, mnemonic, "sgpr everywhere", (20, 20, 20), 10)
    if kinds[0][0] == "f" or mnemonic == "V_CNDMASK_B32":
        for at in range(len(kinds)):
            yield _vector(format, mnemonic, f"neg {at}", distinct, 10, neg=1 << at)
            if format == "VOP3":
                yield _vector(format, mnemonic, f"abs {at}", distinct, 10, abs=1 << at)
                yield _vector(format, mnemonic, f"neg abs {at}", distinct, 10, abs=1 << at, neg=1 << at)
    if what.result[:1] == "f" and format == "VOP3":
        yield _vector(format, mnemonic, "clamp", distinct, 10, clamp=1)
    if mnemonic in SATURATING and format == "VOP3":
        yield _vector(format, mnemonic, "clamp", distinct, 10, clamp=1)
        yield _vector(format, mnemonic, "clamp in place", distinct, 2, clamp=1)
    if mnemonic.startswith("V_BITOP3"):
        for table in (0x00, 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xE8, 0x96, 0xCA, 0xFF):
            bits = {"omod": table >> 6, "abs": table >> 3 & 7, "neg": table & 7}
            yield _vector(format, mnemonic, f"table {table:#x}", distinct, 10, **bits)


SATURATING = ("V_ADD_U32", "V_SUB_U32", "V_ADD_I32", "V_SUB_I32")
"""Integer instructions whose CLAMP saturates (CDNA3 ISA, "VOP3" clamp; those that the emulator takes it for)."""


def _packed_forms(mnemonic: str, count: int, distinct: tuple[int, ...]) -> Iterator[Form]:
    plain = {"opsel_hi": 3, "opsel_hi2": 1}
    make = functools.partial(_vector, "VOP3P", mnemonic)
    yield make("distinct", distinct, 10, **plain)
    for at in range(count):
        yield make(f"dst=src{at}", distinct, distinct[at] - 256, **plain)
        yield make(f"dst=src{at}, crossed", distinct, distinct[at] - 256, opsel=7, opsel_hi=0, opsel_hi2=0)
    yield make("dst overlaps half", distinct, 3, **plain)
    yield make("sgpr src0", (20, *distinct[1:]), 10, **plain)
    yield make("sgpr src1", (258, 22, *distinct[2:]), 10, **plain)
    for at in range(count):
        yield make(f"op_sel {at}", distinct, 10, **{**plain, "opsel": 1 << at})
        if at < 2:
            yield make(f"op_sel_hi {at}", distinct, 10, opsel_hi=3 & ~(1 << at), opsel_hi2=1)
        else:
            yield make(f"op_sel_hi {at}", distinct, 10, opsel_hi=3, opsel_hi2=0)
        if "_F" in mnemonic:
            yield make(f"neg {at}", distinct, 10, **{**plain, "neg": 1 << at})
            yield make(f"neg_hi {at}", distinct, 10, **{**plain, "neg_hi": 1 << at})
    if "_F" in mnemonic:
        yield make("clamp", distinct, 10, **{**plain, "clamp": 1})


def scalar_forms(mnemonic: str) -> Iterator[Form]:
    """All forms of a SALU mnemonic that computes on scalar registers."""
    (format,) = formats(mnemonic)
    what = shape(format, mnemonic)
    wide = what.result[1:] == "64"

    def make(label: str, sources: tuple[int, ...], sdst: int, literal: int | None = None) -> Form:
        fields: dict[str, Any] = dict(zip((name for name, _ in what.sources), sources, strict=False))
        if what.result:
            fields["sdst"] = sdst
        kinds = tuple(kind for _, kind in what.sources)
        words = assemble(format, mnemonic, literal=literal, **fields)
        form = Form(mnemonic, f"{format} {label}", format, words, sources[: len(kinds)], kinds)
        return replace(form, destination=sdst if what.result else -1, result=what.result, literal=literal or 0)

    if format == "SOPK":
        for simm in (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x0021):
            yield make(f"{simm:#x}", (simm,), 12)
        yield make("m0", (0x8001,), M0)
        return
    plain = (20, 22)
    yield make("distinct", plain, 12)
    yield make("one source", (20, 20), 12)
    for sdst, label in ((20, "dst=src0"), (22, "dst=src1"), (VCC, "vcc"), (EXEC, "exec")):
        yield make(label, plain, sdst)
    if not wide:
        yield make("m0", plain, M0)
        yield make("exec_hi", plain, EXEC + 1)
    for number in (128, 129, 159, 160, 161, 191, 192, 193, 208, 240, 248, VCC, EXEC):
        yield make(f"#{number} src0", (number, 22), 12)
        yield make(f"#{number} src1", (20, number), 12)
    for literal in (0x80000001, 0x12345678, 0x001F0003, 0x00400000):
        yield make(f"literal src0 {literal:#x}", (LITERAL, 22), 12, literal)
        if len(what.sources) > 1:
            yield make(f"literal src1 {literal:#x}", (20, LITERAL), 12, literal)
