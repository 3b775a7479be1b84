"""What an instruction does to the registers of one wave, from its pseudocode and the operand rules of the ISA.

Operand rules (constants, modifiers, DPP, SDWA, clamp, denormals) are written out here from the CDNA3 ISA document; the
operation itself is AMD's pseudocode.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate.instruction_forms import EXEC, LITERAL, Form
from waveproof.selftest.emulate.pcode_reference import reference, texts
from waveproof.selftest.emulate.pcode_values import Value, is_nan

VGPRS = 16
"""VGPRs of a wave of the trials."""

Words = npt.NDArray[np.uint32]

_FLOAT_CONSTANTS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0}


def constant(number: int, kind: str, literal: int) -> int | None:
    """Bits of an inline constant or literal as a source of this kind (CDNA3 ISA, operand tables); None: a register."""
    width = int(kind[1:])
    if number == LITERAL:
        if width == 64 and kind[0] == "f":
            return literal << 32
        return Value(Value(literal, 32, "I").number, width).bits if kind[0] == "i" else literal & ((1 << width) - 1)
    if 128 <= number <= 192:
        return number - 128
    if 193 <= number <= 208:
        return (192 - number) & ((1 << width) - 1)
    if number in _FLOAT_CONSTANTS:
        code, whole = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}[width]
        return int(struct.unpack(whole, struct.pack(code, _FLOAT_CONSTANTS[number]))[0])
    if number == 248:
        return {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}[width]
    return None


def dpp_source(control: int, lane: int) -> int | None:
    """The lane that a lane reads, None without one; row by row of the table "DPP_CTRL" of the CDNA3 ISA document."""
    row, column = lane & 48, lane & 15
    if control < 256:
        return lane & ~3 | control >> 2 * (lane & 3) & 3
    n = control & 15
    if 0x101 <= control <= 0x10F:
        return lane + n if column + n <= 15 else None
    if 0x111 <= control <= 0x11F:
        return lane - n if column - n >= 0 else None
    if 0x121 <= control <= 0x12F:
        return row + (column - n) % 16
    if 0x150 <= control <= 0x15F:
        return row + n
    return {
        0x130: lane + 1 if lane < 63 else None,
        0x134: (lane + 1) % 64,
        0x138: lane - 1 if lane else None,
        0x13C: (lane - 1) % 64,
        0x140: row + 15 - column,
        0x141: lane ^ 7,
        0x142: row - 1 if row else None,
        0x143: 31 if lane >= 32 else None,
    }[control]


def _signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) & 1 else bits


def sdwa_part(word: int, select: int, extend: int) -> int:
    """A byte (0-3), a half (4-5) or all (6) of a word, extended to 32 bits."""
    if select == 6:
        return word
    width, shift = (8, 8 * select) if select < 4 else (16, 16 * (select - 4))
    part = word >> shift & ((1 << width) - 1)
    return _signed(part, width) & 0xFFFFFFFF if extend else part


def sdwa_merged(value: int, old: int, select: int, unused: int) -> int:
    """``value`` in a part of the register: the rest 0, sign above and 0 below, or kept."""
    if select == 6:
        return value
    width, shift = (8, 8 * select) if select < 4 else (16, 16 * (select - 4))
    part = value & ((1 << width) - 1)
    if unused == 2:
        return old & ~(((1 << width) - 1) << shift) | part << shift
    return (_signed(part, width) if unused == 1 else part) << shift & 0xFFFFFFFF


def flushed(bits: int, width: int) -> int:
    """Denormals of a 32-bit format to zero of the same sign."""
    return bits & 0x80000000 if width == 32 and not bits & 0x7F800000 else bits


class VectorReference:
    """Predicts what a VALU form does to one wave."""

    def __init__(self, form: Form, context: Context) -> None:
        self.form, self.run, self.ieee = form, reference(form.mnemonic), Value(int(context.ieee), 1)
        self.flush = not context.float_mode & 0x30
        self.clamps = context.dx10_clamp

    def wave(self, v: Words, s: Words) -> tuple[dict[int, Words], dict[int, int]]:
        """New contents of VGPRs ([64]) and SGPRs, by number, of a wave with ``v`` [rows, 64] and ``s`` [128]."""
        form = self.form
        rows, scalars = {n: v[n].tolist() for n in range(VGPRS)}, s.tolist()
        mask = scalars[EXEC] | scalars[EXEC + 1] << 32
        carry = scalars[form.mask_in] | scalars[form.mask_in + 1] << 32
        registers = {
            "SIMM32": Value(form.literal, 32), "WAVE_MODE.IEEE": self.ieee,
            "OPSEL": Value(form.fields.get("opsel", 0), 3),
            "INST.OMOD": Value(form.fields.get("omod", 0), 2), "INST.ABS": Value(form.fields.get("abs", 0), 3),
            "INST.NEG": Value(form.fields.get("neg", 0), 3),
        }  # fmt: skip
        changed = {form.destination + at: list(rows[form.destination + at]) for at in range(self.dwords)}
        bits = 0
        for lane in range(64):
            if not mask >> lane & 1:
                continue
            sources = self.sources(rows, scalars, lane, mask)
            if sources is None:
                continue
            old = sum(changed[form.destination + at][lane] << 32 * at for at in range(self.dwords))
            registers.update({f"S{at}": value for at, value in enumerate(sources)})
            if form.mnemonic.startswith("V_FMAC") and self.flush:
                old = flushed(old, 32 * self.dwords)
            registers.update(
                D0=Value(old if self.dwords else 0, 64), D1=Value(0, 1), VCC=Value(carry, 64), EXEC=Value(mask, 64),
                laneId=Value(lane, 32),
            )  # fmt: skip
            self.run(registers)
            if self.dwords:
                raw = sum(rows[form.destination + at][lane] << 32 * at for at in range(self.dwords))
                result = self.finished(registers["D0"].bits, sources, raw)
                for at in range(self.dwords):
                    changed[form.destination + at][lane] = result >> 32 * at & 0xFFFFFFFF
            if form.mask_out >= 0:
                name = "D0" if form.mnemonic.startswith("V_CMP") else "D1" if "D1" in texts()[form.mnemonic] else "VCC"
                bit = registers[name].bits >> (0 if name == "D1" else lane) & 1
                bits |= bit << lane
        masks = [] if form.mask_out < 0 else [form.mask_out]
        if form.mnemonic.startswith("V_CMPX"):
            masks.append(EXEC)
        new = {number + at: bits >> 32 * at & 0xFFFFFFFF for number in masks for at in (0, 1)}
        return {n: np.array(row, np.uint32) for n, row in changed.items()}, new

    @property
    def dwords(self) -> int:
        return 0 if not self.form.result else max(1, int(self.form.result[1:]) // 32)

    def sources(self, rows: dict[int, list[int]], scalars: list[int], lane: int, mask: int) -> list[Value] | None:
        """S0, S1, S2 of a lane; None where DPP disables it."""
        form, values = self.form, []
        for at, (number, kind) in enumerate(zip(form.sources, form.kinds, strict=True)):
            place: int | None = lane
            if form.dpp is not None:
                if not (form.dpp.get("row_mask", 15) >> (lane >> 4) & 1):
                    return None
                if not (form.dpp.get("bank_mask", 15) >> (lane >> 2 & 3) & 1):
                    return None
                if at == 0:
                    place = dpp_source(form.dpp["ctrl"], lane)
                    if place is not None and not mask >> place & 1:
                        place = None
                    if place is None and not form.dpp.get("bound_ctrl"):
                        return None
            bits = 0 if place is None else self.bits(number, kind, rows, scalars, place)
            values.append(self.modified(bits, at, kind))
        return values

    def bits(self, number: int, kind: str, rows: dict[int, list[int]], scalars: list[int], lane: int) -> int:
        width = int(kind[1:])
        fixed = constant(number, "b32" if kind[0] == "p" else kind, self.form.literal)
        if fixed is not None:
            return fixed
        count = 2 if width == 64 else 1
        if number >= 256:
            return sum(rows[number - 256 + at][lane] << 32 * at for at in range(count))
        return sum(scalars[number + at] << 32 * at for at in range(count))

    def modified(self, bits: int, at: int, kind: str) -> Value:
        form, width = self.form, int(kind[1:])
        if kind[0] == "p":
            return self.packed(bits, at)
        if form.sdwa is not None:
            bits = sdwa_part(bits, form.sdwa.get(f"src{at}_sel", 6), form.sdwa.get(f"src{at}_sext", 0))
        word = form.sdwa or form.dpp
        fields = {} if form.mnemonic.startswith("V_BITOP3") else form.fields
        absolute = word.get(f"src{at}_abs", 0) if word else fields.get("abs", 0) >> at & 1
        opposite = word.get(f"src{at}_neg", 0) if word else fields.get("neg", 0) >> at & 1
        value = Value(bits, width, "F" if kind[0] == "f" else "B")
        if absolute:
            value = Value(value.bits & ~(1 << (width - 1)), width, value.kind)
        if opposite:
            value = Value(value.bits ^ 1 << (width - 1), width, value.kind)
        if kind == "f32" and self.flush:
            value = Value(flushed(value.bits, 32), 32, "F")
        return value

    def packed(self, bits: int, at: int) -> Value:
        """Both halves of a packed source after OP_SEL, OP_SEL_HI, NEG, NEG_HI (V_PK_MOV selects by itself)."""
        if self.form.mnemonic == "V_PK_MOV_B32":
            return Value(bits, 64)
        fields, parts = self.form.fields, []
        half = int(self.form.kinds[at][1:]) // 2
        mask, floats = (1 << half) - 1, self.form.mnemonic.partition("_F")[2] != ""
        high = fields.get("opsel_hi", 0) | fields.get("opsel_hi2", 0) << 2
        for select, signs in ((fields.get("opsel", 0), "neg"), (high, "neg_hi")):
            part = bits >> half * (select >> at & 1) & mask
            if fields.get(signs, 0) >> at & 1:
                part ^= 1 << (half - 1)
            parts.append(flushed(part, half) if self.flush and floats else part)
        return Value(parts[0] | parts[1] << half, 2 * half)

    def finished(self, bits: int, sources: list[Value], old: int) -> int:
        """Clamp, denormal flush and SDWA destination."""
        form, kind = self.form, self.form.result
        width = int(kind[1:])
        bits &= (1 << width) - 1
        if form.fields.get("clamp") and kind[0] in "ui":
            a, b = (Value(x.bits, 32, kind[0].upper()).number for x in sources[:2])
            wide = a + b if "ADD" in form.mnemonic else a - b
            low, high = (0, 0xFFFFFFFF) if kind[0] == "u" else (-0x80000000, 0x7FFFFFFF)
            bits = min(max(wide, low), high) & 0xFFFFFFFF
        if kind[0] == "f" or (kind[0] == "p" and "_F" in form.mnemonic):
            size = width // 2 if kind[0] == "p" else width
            parts = [bits >> size * at & ((1 << size) - 1) for at in range(width // size)]
            if self.flush:
                parts = [flushed(part, size) for part in parts]
            if form.fields.get("clamp"):
                parts = [self.clamped(part, size) for part in parts]
            bits = sum(part << size * at for at, part in enumerate(parts))
        if form.sdwa is not None:
            bits = sdwa_merged(bits, old, form.sdwa.get("dst_sel", 6), form.sdwa.get("dst_unused", 0))
        return bits

    def clamped(self, bits: int, width: int) -> int:
        if is_nan(Value(bits, width, "F")):
            return 0 if self.clamps else bits
        one = {16: 0x3C00, 32: 0x3F800000, 64: 0x3FF0000000000000}[width]
        return 0 if bits >> (width - 1) else min(bits, one)


class ScalarReference:
    """Predicts what a SALU form does to one wave."""

    def __init__(self, form: Form, context: Context) -> None:
        self.form, self.run = form, reference(form.mnemonic)

    def wave(self, s: Words, scc: bool) -> tuple[dict[int, int], bool]:
        """New contents of SGPRs by number, and SCC, of a wave with ``s`` [128]."""
        form, scalars = self.form, s.tolist()
        dwords = 0 if not form.result else int(form.result[1:]) // 32
        old = sum(scalars[form.destination + at] << 32 * at for at in range(dwords))
        registers = {
            "SCC": Value(scc, 1),
            "D0": Value(old, 64),
            "EXEC": Value(scalars[EXEC] | scalars[EXEC + 1] << 32, 64),
        }
        if form.format == "SOPK":
            simm = Value(form.sources[0], 16)
            compares = form.mnemonic.startswith("S_CMPK")
            registers.update(S0=Value(old, 32) if compares else simm, S1=simm)
        else:
            for at, (number, kind) in enumerate(zip(form.sources, form.kinds, strict=True)):
                if int(kind[1:]) < 32:
                    kind = "b32"  # The scalar unit reads whole registers; the pseudocode takes what it wants.
                bits = constant(number, kind, form.literal)
                if bits is None:
                    bits = sum(scalars[number + d] << 32 * d for d in range(int(kind[1:]) // 32))
                registers[f"S{at}"] = Value(bits, int(kind[1:]))
        before = registers["EXEC"]
        self.run(registers)
        new = {form.destination + at: registers["D0"].bits >> 32 * at & 0xFFFFFFFF for at in range(dwords)}
        if form.mnemonic.startswith("S_CMPK"):
            new = {}
        if registers["EXEC"] is not before:
            # EXEC is what the instruction computes; a destination of EXEC itself gets the old EXEC afterwards.
            written = {EXEC: registers["EXEC"].bits & 0xFFFFFFFF, EXEC + 1: registers["EXEC"].bits >> 32}
            new = {**written, **new} if form.destination != EXEC else written
        return new, bool(registers["SCC"])
