"""A kernel's code as straight-line blocks of steps, built when first reached and kept by address and context."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate import listing, registry
from waveproof.kernels.runtimes.emulate.decode import Instruction, decode
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported, Place
from waveproof.kernels.runtimes.emulate.listing import UNDECODED
from waveproof.kernels.runtimes.emulate.loader import CodeObject
from waveproof.kernels.runtimes.emulate.registers import Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step

_LONGEST_BLOCK = 512
_BRANCHES = (2, 4, 5, 6, 7, 8, 9)
"""SOPP opcodes of S_BRANCH and S_CBRANCH_* (CDNA3 ISA, "SOPP Instructions")."""


@dataclass(frozen=True)
class Branch:
    """Outcome of a conditional branch: rows of the group with ``taken`` go to ``target``, the others on."""

    taken: npt.NDArray[np.bool_]
    target: int


@dataclass(frozen=True)
class Jump:
    """Outcome of a jump whose target differs by wave: [n] offsets in ``.text``."""

    targets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Enter:
    """Outcome of an instruction that changes the context: rows and the context that they go on in."""

    parts: list[tuple[npt.NDArray[np.bool_] | None, Context]]


class _Marker:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


END = _Marker("END")
"""Outcome of S_ENDPGM."""
BARRIER = _Marker("BARRIER")
"""Outcome of S_BARRIER."""


@dataclass(eq=False)
class Block:
    """A straight line of code."""

    start: int
    instructions: list[Instruction]
    steps: list[Step]
    """Steps of all instructions but a control instruction at the end."""
    control: Step | None
    """Step of the control instruction that ends it; None if it runs into another block."""
    after: int
    """Offset of the next instruction."""
    executed: int = 0
    """Times that the whole block was executed, by waves."""
    runs: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Executions of parts of the block, by waves: from one position to before another."""

    def counts(self) -> list[int]:
        """Executions of each instruction, by waves."""
        change = [0] * (len(self.instructions) + 1)
        for (start, stop), waves in self.runs.items():
            change[start] += waves
            change[stop] -= waves
        return [self.executed + total for total in itertools.accumulate(change[:-1])]


Instrument = Callable[[Instruction, Context, Step], Step]
"""Wraps the step of an instruction in one that looks on."""


class Program:
    """Code of one code object for one architecture.

    Args:
        code: the code object.
        instrument: applied to every step, for diagnostics; the wrapped step must return what the step returns.
    """

    def __init__(self, code: CodeObject, instrument: Instrument | None = None) -> None:
        start, size = code.text
        self.code, self.instrument = code, instrument
        self.text = code.image[start : start + size]
        self.leaders = _leaders(self.text)
        self._blocks: dict[tuple[int, Context], Block] = {}

    def block(self, pc: int, context: Context) -> Block:
        """The block that starts at offset ``pc``."""
        key = (pc, context)
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = self._build(pc, context)
        return found

    def blocks(self) -> list[Block]:
        """All blocks reached so far."""
        return list(self._blocks.values())

    def reset_counts(self) -> None:
        """Start counting executions anew."""
        for block in self._blocks.values():
            block.executed = 0
            block.runs.clear()

    def instruction_or_word(self, pc: int) -> Instruction:
        """The instruction at an offset; for messages, a stand-in where none decodes."""
        try:
            return self.instruction(pc)
        except CodeObjectInvalid:
            return Instruction(UNDECODED, "", "", pc, 4, self.text[pc : pc + 4] if pc >= 0 else b"")

    def instruction(self, pc: int) -> Instruction:
        """Decode the instruction at an offset in ``.text``.

        Raises:
            CodeObjectInvalid: the offset is outside, or there is no instruction.
        """
        if not 0 <= pc < len(self.text) or pc & 3:
            raise CodeObjectInvalid(f"jump to .text{pc:+#x}, the section has {len(self.text):#x} bytes")
        return decode(self.text[pc : pc + 16], pc)

    def _build(self, pc: int, context: Context) -> Block:
        block = Block(pc, [], [], None, pc)
        while len(block.instructions) < _LONGEST_BLOCK:
            try:
                instruction = self.instruction(block.after)
            except CodeObjectInvalid as error:
                # The bytes may never be reached: refuse only when they are.
                block.steps.append(_refuse(error))
                block.instructions.append(self.instruction_or_word(block.after))
                return block
            try:
                step = registry.build_step(instruction, context)
            except (InstructionUnsupported, CodeObjectInvalid) as error:
                step = _refuse(error)
            if self.instrument is not None:
                step = self.instrument(instruction, context, step)
            block.instructions.append(instruction)
            block.after += instruction.size
            if registry.is_control(instruction.mnemonic):
                block.control = step
                return block
            block.steps.append(step)
            if block.after in self.leaders:
                break
        return block

    def listing(self, address: int, around: int = 4) -> tuple[str, ...]:
        """Disassembly around an offset, the instruction there marked; instructions before it are found by blocks."""
        lines = self._before(address, around)
        pc = address
        for _ in range(around + 1):
            if 0 <= pc < len(self.text) or pc == address:
                lines.append(self.instruction_or_word(pc))
                pc += lines[-1].size
        return tuple(f"{'=>' if i.address == address else '  '} {i.address:#06x}: {listing.line(i)}" for i in lines)

    def _before(self, address: int, count: int) -> list[Instruction]:
        """Up to ``count`` instructions that lie before an address, from the blocks that were built."""
        follows = {i.address + i.size: i for block in self._blocks.values() for i in block.instructions}
        found: list[Instruction] = []
        while len(found) < count and address in follows:
            found.insert(0, follows[address])
            address = found[0].address
        return found

    def place(self, kernel: str, instruction: Instruction) -> Place:
        """The place of an instruction, without the wave."""
        label = f"{self.code.name or 'without a name'} ({self.code.arch})"
        return Place(kernel, instruction.address, listing.line(instruction), self.listing(instruction.address), label)


def _refuse(error: Exception) -> Step:
    def step(group: Group) -> NoReturn:
        raise error

    return step


def _leaders(text: bytes) -> frozenset[int]:
    """Targets of SOPP branches. A literal that looks like a branch adds one too many, which only cuts a block."""
    words: Array = np.frombuffer(text[: len(text) & ~3], np.uint32)
    opcode = words >> np.uint32(16) & np.uint32(0x7F)
    sopp = (words & np.uint32(0xFF800000)) == np.uint32(0xBF800000)
    at = np.flatnonzero(sopp & np.isin(opcode, _BRANCHES))
    targets = 4 * (at + 1 + words[at].astype(np.uint16).view(np.int16).astype(np.int64))
    return frozenset(int(t) for t in targets) | {0}
