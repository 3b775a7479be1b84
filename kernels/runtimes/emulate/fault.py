"""What can go wrong on the emulated device, as few specific errors, and the context that a kernel author needs."""

from __future__ import annotations

from dataclasses import dataclass, field


class EmulationError(RuntimeError):
    """Base of all errors that the emulator raises about a code object or a launch."""


class CodeObjectInvalid(EmulationError):
    """The bytes are no code object that this emulator can load; the message names the field and its value."""


class InstructionUnsupported(EmulationError):
    """An instruction, or a form of one, that is not implemented was *reached*. It is never skipped in silence."""


class LaunchInvalid(EmulationError):
    """The launch does not fit the kernel or the device (LDS, registers, argument bytes, grid)."""


@dataclass
class Access:
    """One access to memory or LDS that broke a rule, as the place that found it knows it."""

    rule: str
    """What was violated, in words, with the figures."""
    space: str = "global"
    """``global``, ``lds``, ``scratch`` or ``scalar``."""
    address: int | None = None
    """Virtual address; byte offset for LDS."""
    size: int = 0
    """Bytes."""
    row: int | None = None
    """Row of the wave in the group that executes."""
    lane: int | None = None


class AccessViolation(EmulationError):
    """Raised where an access is refused; the scheduler turns it into a :class:`Fault` with the full context."""

    def __init__(self, access: Access) -> None:
        super().__init__(access.rule)
        self.access = access


@dataclass(frozen=True)
class Place:
    """Where in the program and in the launch something happened."""

    kernel: str
    address: int
    """Byte offset of the instruction in the section ``.text``."""
    instruction: str
    listing: tuple[str, ...] = field(default=(), repr=False)
    """Disassembly around the instruction, the instruction marked."""
    code_object: str = ""
    """Its label and architecture."""
    workgroup: tuple[int, int, int] | None = None
    wave: int | None = None
    """Index of the wave in its workgroup."""
    lane: int | None = None
    exec_mask: int | None = None
    """EXEC of the wave at the instruction."""
    operands: tuple[str, ...] = field(default=(), repr=False)
    """What the instruction's registers held, in the lane."""

    def describe(self) -> str:
        """Text of the place, several lines."""
        where = [f"kernel {self.kernel}, .text+{self.address:#x}: {self.instruction}"]
        if self.workgroup is not None:
            lane = "" if self.lane is None else f", lane {self.lane}"
            lanes = ""
            if self.exec_mask is not None:
                lanes = f", EXEC {self.exec_mask:#018x} ({self.exec_mask.bit_count()} of 64 lanes)"
            where.append(f"workgroup {self.workgroup}, wave {self.wave}{lane}{lanes}")
        if self.code_object:
            where.append(f"code object {self.code_object}")
        if self.operands:
            where.append(f"operands{'' if self.lane is None else f' of lane {self.lane}'}: {', '.join(self.operands)}")
        return "\n".join([*where, *self.listing])


class Fault(EmulationError):
    """The program did what no device allows: out of bounds, write to read-only memory, deadlock, no end in sight."""

    def __init__(self, rule: str, place: Place | None, access: Access | None = None) -> None:
        super().__init__(rule if place is None else f"{rule}\n{place.describe()}")
        self.rule = rule
        self.place = place
        self.access = access
