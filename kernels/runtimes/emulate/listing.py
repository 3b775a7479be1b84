"""Disassembly for messages: register ranges as assemblers write them, and which registers an instruction reads.

Widths come from the signature under which an instruction is registered; where it has none, from its format and name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from waveproof.kernels.runtimes.emulate import registry
from waveproof.kernels.runtimes.emulate.decode import LITERAL, Instruction, operand_name
from waveproof.kernels.runtimes.emulate.registers import POISON, Group

_DWORDS = re.compile(r"(?:DWORD|FORMAT)(?:X(\d+))?$|_B(64|96|128)(?:_|$)|_(?:[UIF]64|X2)$|_(?:RTN_)?[UIF]64$")
_ORDER = (
    "vdst", "sdst", "vdata", "sdata", "addr", "vaddr", "data", "data0", "data1", "saddr", "sbase", "srsrc", "soffset",
    "ssrc0", "ssrc1", "src0", "vsrc0", "vsrc1", "src1", "src2",
)  # fmt: skip
_DESTINATIONS = ("vdst", "sdst")
_SOURCES = {"V_READLANE_B32": 2, "V_WRITELANE_B32": 2}
"""Sources of instructions that are registered without a signature, where they are not three."""
_OFF = 0x7F
"""SADDR that says: none."""
UNDECODED = ".LONG"
"""Mnemonic of the stand-in for a word at which no instruction decodes."""


@dataclass(frozen=True)
class Operand:
    """A field that names registers or a constant."""

    field: str
    number: int
    """9-bit source number of the first register: 256 + n for vN, AccVGPRs too."""
    count: int
    """Registers."""
    accumulator: bool = False

    @property
    def vector(self) -> bool:
        """Whether it is VGPRs or AccVGPRs."""
        return self.number >= 256

    def text(self, literal: int | None = None) -> str:
        """As assemblers write it."""
        if self.vector:
            return _range("a" if self.accumulator else "v", self.number - 256, self.count)
        name = operand_name(self.number, literal)
        if self.count > 1 and name == f"s{self.number}":
            return _range("s", self.number, self.count)
        if self.count > 1 and name.endswith("_lo"):
            return name.removesuffix("_lo")
        return name


def _range(letter: str, first: int, count: int) -> str:
    return f"{letter}{first}" if count == 1 else f"{letter}[{first}:{first + count - 1}]"


def operands(instruction: Instruction) -> list[Operand]:
    """All operands in the order in which they are written."""
    found = []
    for name in _ORDER:
        if name not in instruction.fields or _absent(instruction, name):
            continue
        count = _count(instruction, name)
        if count:
            found.append(Operand(name, _number(instruction, name), count, _accumulator(instruction, name)))
    return found


def _absent(instruction: Instruction, name: str) -> bool:
    """Whether the format has the field but the instruction does not use it."""
    i = instruction
    sources = len(_kinds(i))
    if name == "saddr":
        return i.saddr == _OFF
    if i.format == "SMEM" and name == "soffset":
        return not i.get("soffset_en")
    if i.format in ("VOP3", "VOP3SD") and name in ("src0", "src1", "src2"):
        return int(name[3]) >= (sources or _SOURCES.get(i.mnemonic, 3))
    if i.format == "VOP3P" and name in ("src1", "src2") and i.mnemonic.startswith("V_ACCVGPR"):
        return True
    if name in ("data", "data0", "vdata") and _is_load(i):
        return name != "vdata"
    if i.format in ("GLOBAL", "FLAT", "SCRATCH") and name == "vdst" and not _is_load(i):
        return "ATOMIC" not in i.mnemonic or not i.get("sc0")
    if i.format == "DS":
        writes = i.mnemonic.startswith("DS_WRITE")
        if name == "vdst":
            return writes or ("READ" not in i.mnemonic and "RTN" not in i.mnemonic and "PERM" not in i.mnemonic)
        if name == "data1":
            return not ("WRITE2" in i.mnemonic or "CMPST" in i.mnemonic or "WRXCHG2" in i.mnemonic)
    if i.variant in ("DPP16", "SDWA") and name == "src0":
        return "vsrc0" in i.fields
    return False


def _is_load(i: Instruction) -> bool:
    return "_LOAD_" in i.mnemonic or i.mnemonic.startswith("DS_READ")


def _kinds(i: Instruction) -> list[str]:
    operation = registry.lookup(i.mnemonic, "gfx950") or registry.lookup(i.mnemonic, "gfx942")
    if operation is None:
        return []
    return [kind for kind in operation.sources if not kind.startswith(("old:", "k:", "mask:")) and
            kind not in ("scc", "exec") and (kind != "mask" or i.format in ("VOP3", "VOP3SD"))]  # fmt: skip


def _results(i: Instruction) -> tuple[str, ...]:
    operation = registry.lookup(i.mnemonic, "gfx950") or registry.lookup(i.mnemonic, "gfx942")
    return () if operation is None else operation.results


def _kind_registers(kind: str) -> int:
    return 2 if kind.startswith("mask") or kind.endswith("64") else 1


def _number(i: Instruction, name: str) -> int:
    number = i.fields[name]
    if i.variant == "SDWA" and name in ("vsrc0", "vsrc1"):
        return number - (256 if i.get("s0" if name == "vsrc0" else "s1") else 0)
    return number


def _accumulator(i: Instruction, name: str) -> bool:
    if i.mnemonic.startswith("V_ACCVGPR"):
        return name == "vdst" if "WRITE" in i.mnemonic else name == "src0" or "MOV" in i.mnemonic
    if i.format in ("MFMA", "VOP3PX2"):
        if name in ("src0", "src1"):
            return bool(i.get("acc") >> int(name[3]) & 1)
        return bool(i.get("acc_cd"))
    return bool(i.get("acc")) and name in ("vdst", "vdata", "data", "data0", "data1")


def _count(i: Instruction, name: str) -> int:
    if i.format in ("MFMA", "VOP3PX2"):
        return _matrix_count(i, name)
    if i.format.startswith("SOP"):
        return _scalar_count(i, name)
    if name in ("vdst", "vdata", "sdata", "data", "data0", "data1"):
        if i.format == "SMEM":
            return _memory_count(i, name)
        if i.format.startswith("VOP"):
            if _number(i, name) < 256:
                return 1 if "LANE" in i.mnemonic else 2
            kinds = [kind for kind in _results(i) if not kind.startswith("mask")]
            packed = i.mnemonic.startswith("V_PK_") and i.mnemonic.endswith(("F32", "V_PK_MOV_B32"))
            return 2 if packed or i.mnemonic.startswith("V_CVT_PK_F32_") else _kind_registers(kinds[0]) if kinds else 1
        return _memory_count(i, name)
    if name == "addr" and i.format in ("GLOBAL", "FLAT"):
        return 2 if i.format == "FLAT" or i.saddr == _OFF else 1
    if name == "vaddr":
        return i.get("offen") + i.get("idxen")
    if name == "saddr":
        return 1 if i.format == "SCRATCH" else 2
    if name == "sbase":
        return 4 if "BUFFER" in i.mnemonic else 2
    if name == "srsrc":
        return 4
    if name == "sdst":
        return 1 if "LANE" in i.mnemonic else 2
    if name in ("src0", "vsrc0", "src1", "vsrc1", "src2"):
        if i.mnemonic.startswith("V_PK_") and i.mnemonic.endswith(("F32", "V_PK_MOV_B32")):
            return 2
        at = int(name[-1])
        kinds = _kinds(i)
        return _kind_registers(kinds[at]) if at < len(kinds) else 1
    return 1


def _scalar_count(i: Instruction, name: str) -> int:
    kinds = _kinds(i)
    if name == "sdst":
        results = [kind for kind in _results(i) if kind not in ("scc", "exec")]
        return _kind_registers(results[0]) if results else (2 if i.mnemonic.endswith("64") else 1)
    at = int(name[-1]) if name.startswith("ssrc") else 0
    return _kind_registers(kinds[at]) if at < len(kinds) else (2 if i.mnemonic.endswith("64") else 1)


def _memory_count(i: Instruction, name: str) -> int:
    found = _DWORDS.search(i.mnemonic)
    count = 1
    if found is not None:
        bits = found.group(2)
        plain = found.group(0).startswith(("DWORD", "FORMAT"))
        count = int(bits) // 32 if bits else int(found.group(1) or 1) if plain else 2
    twice = ("READ2" in i.mnemonic and name == "vdst") or ("ATOMIC_CMPSWAP" in i.mnemonic and name != "vdst")
    return count * (2 if twice else 1)


def _matrix_count(i: Instruction, name: str) -> int:
    from waveproof.kernels.runtimes.emulate.isa import mfma

    form = mfma.FORMS.get(i.mnemonic)
    if name in ("vdst", "src2"):
        size = re.search(r"_(\d+)X\1X", i.mnemonic)
        return 1 if size is None else int(size.group(1)) ** 2 // 64
    if form is None:
        selector = {"src0": i.get("cbsz"), "src1": i.get("blgp")}.get(name)
        mixed = selector is not None and selector < len(mfma.MIXED_TYPES) and "F8F6F4" in i.mnemonic
        return {"fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}[mfma.MIXED_TYPES[selector or 0]] if mixed else 1
    bits = {"f32": 32, "f16": 16, "bf16": 16}.get(form.a, 8)
    rows, depth = form.shape.rows, form.shape.depth
    return max(1, rows * depth // 64 * bits // 32)


def reads(instruction: Instruction) -> list[Operand]:
    """Registers that an instruction reads: its source operands, and its destination where that is also a source."""
    store = "STORE" in instruction.mnemonic or "ATOMIC" in instruction.mnemonic
    found = []
    for one in operands(instruction):
        if one.field in _DESTINATIONS or one.field == "sdata":
            continue
        if one.field == "vdata" and not store:
            continue
        if 128 <= one.number < 256:
            continue
        found.append(one)
    operation = registry.lookup(instruction.mnemonic, "gfx950")
    if operation is not None and any(kind.startswith("old:") for kind in operation.sources):
        found += [one for one in operands(instruction) if one.field in _DESTINATIONS]
    return found


_UNSHOWN = {*_ORDER, "soffset_en", "imm", "acc", "acc_cd", "s0", "s1"}
_FLAGS = ("offen", "idxen", "lds", "gds", "sc0", "sc1", "nt", "clmp", "bc")


def _modifier(name: str, value: int) -> str:
    if name in _FLAGS:
        return name
    return f"{name}:{value}" if abs(value) < 10 or "offset" in name else f"{name}:{value:#x}"


def _waits(simm16: int) -> str:
    """The counters that S_WAITCNT waits for (LLVM, ``decodeWaitcnt`` for GFX9)."""
    counters = {
        "vmcnt": (simm16 & 15 | simm16 >> 10 & 0x30, 63),
        "expcnt": (simm16 >> 4 & 7, 7),
        "lgkmcnt": (simm16 >> 8 & 15, 15),
    }
    return " ".join(f"{name}({value})" for name, (value, most) in counters.items() if value != most)


def line(instruction: Instruction) -> str:
    """One line of disassembly: mnemonic, operands with their ranges, then the other non-zero fields."""
    i = instruction
    if i.mnemonic == UNDECODED:
        return f".long 0x{i.words[::-1].hex()}" if i.words else "(no code here)"
    shown = operands(i)
    if i.mnemonic == "S_WAITCNT":
        return f"s_waitcnt {_waits(i.simm16)}".rstrip()
    texts = [one.text(i.literal) for one in shown]
    if i.format == "VOPC" and i.variant != "SDWA":
        texts.insert(0, "vcc")
    if i.format == "GLOBAL" and i.saddr == _OFF:
        texts.append("off")
    if i.format.startswith("SOPP") and i.mnemonic.startswith(("S_BRANCH", "S_CBRANCH")):
        jump = i.simm16 - ((i.simm16 & 0x8000) << 1)
        return f"{i.mnemonic.lower()} .text+{i.address + 4 + 4 * jump:#x}"
    fields = {name: value for name, value in i.fields.items() if value and name not in _UNSHOWN}
    if i.format == "SMEM" and not i.imm and not i.soffset_en and "offset" in fields:
        texts.append(operand_name(fields.pop("offset")))
    implied = i.literal is not None and all(one.number != LITERAL for one in shown)
    if implied:
        texts.append(f"{i.literal:#x}")
    if i.format in ("SOPK", "SOPP") and "simm16" in fields:
        texts.append(f"{fields.pop('simm16'):#x}")
    if i.format == "DS" and not ("READ2" in i.mnemonic or "WRITE2" in i.mnemonic):
        fields = {"offset": fields.pop("offset0", 0) | fields.pop("offset1", 0) << 8, **fields}
    rest = [_modifier(name, value) for name, value in fields.items() if value]
    variant = f"_{i.variant.lower()}" if i.variant in ("DPP16", "SDWA") else ""
    return f"{i.mnemonic.lower()}{variant} {', '.join(texts)} {' '.join(rest)}".replace("  ", " ").rstrip()


def contents(instruction: Instruction, group: Group, row: int, lane: int | None) -> tuple[str, ...]:
    """What the registers that an instruction reads hold, for one wave of a group: a lane of vector registers, all of
    scalar ones.
    """
    found = []
    for one in reads(instruction):
        if one.vector and lane is None:
            continue
        if one.vector:
            first = one.number - 256 + (group.context.vgprs if one.accumulator else 0)
            if first + one.count > len(group.vectors):
                continue
            words = group.vectors[first : first + one.count, row, lane]
        elif one.number + one.count <= 128:
            words = group.scalars[row, one.number : one.number + one.count]
        else:
            continue
        value = " ".join(f"{int(word):#x}" for word in words)
        if one.count <= 2:
            value = f"{sum(int(word) << 32 * at for at, word in enumerate(words)):#x}"
        undefined = " (undefined: never written)" if (words == POISON).any() else ""
        found.append(f"{one.text()} = {value}{undefined}")
    return tuple(found)
