"""Which instructions race for LDS: pairs that touch one dword from two waves with no barrier between them.

:mod:`.lds_watch` counts such accesses. Here each is put down to its two instructions, so that a report can show the
disassembly. Meant for single launches: every dword access is kept until the next barrier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from waveproof.kernels.runtimes.emulate.launch import Grid, LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.lds_watch import LdsReport, LdsWatch
from waveproof.kernels.runtimes.emulate.loader import CodeObject
from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group
from waveproof.kernels.runtimes.emulate.scheduler import Execution, Schedule


@dataclass(frozen=True, order=True)
class Racing:
    """Two instructions, in the order in which they were seen."""

    earlier: int
    """Byte offset of the instruction in ``.text``."""
    later: int
    kind: str
    """``write after read``, ``read after write`` or ``write after write``."""


@dataclass
class PairReport(LdsReport):
    """With the counts of the watch, those by pair of instructions."""

    pairs: Counter[Racing] = field(default_factory=Counter)
    """Dword accesses."""
    bytes: dict[Racing, set[int]] = field(default_factory=dict)
    """LDS byte addresses of the dwords, within the workgroup."""


class _PairWatch(LdsWatch):
    report: PairReport

    def __init__(self, workgroups: int, stride: int, report: PairReport) -> None:
        super().__init__(workgroups, stride, report)
        self.accesses: dict[int, list[tuple[int, int, int, bool]]] = defaultdict(list)
        """By dword: interval, wave, instruction, whether it wrote."""

    def note(self, group: Group, byte_index: Array, size: int, mask: Array | None, write: bool) -> None:
        super().note(group, byte_index, size, mask, write)
        block = group.block
        if block is None:  # one wave is left, which cannot race
            return
        address = block.instructions[min(group.index, len(block.instructions) - 1)].address
        waves = np.broadcast_to(group.state.wave[group.first : group.last, None], (group.n, LANES))
        wave = (waves if mask is None else waves[mask]).reshape(-1).tolist()
        first = byte_index.reshape(-1) // 4
        for at in range(max(1, size // 4)):
            for cell, mine in zip((first + at).tolist(), wave, strict=True):
                self._pair(cell, mine, address, write)

    def _pair(self, cell: int, wave: int, address: int, write: bool) -> None:
        now = int(self.epoch[cell // self.dwords])
        before = self.accesses[cell]
        if before and before[0][0] != now:
            before.clear()
        for _, other, earlier, wrote in before:
            if other != wave and (write or wrote):
                kind = f"{'write' if write else 'read'} after {'write' if wrote else 'read'}"
                racing = Racing(earlier, address, kind)
                self.report.pairs[racing] += 1
                self.report.bytes.setdefault(racing, set()).add(cell % self.dwords * 4)
        before.append((now, wave, address, write))


class ScheduledMachine(Machine):
    """A machine whose launches all have one order of waves; with a :class:`PairReport`, racing pairs are told.

    The order must not be lockstep for that: there the instruction of a group is not known at an access.
    """

    def __init__(self, arch: str, schedule: Schedule, report: PairReport | None = None) -> None:
        super().__init__(arch)
        self.schedule, self.lds_report = schedule, report
        self._order = schedule

    def launch(
        self,
        code: CodeObject,
        grid: Grid,
        block: Grid,
        kernarg: bytes,
        lds_bytes: int = 0,
        kernel: str | None = None,
        schedule: Schedule | None = None,
        preload: bool = True,
        workgroups: Sequence[Grid] | None = None,
    ) -> LaunchStats:
        """As of :class:`Machine`, in the machine's order unless told another."""
        self._order = schedule or self.schedule
        return super().launch(code, grid, block, kernarg, lds_bytes, kernel, self._order, preload, workgroups)

    def _batch(self, *arguments: Any) -> Execution:
        execution = super()._batch(*arguments)
        lockstep = self._order.quantum == 1 and self._order.seed is None
        if isinstance(self.lds_report, PairReport) and not lockstep:
            self.lds.watch = _PairWatch(len(self.workgroup_ids), self.lds.stride, self.lds_report)
        return execution
