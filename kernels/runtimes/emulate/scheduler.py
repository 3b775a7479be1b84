"""Executes a batch of workgroups: groups of waves at the same instruction, in a chosen order, with barriers.

Default order: in each round every group executes one instruction, so all waves of a workgroup go in lockstep as far as
they can. Where waves diverge their group splits; groups that meet at the same instruction merge. Workgroups are
independent, so only the order of the waves *of one workgroup* can matter. Other orders exist to expose races:
``quantum`` instructions of one wave before the next has its turn, or a seeded random order.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.emulate import listing
from waveproof.kernels.runtimes.emulate.fault import (
    AccessViolation,
    CodeObjectInvalid,
    Fault,
    InstructionUnsupported,
)
from waveproof.kernels.runtimes.emulate.program import BARRIER, END, Block, Branch, Enter, Jump, Program
from waveproof.kernels.runtimes.emulate.registers import EXEC, Group, State
from waveproof.kernels.runtimes.emulate.registry import Context

_LONGEST_RUN = 1 << 16


@dataclass(frozen=True)
class Schedule:
    """Order in which waves execute."""

    quantum: int = 1
    """Instructions of a wave before the next wave of the workgroup has its turn. 1: lockstep, and the fastest."""
    seed: int | None = None
    """If set: single waves in random order, with random quanta up to ``quantum``."""
    most_instructions: int = 2_000_000_000
    """Wave instructions of a launch after which it is taken for endless."""

    def __post_init__(self) -> None:
        if self.quantum < 1:
            raise ValueError(f"quantum {self.quantum}, at least 1 is needed")


class Execution:
    """One batch of workgroups from start to end."""

    def __init__(
        self,
        program: Program,
        state: State,
        context: Context,
        entry: int,
        machine: Any,
        schedule: Schedule,
        waves_per_workgroup: int,
        kernel: str,
    ) -> None:
        self.program, self.state, self.machine, self.schedule, self.kernel = program, state, machine, schedule, kernel
        self.waves_per_workgroup = waves_per_workgroup
        self.workgroups = state.waves // waves_per_workgroup
        self.live: npt.NDArray[np.intp] = np.bincount(state.workgroup, minlength=self.workgroups)
        self.arrived: npt.NDArray[np.intp] = np.zeros(self.workgroups, np.intp)
        self.executed = 0
        # Slots are wave-major: wave k of all workgroups is one range. Only lockstep may run them as one group.
        self.merging = schedule.quantum == 1 and schedule.seed is None
        alone = 1 if schedule.seed is not None else self.workgroups
        width = state.waves if self.merging else alone
        self.groups = [
            Group(state, first, first + width, entry, context, machine) for first in range(0, state.waves, width)
        ]
        self.random = random.Random(schedule.seed)

    def run(self) -> None:
        """Execute until all waves have ended.

        Raises:
            Fault: a forbidden access, a barrier that cannot open, or no end after ``most_instructions``.
            InstructionUnsupported, CodeObjectInvalid: such an instruction was reached.
        """
        while self.groups:
            if len(self.groups) == 1 and not self.groups[0].waiting:
                self._whole_block(self.groups[0])
                continue
            ready = [group for group in self.groups if not group.waiting]
            if not ready:
                self._deadlock()
            self._round(ready)
            if self.merging and len(self.groups) > 1:
                self._merge()
            if self.executed > self.schedule.most_instructions:
                self._endless(self.groups[0])

    def _round(self, ready: list[Group]) -> None:
        quantum = self.schedule.quantum
        if self.merging:
            self._straight_lines(ready)
        if self.schedule.seed is not None:
            group = self.random.choice(ready)
            ready, quantum = [group], self.random.randint(1, quantum)
        for group in ready:
            for _ in range(quantum):
                if not self._one_instruction(group):
                    break

    def _straight_lines(self, ready: list[Group]) -> None:
        """Rounds in which no group reaches the end of its block: what :meth:`_one_instruction` would do, faster."""
        rounds = _LONGEST_RUN
        # Only the last instruction of a block can split a group or end its turn.
        for group in ready:
            if group.block is None:
                group.block = self.program.block(group.pc, group.context)
            rounds = min(rounds, len(group.block.instructions) - 1 - group.index)
        if rounds < 2:
            return
        group, step = ready[0], 0
        work = [(group, group.block.steps[group.index : group.index + rounds]) for group in ready]
        try:
            for step in range(rounds):
                for group, steps in work:
                    steps[step](group)
        except (AccessViolation, InstructionUnsupported, CodeObjectInvalid) as error:
            self._raise(error, group, group.block, group.index + step)
        for group in ready:
            group.block.runs[group.index, group.index + rounds] += group.n
            group.index += rounds
            self.executed += group.n * rounds

    def _whole_block(self, group: Group) -> None:
        block = group.block
        if block is None:
            block = self.program.block(group.pc, group.context)
        if group.index or len(self.groups) > 1:
            self._one_instruction(group)
            return
        index = -1
        try:
            for index, step in enumerate(block.steps):  # noqa: B007
                step(group)
            index = len(block.steps)
            outcome = block.control(group) if block.control is not None else None
        except (AccessViolation, InstructionUnsupported, CodeObjectInvalid) as error:
            self._raise(error, group, block, index)
        block.executed += group.n
        self.executed += group.n * len(block.instructions)
        if self.executed > self.schedule.most_instructions:
            self._endless(group)
        group.block = None
        self._continue(group, block, outcome)

    def _one_instruction(self, group: Group) -> bool:
        """Execute one instruction; False if the group cannot go on in this turn."""
        block = group.block
        if block is None:
            block = group.block = self.program.block(group.pc, group.context)
        index = group.index
        block.runs[index, index + 1] += group.n
        self.executed += group.n
        outcome = None
        try:
            if index < len(block.steps):
                block.steps[index](group)
            else:
                outcome = block.control(group)
        except (AccessViolation, InstructionUnsupported, CodeObjectInvalid) as error:
            self._raise(error, group, block, index)
        group.index = index + 1
        if group.index < len(block.instructions):
            return True
        group.block, group.index = None, 0
        return self._continue(group, block, outcome)

    def _continue(self, group: Group, block: Block, outcome: Any) -> bool:
        """Go where the outcome of a block's end says; False if the group ended, waits or split."""
        if outcome is None:
            group.pc = block.after
            return True
        if outcome.__class__ is int:
            group.pc = outcome
            return True
        group.pc = block.after
        if isinstance(outcome, Branch):
            taken = outcome.taken
            count = int(np.count_nonzero(taken))
            if count == group.n:
                group.pc = outcome.target
                return True
            if not count:
                return True
            taken_part, _ = self._split(group, taken)
            taken_part.pc = outcome.target
            return False
        if outcome is END:
            self._end(group)
            return False
        if outcome is BARRIER:
            return self._arrive(group)
        if isinstance(outcome, Jump):
            for target in np.unique(outcome.targets)[:-1]:
                here = outcome.targets == target
                part, group = self._split(group, here)
                part.pc = int(target)
                outcome = Jump(outcome.targets[~here])
            group.pc = int(outcome.targets[0])
            return False
        if isinstance(outcome, Enter):
            if len(outcome.parts) == 1:
                group.context = outcome.parts[0][1]
                return True
            rows = np.arange(group.n)
            for where, context in outcome.parts[:-1]:
                assert where is not None
                part, group = self._split(group, where[rows])
                rows = rows[~where[rows]]
                part.context = context
            group.context = outcome.parts[-1][1]
            return True
        raise TypeError(f"outcome {outcome!r} of {block.instructions[-1].text}")

    def _split(self, group: Group, chosen: npt.NDArray[np.bool_]) -> tuple[Group, Group]:
        """Split off the chosen rows. Slots are moved so that both parts are contiguous, if they are not already."""
        count, n, first = int(np.count_nonzero(chosen)), group.n, group.first
        chosen_first = bool(chosen[0])
        order = np.argsort(~chosen if chosen_first else chosen, kind="stable")
        if (np.diff(order) != 1).any():
            self.state.permute(first, order)
        middle = first + (count if chosen_first else n - count)
        bounds = [(first, middle), (middle, first + n)]
        mine, other = bounds if chosen_first else bounds[::-1]
        part = Group(self.state, *mine, group.pc, group.context, self.machine)
        group.resize(*other)
        self.groups.insert(self.groups.index(group) + (0 if chosen_first else 1), part)
        return part, group

    def _end(self, group: Group) -> None:
        self.groups.remove(group)
        self.live -= np.bincount(self.state.workgroup[group.first : group.last], minlength=self.workgroups)
        if self.groups:
            self._open_barriers()

    def _arrive(self, group: Group) -> bool:
        if len(self.groups) == 1:
            self._barrier_opened(slice(None))
            return True
        group.waiting = True
        self.arrived += np.bincount(self.state.workgroup[group.first : group.last], minlength=self.workgroups)
        self._open_barriers()
        return not group.waiting

    def _open_barriers(self) -> None:
        """Let waves go on whose workgroup has arrived completely; ended waves do not count (CDNA3 ISA, S_BARRIER)."""
        complete = (self.arrived > 0) & (self.arrived == self.live)
        if not complete.any():
            return
        for group in [g for g in self.groups if g.waiting]:
            free = complete[self.state.workgroup[group.first : group.last]]
            if free.all():
                group.waiting = False
            elif free.any():
                _, rest = self._split(group, free)
                rest.waiting = True
        self.arrived[complete] = 0
        self._barrier_opened(complete)

    def _barrier_opened(self, workgroups: Any) -> None:
        watch = self.machine.lds.watch
        if watch is not None:
            watch.barrier(workgroups)

    def _merge(self) -> None:
        at: dict[tuple[int, Context], list[Group]] = {}
        for group in self.groups:
            if not group.index and not group.waiting:
                at.setdefault((group.pc, group.context), []).append(group)
        if len(at) == len(self.groups):
            return
        for same in at.values():
            if len(same) > 1:
                self._unite(same)

    def _unite(self, same: list[Group]) -> None:
        same = sorted(same, key=lambda g: g.first)
        first, last = same[0].first, same[-1].last
        size = sum(g.n for g in same)
        if size != last - first:
            between = sorted(
                (g for g in self.groups if first <= g.first < last and g not in same), key=lambda g: g.first
            )
            order = np.concatenate([np.arange(g.first, g.last) for g in [*same, *between]]) - first
            # Slots of waves that have ended lie between as well; they go behind the others.
            order = np.concatenate([order, np.setdiff1d(np.arange(last - first), order)])
            self.state.permute(first, order)
            place = first + size
            for group in between:
                group.resize(place, place + group.n)
                place += group.n
        same[0].resize(first, first + size)
        for group in same[1:]:
            self.groups.remove(group)

    def _where(self, group: Group, row: int) -> tuple[tuple[int, int, int], int]:
        wave = int(self.state.wave[group.first + row])
        workgroup = int(self.state.workgroup[group.first + row])
        return self.machine.workgroup_ids[workgroup], wave // self.workgroups

    def _raise(self, error: Exception, group: Group, block: Block, index: int) -> NoReturn:
        instruction = block.instructions[min(index, len(block.instructions) - 1)]
        access = error.access if isinstance(error, AccessViolation) else None
        row = access.row or 0 if access is not None else 0
        workgroup, wave = self._where(group, row)
        place = replace(
            self.program.place(self.kernel, instruction),
            workgroup=workgroup,
            wave=wave,
            lane=None if access is None else access.lane,
            exec_mask=int(group.s64[EXEC // 2][row, 0]),
            operands=listing.contents(instruction, group, row, None if access is None else access.lane),
        )
        if access is None:
            raise type(error)(f"{error}\n{place.describe()}") from error
        raise Fault(access.rule, place, access) from error

    def _deadlock(self) -> NoReturn:
        waiting = self.groups[0]
        workgroup, _ = self._where(waiting, 0)
        arrived, live = (int(c[self.state.workgroup[waiting.first]]) for c in (self.arrived, self.live))
        raise Fault(f"deadlock: {arrived} of {live} waves of workgroup {workgroup} wait at a barrier", None)

    def _endless(self, group: Group) -> NoReturn:
        workgroup, wave = self._where(group, 0)
        place = self.program.place(self.kernel, self.program.instruction(group.pc))
        raise Fault(f"no end after {self.executed} wave instructions", replace(place, workgroup=workgroup, wave=wave))


def histogram(program: Program) -> Counter[str]:
    """Wave instructions by mnemonic since :meth:`Program.reset_counts`."""
    counts: Counter[str] = Counter()
    for block in program.blocks():
        for instruction, count in zip(block.instructions, block.counts(), strict=True):
            if count:
                counts[instruction.mnemonic] += count
    return counts
