"""What of a code object the emulator can execute, without running it; and what a launch has executed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from waveproof.kernels.runtimes.emulate import registry
from waveproof.kernels.runtimes.emulate.decode import decode
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.loader import CodeObject
from waveproof.kernels.runtimes.emulate.registry import Context


@dataclass(frozen=True)
class Coverage:
    """Static coverage of one code object's ``.text``."""

    arch: str
    instructions: int
    undecoded: int
    """4-byte words at which no instruction decodes (data between kernels is among them)."""
    unhandled: Counter[str]
    """Instructions without a handler, or in a form that it refuses, by mnemonic."""
    reasons: dict[str, str]
    """Why, by mnemonic: the first refusal."""
    first_missing: int | None
    """Offset in ``.text`` of the first of them."""

    @property
    def share(self) -> float:
        """Handled instructions of all, 0 to 1."""
        missing = self.undecoded + sum(self.unhandled.values())
        return 1 - missing / max(1, self.instructions + self.undecoded)


def examine(code: CodeObject) -> Coverage:
    """Decode ``.text`` from start to end and try to build each instruction."""
    start, size = code.text
    text = code.image[start : start + size]
    context = Context(code.arch)
    at = instructions = undecoded = 0
    unhandled: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    first: int | None = None
    while at < len(text):
        try:
            instruction = decode(text[at : at + 16], at)
        except CodeObjectInvalid:
            undecoded += 1
            at += 4
            continue
        instructions += 1
        try:
            registry.build_step(instruction, context)
        except (InstructionUnsupported, CodeObjectInvalid) as error:
            unhandled[instruction.mnemonic] += 1
            reasons.setdefault(instruction.mnemonic, str(error))
            first = at if first is None else first
        at += instruction.size
    return Coverage(code.arch, instructions, undecoded, unhandled, reasons, first)
