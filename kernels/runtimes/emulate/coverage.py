"""What of a code object the emulator can execute, without running it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from waveproof.kernels.runtimes.emulate import listing, registry
from waveproof.kernels.runtimes.emulate.decode import SCALE_HALF, decode
from waveproof.kernels.runtimes.emulate.fault import CodeObjectInvalid, InstructionUnsupported
from waveproof.kernels.runtimes.emulate.loader import CodeObject
from waveproof.kernels.runtimes.emulate.registry import Context


@dataclass(frozen=True)
class Missing:
    """An instruction that the emulator would refuse to execute."""

    address: int
    """Byte offset in ``.text``."""
    text: str
    """Disassembly, or the bytes where nothing decodes."""
    reason: str


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
    first: Missing | None
    """The first word or instruction that is not covered."""

    @property
    def first_missing(self) -> int | None:
        """Offset in ``.text`` of the first word or instruction that is not covered."""
        return None if self.first is None else self.first.address

    @property
    def handled(self) -> int:
        """Instructions that can be executed."""
        return self.instructions - sum(self.unhandled.values())

    @property
    def share(self) -> float:
        """Handled instructions of all, 0 to 1."""
        return self.handled / max(1, self.instructions + self.undecoded)

    @property
    def complete(self) -> bool:
        """Whether all of it can be executed."""
        return self.first is None


@dataclass(frozen=True)
class _Verdict:
    """What is known of an instruction wherever it stands."""

    size: int
    mnemonic: str
    """Empty where nothing decodes."""
    reason: str
    """Why it is refused; empty if it is not."""


class Examiner:
    """Examines code objects of one architecture; what it has met before is not decoded and built again.

    Most words of a code object repeat, and nearly all of a family do.
    """

    def __init__(self, arch: str) -> None:
        self.context = Context(arch)
        self._known: dict[bytes, _Verdict] = {}

    def examine(self, code: CodeObject) -> Coverage:
        """Decode ``.text`` from start to end and try to build each instruction."""
        start, length = code.text
        text = code.image[start : start + length]
        known = self._known
        seen: Counter[_Verdict] = Counter()
        first: Missing | None = None
        reasons: dict[str, str] = {}
        at = 0
        while at < length:
            verdict = known.get(text[at : at + 4]) or known.get(text[at : at + 8]) or self._judge(text, at)
            seen[verdict] += 1
            if verdict.reason:
                reasons.setdefault(verdict.mnemonic, verdict.reason)
                if first is None:
                    first = self._missing(text, at, verdict)
            at += verdict.size
        unhandled: Counter[str] = Counter()
        for verdict, count in seen.items():
            if verdict.reason:
                unhandled[verdict.mnemonic] += count
        undecoded = unhandled.pop("", 0)
        reasons.pop("", None)
        return Coverage(code.arch, seen.total() - undecoded, undecoded, unhandled, reasons, first)

    def _judge(self, text: bytes, at: int) -> _Verdict:
        head = text[at : at + 16]
        try:
            instruction = decode(head, at)
        except CodeObjectInvalid as error:
            verdict = _Verdict(4, "", str(error))
            if len(head) >= 8:
                self._known[head[:8]] = verdict
            return verdict
        reason = ""
        try:
            registry.build_step(instruction, self.context)
        except (InstructionUnsupported, CodeObjectInvalid) as error:
            reason = str(error)
        verdict = _Verdict(instruction.size, instruction.mnemonic, reason)
        # The scale half of a 16-byte MFMA is the one word whose meaning depends on what follows.
        if instruction.size <= 8 and int.from_bytes(head[2:4], "little") != SCALE_HALF:
            self._known[head[: instruction.size]] = verdict
        return verdict

    def _missing(self, text: bytes, at: int, verdict: _Verdict) -> Missing:
        if not verdict.mnemonic:
            return Missing(at, f"word {text[at : at + 4][::-1].hex()}", verdict.reason)
        return Missing(at, listing.line(decode(text[at : at + 16], at)), verdict.reason)


def examine(code: CodeObject) -> Coverage:
    """Coverage of one code object."""
    return Examiner(code.arch).examine(code)
