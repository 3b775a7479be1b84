"""What one wave did, instruction by instruction.

machine = Machine("gfx950", trace=Trace(workgroup=(3, 0, 0), wave=1))
machine.launch(...)
print(machine.trace.text())
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate import listing
from waveproof.kernels.runtimes.emulate.decode import Instruction
from waveproof.kernels.runtimes.emulate.registers import EXEC, POISON, VCC, Array, Group, State
from waveproof.kernels.runtimes.emulate.registry import Context, Step

_MOST_REGISTERS = 4
"""Registers of one instruction that are shown."""


@dataclass(frozen=True)
class TraceLine:
    """One executed instruction."""

    address: int
    """Offset in ``.text``."""
    text: str
    results: tuple[str, ...]
    """Registers that changed: scalar ones by value, vector ones by lane 0 and the range over the lanes of EXEC."""
    exec_mask: int
    """EXEC, VCC and SCC after the instruction."""
    vcc: int
    scc: bool


@dataclass
class Trace:
    """A record of the first ``limit`` instructions of one wave."""

    workgroup: tuple[int, int, int] = (0, 0, 0)
    wave: int = 0
    limit: int = 1000
    kernel: str | None = None
    """Only launches of this kernel; of several the last is kept."""
    lines: list[TraceLine] = field(default_factory=list)
    executed: int = 0
    """Instructions that the wave has executed, beyond the limit too."""
    _state: State | None = field(default=None, repr=False)
    _number: int | None = field(default=None, repr=False)

    def wants(self, kernel: str) -> bool:
        """Whether launches of a kernel are recorded."""
        return self.kernel in (None, kernel)

    def start(self) -> None:
        """A launch begins: the record begins anew."""
        self.lines.clear()
        self.executed = 0
        self._state = self._number = None

    def text(self) -> str:
        """The record, a line an instruction; EXEC, VCC and SCC are shown where they changed."""
        lines = []
        before: TraceLine | None = None
        for index, line in enumerate(self.lines):
            state = []
            if before is None or line.exec_mask != before.exec_mask:
                state.append(f"exec={line.exec_mask:#018x}")
            if before is not None and line.vcc != before.vcc:
                state.append(f"vcc={line.vcc:#018x}")
            if before is not None and line.scc != before.scc:
                state.append(f"scc={int(line.scc)}")
            told = "; ".join([*line.results, *state])
            lines.append(f"{index:6}  {line.address:#06x}  {line.text:<48}{f'  {told}' if told else ''}".rstrip())
            before = line
        if self.executed > len(self.lines):
            lines.append(f"        and {self.executed - len(self.lines)} more instructions")
        return "\n".join(lines)

    def instrument(self, instruction: Instruction, context: Context, step: Step) -> Step:
        """Wrap a step (an :data:`~waveproof.kernels.runtimes.emulate.program.Instrument`)."""
        targets = [one for one in listing.operands(instruction) if one.field == "vdst" and one.vector]
        rows = [
            row
            for one in targets
            for row in range(one.number - 256 + context.vgprs * one.accumulator, _end(one, context))
        ]

        def traced(group: Group) -> Any:
            row = self._find(group)
            if row is None:
                return step(group)
            self.executed += 1
            if len(self.lines) >= self.limit:
                return step(group)
            vectors, scalars = group.vectors[:, row].copy(), group.scalars[row].copy()
            outcome = step(group)
            self.lines.append(_line(instruction, context, group, row, vectors, scalars, rows))
            return outcome

        return traced

    def _find(self, group: Group) -> int | None:
        """Row of the wave in the group."""
        if group.state is not self._state:
            ids = group.machine.workgroup_ids
            self._state = group.state
            self._number = None
            if self.workgroup in ids:
                self._number = self.wave * len(ids) + ids.index(self.workgroup)
        if self._number is None:
            return None
        found = np.flatnonzero(group.state.wave[group.first : group.last] == self._number)
        return int(found[0]) if len(found) else None


def _end(one: listing.Operand, context: Context) -> int:
    return one.number - 256 + context.vgprs * one.accumulator + one.count


def _line(
    instruction: Instruction, context: Context, group: Group, row: int, vectors: Array, scalars: Array, rows: list[int]
) -> TraceLine:
    after, scalars_after = group.vectors[:, row], group.scalars[row]
    changed = {int(r) for r in np.flatnonzero((after != vectors).any(axis=1))} | {r for r in rows if r < len(after)}
    results = []
    for scalar in np.flatnonzero(scalars_after != scalars):
        if scalar < VCC:
            results.append(f"s{scalar} = {_number(int(scalars_after[scalar]), 's')}")
    mask = group.mask[row]
    floating = "_F32" in instruction.mnemonic
    for register in sorted(changed)[:_MOST_REGISTERS]:
        name = f"v{register}" if register < context.vgprs else f"a{register - context.vgprs}"
        results.append(f"{name} = {_summary(after[register], mask, floating)}")
    if len(changed) > _MOST_REGISTERS:
        results.append(f"and {len(changed) - _MOST_REGISTERS} registers more")
    return TraceLine(
        instruction.address,
        listing.line(instruction),
        tuple(results),
        int(group.s64[EXEC // 2][row, 0]),
        int(group.s64[VCC // 2][row, 0]),
        bool(group.scc[row, 0]),
    )


def _number(word: int, kind: str) -> str:
    if word == POISON:
        return "undefined"
    if kind == "f":
        return f"{struct.unpack('<f', struct.pack('<I', word))[0]:.6g}"
    return f"{word:#x}" if word > 9 else str(word)


def _summary(lanes: Array, mask: Array, floating: bool) -> str:
    """Lane 0, and the range over the lanes of EXEC."""
    kind = "f" if floating else "u"
    first = _number(int(lanes[0]), kind)
    active = lanes[mask]
    if not len(active):
        return f"{first} (no lane is active)"
    if (active == active[0]).all():
        same = _number(int(active[0]), kind)
        return f"{same} in {'all' if len(active) == len(lanes) else len(active)} lanes"
    values = active.view(np.float32) if floating else active
    with np.errstate(invalid="ignore"):
        low, high = values.min(), values.max()
    if floating:
        return f"lane 0: {first}, {len(active)} lanes {low:.6g} .. {high:.6g}"
    return f"lane 0: {first}, {len(active)} lanes {_number(int(low), kind)} .. {_number(int(high), kind)}"
