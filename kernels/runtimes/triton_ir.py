"""Lint of a Triton launch: element offsets that do not fit their 32-bit integers.

``row * vocab + column`` in 32 bits is right until ``rows * vocab`` passes 2**31, then the kernel reads and writes
elsewhere, without an error. A test at that size needs gigabytes; the program and its launch are enough to tell.

Method: the integers of the kernel are computed, lane by lane, for single programs of the grid, twice side by side: as
the machine has them (two's complement of the declared width) and exactly. Where an active lane of a load, store or
atomic takes an offset whose two values differ, the launch addresses the wrong element. The operation at which they
parted is reported. Programs are tried at both ends and in the middle of each grid axis; from the last that fails the
smallest index is found by bisection, first along x, then y and z, which takes the offset to grow along each axis.

What is reported is certain: everything that depends on data in memory is unknown, and an unknown offset, mask, branch
or loop bound reports nothing. Loops are entered in their first and last iteration, with the values that are carried
round in closed form where each iteration adds the same amount, and unknown where not. Bit operations and unsigned
division are taken to mean the machine's value (hashes and random numbers wrap on purpose).
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import PurePath

from waveproof.kernels.runtimes.triton_lanes import Bound, Integers, Pointers, compute, known, pointers_to
from waveproof.kernels.runtimes.triton_module import Block, Function, Operation, read_kernel

Program = tuple[int, int, int]


@dataclass(frozen=True)
class Overflow:
    """An active lane of a memory access whose offset, in elements, left its integer type on the way."""

    kernel: str
    argument: str
    """The pointer argument that is addressed; empty where the pointer itself came from memory."""
    access: str
    """The operation that takes the address, such as ``tt.store``."""
    operation: str
    """The operation at which the machine's value and the exact one part, such as ``arith.muli``."""
    type: str
    """Type of its result, such as ``tensor<1024xi32>``."""
    file: str
    line: int
    """Of that operation; 0 where the compiler kept none."""
    source: str
    program: Program
    """Program of the grid: the smallest index along each axis that fails, the others being as found."""
    lane: int
    """Flat index in the block of the first lane that fails."""
    exact: int
    """The offset, in elements, that was meant ..."""
    wrapped: int
    """... and the one that the machine takes."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line} `{self.source}`" if self.line else "unknown line"
        return (
            f"{self.kernel}: {self.access} through {self.argument or 'a loaded pointer'} at program {self.program}, "
            f"lane {self.lane}: element offset {self.exact} became {self.wrapped} in {self.operation} ({self.type}), "
            f"{where}"
        )


@dataclass(frozen=True)
class _Stray:
    """A wrong address in one program, with the index of the operation that spoilt it."""

    culprit: int
    lane: int
    exact: int
    wrapped: int
    argument: str


_Found = dict[int, _Stray]
"""By index of the access."""


def int32_overflows(ttir: str, grid: Sequence[int], scalars: Mapping[str, int | float]) -> list[Overflow]:
    """The memory accesses of this launch that certainly take an overflowed offset, in the order of the program.

    ``ttir`` is the text of the module in Triton IR, ``grid`` the number of programs along x, y, z, ``scalars`` the
    value of each scalar kernel argument by name (an argument that is missing is unknown).

    Raises:
        ModuleUnreadable: the module is not of the expected form.
    """
    function = read_kernel(ttir)
    operations = {operation.index: operation for operation in _walk(function.blocks)}
    used = {op.attributes["axis"] for op in operations.values() if op.name == "tt.get_program_id"}
    extents = tuple([*grid, 1, 1][:3])
    if 0 in extents:
        return []

    def strays(program: Program) -> _Found:
        return _Run(function, program, (extents[0], extents[1], extents[2]), scalars).strays()

    def fails(access: int, program: Program) -> bool:
        return access in strays(program)

    tried = [sorted({0, extent // 2, extent - 1}) if axis in used else [0] for axis, extent in enumerate(extents)]
    failing: dict[int, Program] = {}
    for x, y, z in product(*tried):
        failing.update(dict.fromkeys(strays((x, y, z)), (x, y, z)))
    reports = []
    for access, program in sorted(failing.items()):
        first = _smallest(program, partial(fails, access))
        stray = strays(first)[access]
        reports.append(_report(function.name, operations[stray.culprit], operations[access], first, stray))
    return reports


def _walk(blocks: Sequence[Block]) -> list[Operation]:
    found: list[Operation] = []
    for block in blocks:
        for operation in block.operations:
            found += [*_walk(operation.regions), operation]
    return found


def _smallest(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Bisect each axis in turn for the smallest index that fails; ``program`` is known to."""
    least = list(program)
    for axis in range(3):
        low, high = -1, least[axis]
        while high - low > 1:
            least[axis] = (low + high) // 2
            low, high = (low, least[axis]) if fails((least[0], least[1], least[2])) else (least[axis], high)
        least[axis] = high
    return (least[0], least[1], least[2])


def _report(kernel: str, culprit: Operation, access: Operation, program: Program, stray: _Stray) -> Overflow:
    file, line = culprit.location.file, culprit.location.line
    return Overflow(
        kernel=kernel,
        argument=stray.argument,
        access=access.name,
        operation=culprit.name,
        type=culprit.results[0].type,
        file=PurePath(file).name,
        line=line,
        source=linecache.getline(file, line).strip(),
        program=program,
        lane=stray.lane,
        exact=stray.exact,
        wrapped=stray.wrapped,
    )


_MASK_OPERAND = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2, "tt.atomic_cas": 3}
"""Memory accesses and the position of their mask, which may be absent (TritonOps.td)."""

_Environment = dict[int, Bound]


class _Run:
    """One program of the grid."""

    def __init__(
        self, function: Function, program: Program, grid: tuple[int, int, int], scalars: Mapping[str, int | float]
    ) -> None:
        self.function = function
        self.program = program
        self.grid = grid
        self.scalars = scalars
        self.found: _Found = {}

    def strays(self) -> _Found:
        """Wrong addresses of this program."""
        arguments: list[Bound] = []
        for value in self.function.blocks[0].arguments:
            scalar = self.scalars.get(value.name)
            if value.pointer:
                arguments.append(pointers_to(value.name))
            else:
                arguments.append(known(int(scalar), value.bits) if scalar is not None and value.bits else None)
        environment: _Environment = {}
        at: int | None = 0
        while at is not None:
            at, arguments = self._function_block(at, arguments, environment)
        return self.found

    def _function_block(
        self, at: int, arguments: Sequence[Bound], environment: _Environment
    ) -> tuple[int | None, list[Bound]]:
        """Run a block of the function; the block that follows with its arguments, or None at the end."""
        terminator = self._block(self.function.blocks[at], arguments, environment)
        values = [environment.get(key) for key in terminator.operands]
        target: int | None = None
        if terminator.name == "cf.br":
            target = terminator.successors[0]
        elif terminator.name == "cf.cond_br":
            condition, values = values[0], values[1:]
            then, otherwise = terminator.successors
            split = len(self.function.blocks[then].arguments)
            if isinstance(condition, Integers):
                taken = bool(condition.machine)
                target, values = (then, values[:split]) if taken else (otherwise, values[split:])
        # The front end branches forwards only (early returns); a backward branch would be a loop of unknown length.
        return (target, values) if target is not None and target > at else (None, [])

    def _block(self, block: Block, arguments: Sequence[Bound], environment: _Environment) -> Operation:
        """Run the operations of a block into ``environment``; the terminator."""
        environment.update({value.key: bound for value, bound in zip(block.arguments, arguments, strict=True)})
        for operation in block.operations:
            results = self._results(operation, environment)
            environment.update({value.key: bound for value, bound in zip(operation.results, results, strict=True)})
        return block.operations[-1]

    def _results(self, operation: Operation, environment: _Environment) -> Sequence[Bound]:
        operands = [environment.get(key) for key in operation.operands]
        if operation.name in _MASK_OPERAND:
            self._access(operation, operands)
        if operation.name == "scf.for":
            return self._for(operation, operands, environment)
        if operation.name == "scf.while":
            return self._while(operation, operands, environment)
        if operation.name == "scf.if":
            return self._if(operation, operands, environment)
        if operation.name == "tt.get_program_id":
            return [known(self.program[operation.attributes["axis"]], 32)]
        if operation.name == "tt.get_num_programs":
            return [known(self.grid[operation.attributes["axis"]], 32)]
        if len(operation.results) == 1:
            return [compute(operation, operands)]
        return [None] * len(operation.results)

    def _access(self, operation: Operation, operands: Sequence[Bound]) -> None:
        pointers, position = operands[0], _MASK_OPERAND[operation.name]
        if not isinstance(pointers, Pointers):
            return
        active: Bound = known(1, 1)
        if len(operands) > position:
            active = operands[position]
        if not isinstance(active, Integers):
            return
        lanes = pointers.stray_lanes(active)
        if lanes.size:
            lane = int(lanes[0])
            offset = pointers.offset
            origin, exact, machine = (
                int(array.reshape(-1)[lane]) for array in (offset.origin, offset.exact, offset.machine)
            )
            self.found.setdefault(operation.index, _Stray(origin, lane, exact, machine, pointers.argument))

    def _if(self, operation: Operation, operands: Sequence[Bound], environment: _Environment) -> Sequence[Bound]:
        condition = operands[0]
        if not isinstance(condition, Integers):
            return [None] * len(operation.results)
        side = 0 if bool(condition.machine) else 1
        if side >= len(operation.regions):
            return []
        inner = dict(environment)
        terminator = self._block(operation.regions[side], [], inner)
        return [inner.get(key) for key in terminator.operands]

    def _while(self, operation: Operation, operands: Sequence[Bound], environment: _Environment) -> Sequence[Bound]:
        inner = dict(environment)
        before, after = operation.regions
        condition, *values = (inner.get(key) for key in self._block(before, operands, inner).operands)
        if isinstance(condition, Integers) and not condition.machine:
            return values
        if isinstance(condition, Integers):
            self._block(after, values, dict(inner))
        return [None] * len(operation.results)

    def _for(self, operation: Operation, operands: Sequence[Bound], environment: _Environment) -> Sequence[Bound]:
        bounds, carried, body = operands[:3], operands[3:], operation.regions[0]
        if not all(isinstance(bound, Integers) for bound in bounds):
            return [None] * len(operation.results)
        low, high, step = (int(bound.machine) for bound in bounds if isinstance(bound, Integers))
        trips = max(0, -(-(high - low) // step)) if step > 0 else 0
        if trips == 0:
            return carried
        bits = body.arguments[0].bits
        inner = dict(environment)
        terminator = self._block(body, [known(low, bits), *carried], inner)
        if trips == 1:
            return [inner.get(key) for key in terminator.operands]

        def after(count: int) -> list[Bound]:
            return [
                _carried(body, position, value, terminator.operands[position], environment, count)
                for position, value in enumerate(carried)
            ]

        last = known(low + (trips - 1) * step, bits)
        self._block(body, [last, *after(trips - 1)], dict(environment))
        return after(trips)


def _carried(body: Block, position: int, value: Bound, yielded: int, outside: _Environment, count: int) -> Bound:
    """The value carried round a loop after ``count`` (at least 1) iterations, where each adds the same amount."""
    argument = body.arguments[1 + position].key
    if yielded == argument or value is None:
        return value
    source = next((op for op in body.operations if any(result.key == yielded for result in op.results)), None)
    if source is None or source.name not in ("arith.addi", "arith.subi", "tt.addptr"):
        return None
    left, right = source.operands
    if source.name == "arith.addi" and right == argument:
        left, right = right, left
    amount = outside.get(right)
    if left != argument or not isinstance(amount, Integers):
        return None
    # A pointer needs no count: a wrong step makes it wrong in every iteration that follows.
    return compute(source, [value, amount if source.name == "tt.addptr" else amount.times(count)])
