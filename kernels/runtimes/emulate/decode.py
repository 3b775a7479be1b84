"""Machine code to :class:`Instruction` records, by the decoder in tinygrad 0.14.0 with its traps mended here.

The decoder (``tinygrad.renderer.amd``) is generated from AMD's machine-readable ISA; one table serves CDNA3 and CDNA4.
Mended: the literal that follows 32-bit encodings is read whether or not the class has one; DPP and SDWA are told by the
class; the scalar destination of V_READFIRSTLANE and V_READLANE is an SGPR number, not a VGPR; immediate offsets are
signed; and what lies beyond the table (SDWA compares with modifiers) is refused, not misread.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinygrad.renderer.amd import decode_inst
from tinygrad.renderer.amd.dsl import FixedBitField

from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid

LITERAL = 255
"""Source number that says: the 32 bits after the instruction (CDNA3 ISA, "Scalar ALU operands")."""

_TAKES_LITERAL = ("SOP1", "SOP2", "SOPC", "VOP1", "VOP2", "VOPC")
_LITERAL_BY_NAME = ("FMAMK", "FMAAK", "MADMK", "MADAK")
_SCALAR_DESTINATION = ("V_READFIRSTLANE_B32", "V_READLANE_B32")
SCALE_HALF = 0xD3AC
"""Upper half of the first word of a scaled MFMA. The decoder's table leaves it open, so that any eight bytes before an
unscaled F8F6F4 MFMA would be taken for its scales."""
_OFFSET_BITS = {"SMEM": 21, "GLOBAL": 13, "SCRATCH": 13}
"""Widths of the two's complement offset fields. FLAT's and MUBUF's 12 bits are unsigned."""


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction."""

    mnemonic: str
    """Name in the ISA document without the encoding suffix (``_E32``, ``_E64``)."""
    format: str
    """Microcode format: SOP1 SOP2 SOPC SOPK SOPP SMEM VOP1 VOP2 VOP3 VOP3SD VOP3P MFMA VOP3PX2 VOPC DS FLAT GLOBAL
    SCRATCH MUBUF."""
    variant: str
    """``""``, ``DPP16`` or ``SDWA``."""
    address: int
    """Byte offset in ``.text``."""
    size: int
    """Bytes, literal included."""
    words: bytes = field(repr=False)
    literal: int | None = None
    fields: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Every field by the decoder's name. Operands are 9-bit source numbers (256 + n for VGPR n)."""

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"{self.__dict__.get('mnemonic')} has no field {name!r}") from None

    def get(self, name: str, default: int = 0) -> int:
        """A field that not every format has."""
        return self.fields.get(name, default)

    @property
    def text(self) -> str:
        """Disassembly, one line."""
        return disassemble(self)


@dataclass(frozen=True)
class _Shape:
    mnemonic: str
    format: str
    variant: str
    size: int
    literal: int | None
    fields: Mapping[str, int]


@functools.lru_cache(maxsize=65536)
def _shape(code: bytes) -> _Shape:
    try:
        decoded: Any = decode_inst(code, "cdna")
    except (ValueError, AssertionError) as error:
        raise CodeObjectInvalid(f"no CDNA instruction: {code[:4][::-1].hex()} ({error})") from None
    kind = type(decoded).__name__
    if kind == "VOP3PX2" and decoded.x2encoding != SCALE_HALF:
        return _shape(code[:8].ljust(16, b"\0"))
    name = decoded.op.name
    base, _, rest = kind.partition("_")
    variant = next((v for v in ("SDWA", "DPP16") if v in rest), "")
    if kind == "VOP3P_MFMA":
        base = "MFMA" if "MFMA" in name or "SMFMAC" in name else "VOP3P"
    fields: dict[str, int] = {}
    for field_name, layout in decoded._fields:
        if isinstance(layout, FixedBitField) or field_name in ("op", "literal"):
            continue
        value = getattr(decoded, field_name)
        fields[field_name] = value if isinstance(value, int) else value.offset
    if name.removesuffix("_E64").removesuffix("_E32") in _SCALAR_DESTINATION and fields["vdst"] >= 256:
        fields["vdst"] -= 256
    if base in _OFFSET_BITS:
        bits = _OFFSET_BITS[base]
        fields["offset"] -= (fields["offset"] >> (bits - 1)) << bits
    size = decoded.size()
    literal = None
    named = any(fields.get(source) == LITERAL for source in ("src0", "ssrc0", "ssrc1"))
    implied = name[2:].startswith(_LITERAL_BY_NAME) or name == "S_SETREG_IMM32_B32"
    if implied or (named and not variant and base in _TAKES_LITERAL):
        literal, size = int.from_bytes(code[4:8], "little"), 8
    suffixes = ("_E64", "_E32")
    for suffix in suffixes:
        name = name.removesuffix(suffix)
    return _Shape(name, base, variant, size, literal, fields)


def decode(code: bytes, address: int = 0) -> Instruction:
    """Decode the instruction at the start of ``code``.

    Args:
        code: at least the bytes of the instruction; up to 16 are looked at (scaled MFMA is 16 bytes long).
        address: byte offset in ``.text``, kept in the record.

    Raises:
        CodeObjectInvalid: no instruction of the CDNA table, or cut short.
    """
    head = bytes(code[:16])
    if len(head) < 4:
        raise CodeObjectInvalid(f"{len(head)} bytes at {address:#x}, an instruction has at least 4")
    shape = _shape(head.ljust(16, b"\0"))
    if shape.size > len(head):
        raise CodeObjectInvalid(f"{shape.mnemonic} at {address:#x} needs {shape.size} bytes, {len(head)} are left")
    return Instruction(
        shape.mnemonic,
        shape.format,
        shape.variant,
        address,
        shape.size,
        head[: shape.size],
        shape.literal,
        shape.fields,
    )


_NAMED = {
    102: "flat_scratch_lo", 103: "flat_scratch_hi", 104: "xnack_mask_lo", 105: "xnack_mask_hi", 106: "vcc_lo",
    107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi", 240: "0.5", 241: "-0.5", 242: "1.0", 243: "-1.0",
    244: "2.0", 245: "-2.0", 246: "4.0", 247: "-4.0", 248: "0.15915494", 251: "src_vccz", 252: "src_execz",
    253: "src_scc",
}  # fmt: skip

_OPERANDS = (
    "vdst", "sdst", "vdata", "sdata", "addr", "vaddr", "data", "data0", "data1", "saddr", "sbase", "srsrc", "soffset",
    "ssrc0", "ssrc1", "src0", "vsrc0", "vsrc1", "src1", "src2",
)  # fmt: skip


def operand_name(number: int, literal: int | None = None) -> str:
    """Name of a 9-bit source number as assemblers write it (one register, whatever the operand's width)."""
    if number == LITERAL and literal is not None:
        return f"{literal:#x}"
    if number >= 256:
        return f"v{number - 256}"
    if number in _NAMED:
        return _NAMED[number]
    if 128 <= number <= 208:
        return str(number - 128 if number <= 192 else 192 - number)
    return f"s{number}"


def disassemble(instruction: Instruction) -> str:
    """A readable line: mnemonic, operands by field, then the other non-zero fields."""
    fields = dict(instruction.fields)
    if instruction.variant in ("DPP16", "SDWA"):
        fields.pop("src0", None)
    operands = [f"{operand_name(fields.pop(f), instruction.literal)}" for f in _OPERANDS if f in fields]
    rest = [f"{name}:{value:#x}" for name, value in fields.items() if value]
    variant = f"_{instruction.variant.lower()}" if instruction.variant in ("DPP16", "SDWA") else ""
    return f"{instruction.mnemonic.lower()}{variant} {', '.join(operands)} {' '.join(rest)}".rstrip()
