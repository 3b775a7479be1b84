"""What happens round a kernel launch in Triton's interpreter: which programs run, what they move, where they reach.

`GridExecutor.__call__` (triton/runtime/interpreter.py) prepares the arguments, calls the kernel once per program of the
grid and copies the arguments back. `observe` wraps it: the grid becomes one program, and what is called for it runs the
programs that were asked for. So nothing of upstream's preparation is repeated here, and a grid of millions costs what
the programs that run cost.

Tensors of the CPU need no copy in either direction and get none.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Grid = tuple[int, int, int]
Program = tuple[int, int, int]

_MARK = "_waveproof_observed"


class StrayAccess(RuntimeError):
    """A kernel touched an address outside the storage of every tensor that its launch was given.

    Upstream would follow such an address and perhaps crash the process. One that lies in another tensor of the same
    launch is followed, as on a device.
    """


@dataclass(frozen=True)
class Launch:
    """One finished kernel launch.

    `bytes_read` and `bytes_written` count element size times enabled lanes of every load and store that ran; an atomic
    counts in both. A lane that reads what another lane reads counts again, and masked lanes count nothing. `seconds` is
    wall time in the interpreter and says nothing about a device. `programs` is how many of the grid's programs ran.
    """

    kernel: str
    grid: Grid
    bytes_read: int
    bytes_written: int
    seconds: float
    programs: int


Selection = Callable[[str, Grid], Iterable[Program]]


@dataclass
class _Work:
    """What the launch in progress has done so far. `extents` are the [start, end) addresses of its storages."""

    kernel: str
    extents: list[tuple[int, int]]
    grid: Grid = (0, 0, 0)
    selected: Iterable[Program] = ()
    program: Program = (0, 0, 0)
    programs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    checked: bool = True


@dataclass
class _Process:
    """The interpreter is one per process, and so is this."""

    finished: list[Launch] = field(default_factory=list)
    selection: Selection | None = None
    work: _Work | None = None


_process = _Process()


@dataclass(frozen=True)
class _Access:
    """A method of the builder that touches memory: what it does, and which operands hold its addresses and mask."""

    verb: str
    reads: bool
    writes: bool
    pointers: int
    mask: int | None


# Unmasked and descriptor accesses, atomic loads and stores go through the first two.
_ACCESSES = {
    "create_masked_load": _Access("load", True, False, pointers=0, mask=1),
    "create_masked_store": _Access("store", False, True, pointers=0, mask=2),
    "create_atomic_rmw": _Access("atomic", True, True, pointers=1, mask=3),
    "create_atomic_cas": _Access("atomic", True, True, pointers=0, mask=None),
}


def launches() -> list[Launch]:
    """The launches that finished since the start of the process or `clear_launches`, oldest first."""
    return list(_process.finished)


def clear_launches() -> None:
    """Forgets the launches recorded so far."""
    _process.finished.clear()


@contextmanager
def only_programs(
    predicate: Callable[[int, int, int], bool] | None = None, *, select: Selection | None = None
) -> Iterator[None]:
    """Within, launches run only some of their programs; `tl.num_programs` still gives the whole grid.

    Either `predicate(x, y, z)`, called for every program of a grid (about 0.1 us each), or `select(kernel, grid)`,
    called once per launch with the kernel's name and the grid, which returns the program ids to run, in that order.
    What the other programs would have written stays as it was. Contexts do not combine: the innermost holds.

    Raises `TypeError` unless exactly one of the two is given; a selected program outside the grid is a `ValueError` at
    the launch.
    """
    if (predicate is None) == (select is None):
        raise TypeError("only_programs takes either a predicate or select=, and exactly one of them")
    if predicate is not None:
        keep = predicate

        def select(kernel: str, grid: Grid) -> Iterator[Program]:
            return (program for program in _programs(grid) if keep(*program))

    before, _process.selection = _process.selection, select
    try:
        yield
    finally:
        _process.selection = before


@contextmanager
def unrecorded() -> Iterator[None]:
    """Within, launches are neither recorded nor subject to `only_programs`."""
    finished, selection = _process.finished, _process.selection
    _process.finished, _process.selection = [], None
    try:
        yield
    finally:
        _process.finished, _process.selection = finished, selection


def observe(interpreter: ModuleType) -> None:
    """Patches the module `triton.runtime.interpreter` in place; a second call changes nothing.

    Raises `AttributeError` where this version of Triton has another structure, since a filter or a record that silently
    did nothing would be worse.
    """
    if getattr(interpreter, _MARK, False):
        return
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    # All looked up before the first is replaced: a version that lacks one is left as it was.
    replacements = {name: _observed_access(getattr(builder, name), access) for name, access in _ACCESSES.items()}
    replacements["create_int_to_ptr"] = _observed_pointer(builder.create_int_to_ptr)
    executor.__call__ = _observed_launch(executor.__call__, interpreter)
    for name, replacement in replacements.items():
        setattr(builder, name, replacement)
    setattr(interpreter, _MARK, True)


class _SelectedPrograms:
    """Stands in for the kernel: upstream calls it as the only program of the grid, and it runs the selected ones."""

    def __init__(self, kernel: Callable[..., Any], builder: Any, work: _Work) -> None:
        self.kernel = kernel
        self.builder = builder
        self.work = work
        # What upstream asks of a kernel: inspect.getcallargs needs the first two, _patch_lang the third.
        self.__signature__ = inspect.signature(kernel)
        self.__name__ = kernel.__name__
        self.__globals__ = kernel.__globals__

    def __call__(self, **arguments: Any) -> None:
        self.builder.set_grid_dim(*self.work.grid)
        for program in self.work.selected:
            self.work.program = program
            self.builder.set_grid_idx(*program)
            self.kernel(**arguments)
            self.work.programs += 1


def _observed_launch(original: Callable[..., Any], interpreter: ModuleType) -> Callable[..., Any]:
    def launch(executor: Any, *arguments: Any, **named: Any) -> Any:
        tensors = list(_tensors((*arguments, *named.values())))
        work = _Work(kernel=executor.fn.__name__, extents=_extents(tensors))
        grid_of = executor.grid

        def one_program(kernel_arguments: dict[str, Any]) -> Grid:
            given = grid_of(kernel_arguments) if callable(grid_of) else grid_of
            x, y, z = (*map(int, given), *(1,) * (3 - len(given)))
            work.grid = (x, y, z)
            work.selected = _selected(work.kernel, work.grid)
            return (1, 1, 1)

        executor.fn = _SelectedPrograms(executor.fn, interpreter.interpreter_builder, work)
        executor.grid = one_program
        if all(tensor.untyped_storage().device.type == "cpu" for tensor in tensors):
            executor._init_args_hst = lambda positional, keywords: (positional, keywords)
            executor._restore_args_dev = lambda *_: None
        outer, _process.work = _process.work, work
        start = time.perf_counter()
        try:
            # A device raises no floating-point warnings.
            with np.errstate(all="ignore"):
                result = original(executor, *arguments, **named)
        except Exception as error:
            stray = _cause(error, StrayAccess)
            if stray is not None:
                raise stray from None
            raise
        finally:
            _process.work = outer
        seconds = time.perf_counter() - start
        _process.finished.append(
            Launch(work.kernel, work.grid, work.bytes_read, work.bytes_written, seconds, work.programs)
        )
        return result

    return launch


def _programs(grid: Grid) -> Iterator[Program]:
    """In upstream's order, the last axis fastest; itertools.product would first hold each axis in memory."""
    return ((x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2]))


def _selected(kernel: str, grid: Grid) -> Iterable[Program]:
    if _process.selection is None:
        return _programs(grid)
    programs = list(_process.selection(kernel, grid))
    for program in programs:
        if len(program) != 3 or not all(0 <= index < size for index, size in zip(program, grid, strict=True)):
            raise ValueError(f"program {program} is not in the grid {grid} of kernel {kernel}")
    return programs


def _tensors(arguments: Iterable[Any]) -> Iterator[Any]:
    """The torch tensors among kernel arguments: plain, in tuples, under a TensorWrapper or a TensorDescriptor."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _tensors(argument)
        elif hasattr(argument, "untyped_storage"):
            yield argument
        elif hasattr(argument, "base"):
            yield from _tensors((argument.base,))


def _extents(tensors: list[Any]) -> list[tuple[int, int]]:
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sorted({(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages})


def _cause(error: BaseException | None, kind: type[StrayAccess]) -> StrayAccess | None:
    """The `kind` that upstream's InterpreterError, raised anew by each device function, was raised from."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


def _observed_access(original: Callable[..., Any], access: _Access) -> Callable[..., Any]:
    def observed(builder: Any, *operands: Any, **named: Any) -> Any:
        work = _process.work
        if work is not None:
            pointers = operands[access.pointers]
            mask = None if access.mask is None else operands[access.mask]
            size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            addresses = pointers.data
            if mask is not None and not mask.data.all():
                addresses, enabled = np.broadcast_arrays(addresses, mask.data)
                addresses = addresses[enabled]
            work.bytes_read += addresses.size * size * access.reads
            work.bytes_written += addresses.size * size * access.writes
            if work.checked and addresses.size:
                _check(work, access.verb, addresses, size)
        return original(builder, *operands, **named)

    return observed


def _observed_pointer(original: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that makes pointers from integers may go where no argument of the launch points: no longer checked."""

    def observed(builder: Any, *operands: Any) -> Any:
        if _process.work is not None:
            _process.work.checked = False
        return original(builder, *operands)

    return observed


def _check(work: _Work, verb: str, addresses: npt.NDArray[np.uint64], size: int) -> None:
    low, high = int(addresses.min()), int(addresses.max()) + size
    if any(start <= low and high <= end for start, end in work.extents):
        return
    inside = np.zeros(addresses.shape, dtype=np.bool_)
    for start, end in work.extents:
        inside |= (addresses >= np.uint64(start)) & (addresses + np.uint64(size) <= np.uint64(end))
    if inside.all():
        return
    stray = int(addresses[~inside][0])
    raise StrayAccess(
        f"kernel {work.kernel}, program {work.program}: {verb} of {size} B {_place(stray, work.extents)}; "
        f"{int((~inside).sum())} of {addresses.size} enabled lanes lie outside the launch's tensors"
    )


def _place(address: int, extents: list[tuple[int, int]]) -> str:
    if not extents:
        return f"at address {address:#x}, and the launch has no tensor"
    start, end = min(extents, key=lambda extent: max(extent[0] - address, address - extent[1]))
    where = f"{start - address} B before the start" if address < start else f"{address - end} B past the end"
    return f"{where} of the nearest storage ({end - start} B)"
