"""Memory instructions against byte-wise references: what each lane reads or writes, lane by lane.

Sources: CDNA3 ISA, "Scalar Memory Operations", "Vector Memory Buffer Instructions" (raw buffers: an element or dword
reads 0, or is not written, where its offset without SOFFSET reaches NUM_RECORDS - SOFFSET) and "Flat Memory
Instructions"; scratch: LLVM's "User Guide for AMDGPU Backend", "Flat scratch" (private address = VGPR + SGPR + signed
offset, each 32 bits, of a segment of each lane's own). Sizes and extension from the pseudocode of each instruction,
typed in here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate.launch import LDS, Machine, Scratch
from waveproof.kernels.runtimes.emulate.memory import Memory
from waveproof.kernels.runtimes.emulate.registers import Group
from waveproof.kernels.runtimes.emulate.registry import Context, build_step
from waveproof.selftest.emulate.assembler import assemble
from waveproof.selftest.emulate.instruction_forms import EXEC
from waveproof.selftest.emulate.instruction_reference import VGPRS, Words
from waveproof.selftest.emulate.instruction_trial import (
    EXEC_MASKS,
    FIRST,
    LAST,
    Fault,
    differences,
    random_state,
    random_words,
)
from waveproof.selftest.emulate.single_step import instructions

BYTES = 1 << 14
_MASK64 = (1 << 64) - 1
_WAVE = 5200
"""Distance of the buffers of the waves: their descriptors differ, and their stores do not meet."""


@dataclass(frozen=True)
class Element:
    """What an instruction moves: bytes, whether they are sign-extended, and the part of the register."""

    size: int
    signed: bool = False
    part: str = "register"


LOADS: dict[str, Element] = {
    "UBYTE": Element(1), "SBYTE": Element(1, True), "USHORT": Element(2), "SSHORT": Element(2, True),
    "DWORD": Element(4), "DWORDX2": Element(8), "DWORDX3": Element(12), "DWORDX4": Element(16),
    "UBYTE_D16": Element(1, False, "low"), "UBYTE_D16_HI": Element(1, False, "high"),
    "SBYTE_D16": Element(1, True, "low"), "SBYTE_D16_HI": Element(1, True, "high"),
    "SHORT_D16": Element(2, False, "low"), "SHORT_D16_HI": Element(2, False, "high"),
}  # fmt: skip
STORES: dict[str, Element] = {
    "BYTE": Element(1), "SHORT": Element(2), "DWORD": Element(4), "DWORDX2": Element(8), "DWORDX3": Element(12),
    "DWORDX4": Element(16), "BYTE_D16_HI": Element(1, False, "high"), "SHORT_D16_HI": Element(2, False, "high"),
}  # fmt: skip
SCALAR: dict[str, int] = {"DWORD": 1, "DWORDX2": 2, "DWORDX4": 4, "DWORDX8": 8, "DWORDX16": 16}

MNEMONICS = tuple(
    [f"{space}_LOAD_{kind}" for space in ("GLOBAL", "BUFFER", "SCRATCH") for kind in LOADS]
    + [f"{space}_STORE_{kind}" for space in ("GLOBAL", "BUFFER", "SCRATCH") for kind in STORES]
    + [f"S_{space}LOAD_{kind}" for space in ("", "BUFFER_") for kind in SCALAR]
)
"""What :func:`trials` has a reference for."""


@dataclass
class Scene:
    """Random waves and one buffer."""

    group: Group
    buffer: bytearray
    """What the memory that is compared holds after the instruction."""
    base: int
    memory_bytes: npt.NDArray[np.uint8]
    """The memory itself."""
    expected: tuple[Words, Words] = field(init=False)

    @classmethod
    def random(cls, rng: np.random.Generator, masks: str) -> Scene:
        state = random_state(rng, EXEC_MASKS[masks])
        memory = Memory()
        content = random_words(rng, (BYTES // 4,))
        base = memory.add("buffer", content)
        context = Context(vgprs=VGPRS, accvgprs=4)
        machine = Machine(context.arch, memory)
        machine.lds = LDS(1, 64)
        group = Group(state, FIRST, LAST, 0, context, machine)
        return cls(group, bytearray(content.tobytes()), base, memory.allocations[0].data)

    def run(self, label: str, words: tuple[int, ...]) -> list[Fault]:
        """Execute, then compare registers with ``expected`` and memory with ``buffer``."""
        group = self.group
        scc = group.state.scc.copy()
        try:
            (instruction,) = instructions(words)
            build_step(instruction, group.context)(group)
        except Exception as error:
            return [Fault(label, f"{type(error).__name__}: {error}")]
        found = differences(label, group, *self.expected, scc)
        content = self.memory_bytes
        wrong = np.flatnonzero(content != np.frombuffer(bytes(self.buffer), np.uint8))
        if len(wrong):
            found.append(Fault(label, f"byte {wrong[0]} of memory is {content[wrong[0]]:#x}, {len(wrong)} differ"))
        return found


def _live(s: Words, lane: int) -> bool:
    return bool(int(s[EXEC + lane // 32]) >> lane % 32 & 1)


def _load(scene: Scene, row: int, v: Words, lane: int, element: Element, places: list[int | None]) -> None:
    """Predict a lane's load: ``places`` are the offsets in the buffer of its dwords (or element), None reads 0."""
    for at, place in enumerate(places):
        size = min(element.size, 4)
        raw = 0 if place is None else int.from_bytes(scene.buffer[place : place + size], "little")
        if element.signed and raw >> (8 * size - 1):
            raw -= 1 << 8 * size
        old = int(v[row + at, lane])
        if element.part == "low":
            v[row + at, lane] = old & 0xFFFF0000 | raw & 0xFFFF
        elif element.part == "high":
            v[row + at, lane] = old & 0xFFFF | (raw & 0xFFFF) << 16
        else:
            v[row + at, lane] = raw & 0xFFFFFFFF


def _store(scene: Scene, row: int, v: Words, lane: int, element: Element, places: list[int | None]) -> None:
    for at, place in enumerate(places):
        if place is None:
            continue
        size, value = min(element.size, 4), int(v[row + at, lane])
        value = value >> 16 if element.part == "high" else value
        scene.buffer[place : place + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _offsets(rng: np.random.Generator, element: Element, edge: int = 1 << 30) -> Words:
    """Offsets for 3 x 64 lanes, less than 4096, that do not overlap, aligned to the element's dwords (or its size).

    None is near ``edge``.
    """
    free = rng.permutation([at for at in range(256) if not edge - 128 <= 16 * at < edge + 32])
    slots = free[:192].reshape(3, 64).astype(np.uint32)
    step = min(element.size, 4)
    shift = rng.integers(0, (16 - element.size) // step + 1, (3, 64), np.uint32)
    offsets: Words = (slots * 16 + shift * step).astype(np.uint32)
    return offsets


def _global(
    mnemonic: str, masks: str, seed: int, kind: str, saddr: bool, offset: int, row: int, acc: int
) -> list[Fault]:
    load = "_LOAD_" in mnemonic
    element = (LOADS if load else STORES)[kind]
    rng = np.random.default_rng(seed)
    scene = Scene.random(rng, masks)
    offsets = _offsets(rng, element)
    state = scene.group.state
    if row == 2:
        row = 4  # The data overlaps the address register of loads with saddr; else see below.
    data_row = VGPRS if acc else row
    for at, slot in enumerate(range(FIRST, LAST)):
        target = (scene.base + 2048 + offsets[at].astype(np.int64) - offset).astype(np.uint64)
        if saddr:
            pair = (scene.base - 3 * at) & _MASK64
            state.s[slot, 20], state.s[slot, 21] = pair & 0xFFFFFFFF, pair >> 32
            state.v[4, slot] = (target - np.uint64(pair)).astype(np.uint32)
        else:
            state.v[4, slot] = (target & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            state.v[5, slot] = (target >> np.uint64(32)).astype(np.uint32)
    v, s = state.v.copy(), state.s.copy()
    for at, slot in enumerate(range(FIRST, LAST)):
        for lane in range(64):
            if _live(s[slot], lane):
                start = 2048 + int(offsets[at, lane])
                places: list[int | None] = list(range(start, start + element.size, 4))
                (_load if load else _store)(scene, data_row, v[:, slot], lane, element, places)
    scene.expected = (v, s)
    data: dict[str, Any] = {"vdst" if load else "data": 0 if acc else row}
    words = assemble("GLOBAL", mnemonic, addr=4, saddr=20 if saddr else 0x7F, offset=offset, acc=acc,
                     **data)  # fmt: skip
    label = f"{mnemonic} saddr {saddr}, offset {offset}, v{row}, acc {acc}, EXEC {masks}"
    return scene.run(label, words)


def _global_trials(mnemonic: str, kind: str) -> Iterator[Fault]:
    seed = 0
    for masks in EXEC_MASKS:
        for saddr in (False, True):
            for offset, row in ((0, 8), (-1024, 2), (1020, 4)):
                seed += 1
                yield from _global(mnemonic, masks, seed, kind, saddr, offset, row, 0)
    yield from _global(mnemonic, "mixed", 99, kind, False, 64, 8, 1)


PRIVATE = 84
"""Bytes of a lane's private segment: no multiple of 16, so that segments of neighbours do not touch."""


@dataclass(frozen=True)
class _Private:
    """An addressing mode of scratch: ST, SV, SS or SVS of LLVM's table."""

    vector: bool
    scalar: bool
    offset: int
    row: int = 8
    acc: int = 0


_PRIVATE_FORMS = (
    _Private(False, False, 16), _Private(True, False, 0), _Private(True, False, -1024), _Private(True, False, 1020, 4),
    _Private(False, True, 0), _Private(False, True, -64), _Private(True, True, 0), _Private(True, True, -1024, 4),
    _Private(True, True, 1020), _Private(True, False, 4, 8, 1),
)  # fmt: skip


def _scratch(mnemonic: str, masks: str, seed: int, kind: str, mode: _Private) -> list[Fault]:
    load = "_LOAD_" in mnemonic
    element = (LOADS if load else STORES)[kind]
    rng = np.random.default_rng(seed)
    scene = Scene.random(rng, masks)
    state, machine = scene.group.state, scene.group.machine
    machine.scratch = scratch = Scratch(state.waves, PRIVATE)
    units: dict[int, Any] = scratch.units
    units[4][:] = random_words(rng, units[4].shape)
    # The lane's bytes are those of its wave, whatever slot the wave has come to.
    scene.memory_bytes, scene.buffer = units[1], bytearray(units[1].tobytes())
    unit = min(element.size, 4)
    starts = rng.integers(0, (PRIVATE - element.size) // unit + 1, (LAST - FIRST, 64)) * unit
    starts[:, 0], starts[:, 63] = PRIVATE - element.size, 0
    for at, slot in enumerate(range(FIRST, LAST)):
        base = (40, -8, 4096)[at] if mode.vector else int(starts[at, 1]) - mode.offset
        if mode.scalar:
            state.s[slot, 20] = base & 0xFFFFFFFF
        if mode.vector:
            needed = starts[at] - mode.offset - (base if mode.scalar else 0)
            state.v[4, slot] = (needed & 0xFFFFFFFF).astype(np.uint32)
        else:
            starts[at] = base + mode.offset if mode.scalar else mode.offset
    v, s = state.v.copy(), state.s.copy()
    data_row = VGPRS if mode.acc else mode.row
    for at, slot in enumerate(range(FIRST, LAST)):
        for lane in range(64):
            if _live(s[slot], lane):
                start = int(starts[at, lane]) + (int(state.wave[slot]) * 64 + lane) * scratch.stride
                places: list[int | None] = list(range(start, start + element.size, 4))
                (_load if load else _store)(scene, data_row, v[:, slot], lane, element, places)
    scene.expected = (v, s)
    data: dict[str, Any] = {"vdst" if load else "data": 0 if mode.acc else mode.row}
    words = assemble("SCRATCH", mnemonic, addr=4 if mode.vector else 0, sve=int(mode.vector),
                     saddr=20 if mode.scalar else 0x7F, offset=mode.offset, acc=mode.acc, **data)  # fmt: skip
    return scene.run(f"{mnemonic} {mode}, EXEC {masks}", words)


def _scratch_trials(mnemonic: str, kind: str) -> Iterator[Fault]:
    for seed, mode in enumerate(_PRIVATE_FORMS):
        for masks in EXEC_MASKS:
            yield from _scratch(mnemonic, masks, seed, kind, mode)


@dataclass(frozen=True)
class _Addressing:
    offen: int
    idxen: int
    offset: int
    soffset: int
    """Source number: an SGPR or an inline constant."""
    records: int
    row: int = 8
    acc: int = 0


_BUFFER_FORMS = (
    _Addressing(1, 0, 0, 128, 4096), _Addressing(1, 0, 64, 22, 4096), _Addressing(1, 0, 4092, 161 - 1, 0x10000),
    _Addressing(0, 0, 256, 22, 4096), _Addressing(0, 0, 16, 128, 24), _Addressing(1, 0, 8, 22, 1000, 4),
    _Addressing(0, 1, 4, 22, 4096), _Addressing(1, 1, 12, 128, 4096, 4), _Addressing(1, 0, 0, 128, 2048, 8, 1),
)  # fmt: skip


def _buffer(mnemonic: str, masks: str, seed: int, kind: str, a: _Addressing) -> list[Fault]:
    load = "_LOAD_" in mnemonic
    element = (LOADS if load else STORES)[kind]
    rng = np.random.default_rng(seed)
    scene = Scene.random(rng, masks)
    state = scene.group.state
    stride = 16 if a.idxen else 0
    for at, slot in enumerate(range(FIRST, LAST)):
        base = scene.base + _WAVE * at
        state.s[slot, 16:20] = base & 0xFFFFFFFF, base >> 32 | stride << 16, a.records, 0x20000
        state.s[slot, 22] = 32 + 4 * at
        edge = a.records - a.offset - (32 if a.soffset < 128 else 0)
        lane_offsets = _offsets(rng, element, edge)[at]
        if a.offset > 4000:
            lane_offsets = rng.permutation(64).astype(np.uint32) * np.uint32(16)
        if a.idxen:
            # Offsets stay inside an element of the structure; a few indices are beyond any bound.
            indices = (lane_offsets // np.uint32(16)).astype(np.uint32)
            indices[::9] = 0x00FF0000
            state.v[4, slot] = indices
            state.v[5, slot] = 0
            if not a.offen:
                state.v[5, slot] = random_words(rng, (64,))
        else:
            if a.records <= 4096:
                beyond = [0xFFFFFF00, 0x80000000, a.records, 0x7FFFFFFC]
                lane_offsets[::13] = [max(edge - 4 * (1 + at), 0), *beyond]
            state.v[4, slot] = lane_offsets
    v, s = state.v.copy(), state.s.copy()
    for slot in range(FIRST, LAST):
        for lane in range(64):
            if not _live(s[slot], lane):
                continue
            soffset = int(s[slot, a.soffset]) if a.soffset < 128 else a.soffset - 128
            index = int(state.v[4, slot, lane]) if a.idxen else 0
            voffset = int(state.v[4 + a.idxen, slot, lane]) if a.offen else 0
            places: list[int | None] = []
            for part in range(0, element.size, 4):
                inside = voffset + a.offset + part + min(element.size, 4)
                structured = index < a.records and inside <= stride
                fits = structured if a.idxen else inside <= a.records - soffset
                start = _WAVE * (slot - FIRST) + voffset + a.offset + part + soffset + index * stride
                places.append(start if fits else None)
            row = VGPRS if a.acc else a.row
            (_load if load else _store)(scene, row, v[:, slot], lane, element, places)
    scene.expected = (v, s)
    words = assemble("MUBUF", mnemonic, vdata=0 if a.acc else a.row, vaddr=4, srsrc=4, soffset=a.soffset,
                     offset=a.offset, offen=a.offen, idxen=a.idxen, acc=a.acc)  # fmt: skip
    return scene.run(f"{mnemonic} {a}, EXEC {masks}", words)


def _buffer_trials(mnemonic: str, kind: str) -> Iterator[Fault]:
    element = {**LOADS, **STORES}[kind]
    for seed, addressing in enumerate(_BUFFER_FORMS):
        if addressing.idxen and element.size + addressing.offset > 16:
            continue
        if not addressing.offen and "STORE" in mnemonic and not addressing.idxen and addressing.row == 4:
            continue
        for masks in ("full", "mixed"):
            yield from _buffer(mnemonic, masks, seed, kind, addressing)


def _scalar_trials(mnemonic: str, dwords: int) -> Iterator[Fault]:
    buffer = "BUFFER" in mnemonic
    for seed, (offset, soffset, sdata) in enumerate(
        ((0, None, 32), (64, None, 16), (-16, None, 32), (0, 24, 32), (8, 24, 48), (7, None, 32))
    ):
        if buffer and offset < 0:
            continue
        rng = np.random.default_rng(seed)
        scene = Scene.random(rng, "partial")
        state = scene.group.state
        records = 96 if seed % 2 else 4096
        for at, slot in enumerate(range(FIRST, LAST)):
            start = scene.base + 1024 + 512 * at
            state.s[slot, 16:20] = start & 0xFFFFFFFF, start >> 32 | (0 if buffer else 0xABCD << 16), records, 0x20000
            state.s[slot, 24] = 12 + 20 * at
        v, s = state.v.copy(), state.s.copy()
        for at, slot in enumerate(range(FIRST, LAST)):
            moved = (offset + (int(s[slot, 24]) if soffset else 0)) & ~3
            start = 1024 + 512 * at + moved
            row = np.frombuffer(bytes(scene.buffer[start : start + 4 * dwords]), np.uint32).copy()
            if buffer:
                row[[moved + 4 * d + 4 > records for d in range(dwords)]] = 0
            s[slot, sdata : sdata + dwords] = row
        scene.expected = (v, s)
        words = assemble("SMEM", mnemonic, sdata=sdata, sbase=8, imm=1, offset=offset, soffset_en=int(bool(soffset)),
                         soffset=soffset or 0)  # fmt: skip
        yield from scene.run(f"{mnemonic} offset {offset}, soffset {soffset}, to s{sdata}", words)


def trials(mnemonic: str) -> list[Fault]:
    """Differences over all addressings and EXEC masks."""
    if mnemonic.startswith("S_"):
        kind = mnemonic.partition("LOAD_")[2]
        return list(_scalar_trials(mnemonic, SCALAR[kind]))
    space, _, rest = mnemonic.partition("_")
    kind = rest.partition("_")[2]
    by_space = {"GLOBAL": _global_trials, "BUFFER": _buffer_trials, "SCRATCH": _scratch_trials}
    return list(by_space[space](mnemonic, kind))
