"""Diagnostics of LDS use: bytes that nobody wrote, and accesses of two waves with no barrier between them.

Both are reported, not raised. A dword that two waves touch in the same interval between barriers, at least one of them
writing, is a conflict: which value is read depends on timing that neither the program nor this emulator fixes (waves of
one SIMD may still be ordered by luck).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate.registers import LANES, Array, Group

_NOBODY, _SEVERAL = -1, -2


@dataclass
class LdsReport:
    """What was seen, in dword accesses of lanes."""

    unwritten: int = 0
    """Reads of dwords that no wave of the workgroup has written."""
    conflicts: Counter[str] = field(default_factory=Counter)
    """By kind: ``read after write``, ``write after read``, ``write after write``; each across two waves of a workgroup
    within one interval between barriers."""
    first: list[str] = field(default_factory=list)
    """The first few of them in words."""
    unwritten_at: Counter[str] = field(default_factory=Counter)
    """``unwritten`` by instruction, where ``place`` is known."""
    place: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    """Tells which instruction executes."""


class LdsWatch:
    """State for the LDS of one batch; ``stride`` bytes a workgroup, one after another."""

    def __init__(self, workgroups: int, stride: int, report: LdsReport) -> None:
        self.report, self.dwords = report, stride // 4
        cells = workgroups * self.dwords
        self.epoch: npt.NDArray[np.int64] = np.zeros(workgroups, np.int64)
        self.writer: npt.NDArray[np.int64] = np.full(cells, _NOBODY)
        self.reader: npt.NDArray[np.int64] = np.full(cells, _NOBODY)
        self.written_at: npt.NDArray[np.int64] = np.full(cells, -1)
        self.read_at: npt.NDArray[np.int64] = np.full(cells, -1)

    def barrier(self, workgroups: Array) -> None:
        """A barrier of these workgroups (mask or indices) has opened."""
        self.epoch[workgroups] += 1

    def note(self, group: Group, byte_index: Array, size: int, mask: Array | None, write: bool) -> None:
        """An access of ``size`` bytes at byte indices into the batch's LDS: [n, 64], or [k] under a mask."""
        waves = np.broadcast_to(group.state.wave[group.first : group.last, None], (group.n, LANES))
        wave = (waves if mask is None else waves[mask]).reshape(-1)
        first = byte_index.reshape(-1) // 4
        for at in range(max(1, size // 4)):
            self._dwords(first + at, wave, write)

    def _dwords(self, cell: Array, wave: Array, write: bool) -> None:
        now = self.epoch[cell // self.dwords]
        written_now = (self.written_at[cell] == now) & (self.writer[cell] != wave)
        if not write:
            self._tell("read after write", written_now, cell, wave, self.writer)
            unwritten = int((self.written_at[cell] < 0).sum())
            self.report.unwritten += unwritten
            if unwritten and self.report.place is not None:
                self.report.unwritten_at[self.report.place()] += unwritten
            again = (self.read_at[cell] == now) & (self.reader[cell] != wave)
            self.reader[cell] = wave
            # Two waves of one step that read the same dword: the one that lost the assignment shows it.
            several = again | (self.reader[cell] != wave)
            self.reader[cell[several]] = _SEVERAL
            self.read_at[cell] = now
            return
        self._tell("write after write", written_now, cell, wave, self.writer)
        read_now = (self.read_at[cell] == now) & (self.reader[cell] != wave)
        self._tell("write after read", read_now, cell, wave, self.reader)
        self.writer[cell] = wave
        self.written_at[cell] = now
        self._tell("write after write", self.writer[cell] != wave, cell, wave, self.writer)

    def _tell(self, kind: str, where: Array, cell: Array, wave: Array, other: Array) -> None:
        count = int(np.count_nonzero(where))
        if not count:
            return
        self.report.conflicts[kind] += count
        if len(self.report.first) < 8:
            at = int(np.flatnonzero(where)[0])
            workgroup, dword = divmod(int(cell[at]), self.dwords)
            before = int(other[cell[at]])
            earlier = "several waves" if before == _SEVERAL else f"wave {before // len(self.epoch)}"
            now = int(wave[at]) // len(self.epoch)
            place = "" if self.report.place is None else f"{self.report.place()}: "
            self.report.first.append(
                f"{place}{kind}: LDS byte {4 * dword:#x} of workgroup {workgroup} of the batch, "
                f"wave {now} after {earlier}"
            )
