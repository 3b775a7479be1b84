"""Optional tracking of a launch: reads of what nobody has written, and which bytes of each buffer are touched.

    machine = Machine("gfx950", watch=Watch())
    machine.memory.add("out", array, uninitialised=True)
    machine.launch(...)
    print(machine.watch.report())

What is found is reported, not raised: compilers copy and spill registers of which they never use the undefined lanes.
Registers are told by their content, :data:`~waveproof.kernels.runtimes.emulate.registers.POISON`, so a copy of an
undefined value is undefined too; lanes outside EXEC do not count. Not seen: registers that are read without being named
(VCC of a V_CNDMASK in its short form), and halves of a register whose other half was written. Buffers have a record of
every byte. A watched launch is several times slower; an unwatched one pays nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate import listing
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.lds_watch import LdsReport
from waveproof.kernels.runtimes.emulate.memory import Allocation
from waveproof.kernels.runtimes.emulate.registers import LANES, POISON, Array, Group
from waveproof.kernels.runtimes.emulate.registry import Context, Step


@dataclass
class Finding:
    """Undefined reads of one operand of one instruction."""

    kind: str
    """``register`` or ``buffer``."""
    address: int
    """Offset of the instruction in ``.text``."""
    instruction: str
    what: str
    """The register, or the element of the buffer, that was read first."""
    workgroup: tuple[int, int, int]
    wave: int
    lane: int | None
    """Of the first read; None for scalar ones."""
    count: int = 0
    """Reads by lanes (by waves for scalar ones)."""

    def describe(self) -> str:
        """One line."""
        lane = "" if self.lane is None else f", lane {self.lane}"
        times = f"{self.count} reads, the first by" if self.count > 1 else "read by"
        return (
            f".text+{self.address:#06x}: {self.instruction}: {self.what} was never written; "
            f"{times} workgroup {self.workgroup}, wave {self.wave}{lane}"
        )


@dataclass(frozen=True)
class Touched:
    """Distinct bytes of a buffer that a launch touched."""

    read: int
    written: int


@dataclass
class Watch:
    """What is tracked, and what was seen since it was made.

    Args:
        registers: reads of VGPRs, AccVGPRs and SGPRs that were never written.
        memory: reads of unwritten bytes of buffers that were added as uninitialised, and distinct bytes touched.
        lds: see :mod:`.lds_watch`.
    """

    registers: bool = True
    memory: bool = True
    lds: bool = True
    findings: dict[tuple[str, int, str], Finding] = field(default_factory=dict)
    """By kind, address of the instruction, and operand or buffer."""
    lds_report: LdsReport = field(default_factory=LdsReport)
    _read: dict[Allocation, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    _written: dict[Allocation, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    _defined: dict[Allocation, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    _now: tuple[Instruction, Group] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.lds_report.place = self._place

    def wants(self, kernel: str) -> bool:
        """All are watched."""
        return True

    def start(self) -> None:
        """A launch begins: distinct bytes are counted anew."""
        self._read.clear()
        self._written.clear()

    def touched(self) -> dict[str, Touched]:
        """Distinct bytes touched by the last launch, by buffer (kernel arguments among them)."""
        names: dict[str, Touched] = {}
        for allocation in {**self._read, **self._written}:
            read, written = (int(np.count_nonzero(m.get(allocation, ()))) for m in (self._read, self._written))
            before = names.get(allocation.name, Touched(0, 0))
            names[allocation.name] = Touched(before.read + read, before.written + written)
        return names

    def report(self) -> str:
        """All findings, a line each, by address; empty if there are none."""
        lines = [finding.describe() for _, finding in sorted(self.findings.items(), key=lambda item: item[1].address)]
        lines += [f"{place}: {count} reads of LDS dwords that no wave has written"
                  for place, count in self.lds_report.unwritten_at.items()]  # fmt: skip
        return "\n".join([*lines, *self.lds_report.first])

    def instrument(self, instruction: Instruction, context: Context, step: Step) -> Step:
        """Wrap a step (an :data:`~waveproof.kernels.runtimes.emulate.program.Instrument`)."""
        sources = [(one, _row(one, context)) for one in listing.reads(instruction)] if self.registers else []

        def watched(group: Group) -> Any:
            self._now = (instruction, group)
            for one, row in sources:
                if row is not None:
                    self._check_vector(instruction, group, one, row)
                elif one.number + one.count <= 128:
                    self._check_scalar(instruction, group, one)
            return step(group)

        return watched

    def _check_vector(self, instruction: Instruction, group: Group, one: listing.Operand, row: int) -> None:
        bad = (group.vectors[row : row + one.count] == POISON).any(axis=0)
        if not group.full:
            bad &= group.mask
        count = int(np.count_nonzero(bad))
        if count:
            at, lane = divmod(int(np.flatnonzero(bad)[0]), LANES)
            self._note("register", one.text(), one.text(), count, instruction, group, at, lane)

    def _check_scalar(self, instruction: Instruction, group: Group, one: listing.Operand) -> None:
        bad = (group.scalars[:, one.number : one.number + one.count] == POISON).any(axis=1)
        count = int(np.count_nonzero(bad))
        if count:
            at = int(np.flatnonzero(bad)[0])
            self._note("register", one.text(), one.text(), count, instruction, group, at, None)

    def _note(
        self,
        kind: str,
        key: str,
        what: str,
        count: int,
        instruction: Instruction,
        group: Group,
        row: int,
        lane: int | None,
    ) -> None:
        found = self.findings.get((kind, instruction.address, key))
        if found is None:
            machine, slot = group.machine, group.first + row
            workgroup = machine.workgroup_ids[int(group.state.workgroup[slot])]
            wave = int(group.state.wave[slot]) // len(machine.workgroup_ids)
            found = Finding(kind, instruction.address, listing.line(instruction), what, workgroup, wave, lane)
            self.findings[kind, instruction.address, key] = found
        found.count += count

    def _place(self) -> str:
        if self._now is None:
            return "outside of a launch"
        instruction = self._now[0]
        return f".text+{instruction.address:#06x}: {listing.line(instruction)}"

    def access(self, allocation: Allocation, offset: Array, size: int, write: bool) -> None:
        """Lanes have accessed ``size`` bytes at each of these offsets in a buffer; called by the memory."""
        if not self.memory:
            return
        octets = offset.astype(np.intp).reshape(-1, 1) + np.arange(size)
        record = self._written if write else self._read
        if allocation not in record:
            record[allocation] = np.zeros(allocation.size, np.bool_)
        record[allocation][octets] = True
        if not allocation.uninitialised:
            return
        defined = self._defined.get(allocation)
        if defined is None:
            defined = self._defined[allocation] = np.zeros(allocation.size, np.bool_)
        if write:
            defined[octets] = True
            return
        bad = ~defined[octets].all(axis=1)
        count = int(np.count_nonzero(bad))
        if count and self._now is not None:
            at = int(np.flatnonzero(bad)[0])
            instruction, group = self._now
            row, lane = _lane(group, at, len(bad))
            what = allocation.describe(int(octets[at, 0]))
            self._note("buffer", allocation.name, what, count, instruction, group, row, lane)


def _row(one: listing.Operand, context: Context) -> int | None:
    if not one.vector:
        return None
    added = context.gpr_index[int(one.field[-1])] if one.field in ("src0", "src1", "src2", "vsrc1") else 0
    return one.number - 256 + (context.vgprs if one.accumulator else added)


def _lane(group: Group, at: int, count: int) -> tuple[int, int | None]:
    """Row and lane of access number ``at`` of ``count``, where they are one a lane of EXEC; else a guess of the row."""
    if count == group.n:
        return at, None
    if count == group.n * LANES:
        return divmod(at, LANES)
    if not group.full and count == np.count_nonzero(group.mask):
        return divmod(int(np.flatnonzero(group.mask)[at]), LANES)
    return 0, None


CLASSES = (
    ("matrix", ("V_MFMA", "V_SMFMAC")),
    ("vector", ("V_",)),
    ("global memory", ("GLOBAL_", "FLAT_", "BUFFER_", "SCRATCH_")),
    ("LDS", ("DS_",)),
    ("scalar memory", ("S_LOAD", "S_BUFFER", "S_STORE", "S_DCACHE", "S_SCRATCH")),
    ("control", ("S_BRANCH", "S_CBRANCH", "S_ENDPGM", "S_BARRIER", "S_SETPC", "S_SWAPPC", "S_CALL", "S_WAITCNT",
                 "S_NOP", "S_SETPRIO", "S_SLEEP")),
    ("scalar", ("S_",)),
)  # fmt: skip
"""Classes of instructions by the start of the mnemonic, the first that fits."""


def by_class(by_mnemonic: Counter[str]) -> Counter[str]:
    """A histogram of mnemonics as one of classes."""
    counts: Counter[str] = Counter()
    for mnemonic, count in by_mnemonic.items():
        counts[next((name for name, starts in CLASSES if mnemonic.startswith(starts)), "other")] += count
    return counts
