"""Integer operations of Triton IR on whole blocks: what the machine gets, and what exact arithmetic would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes.triton_module import Operation

_LIMIT = 1 << 61
"""Exact values are clipped here, so that the sum of two still fits a 64-bit integer."""

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Integers:
    """A block of integers of ``bits`` bits, or a scalar (shape ``()``). i1 is held as 0 and 1, all else signed."""

    machine: Array
    exact: Array
    origin: Array
    """Index of the operation at which the two parted, 0 where they agree."""
    bits: int

    def times(self, count: int) -> Integers:
        """Multiplied by a positive integer as if in unlimited width (the parting is found by who uses it)."""
        return Integers(self.machine * count, _product(self.exact, np.int64(count)), self.origin, 64)

    def mapped(self, move: Callable[[Array], Array]) -> Integers:
        """The same integers, moved to another shape."""
        return Integers(move(self.machine), move(self.exact), move(self.origin), self.bits)


@dataclass(frozen=True)
class Pointers:
    """Addresses into what one argument points to. Of the offsets only one that went wrong is kept, per lane."""

    argument: str
    offset: Integers

    def stray_lanes(self, active: Integers) -> Array:
        """Flat indices of the active lanes whose address is wrong."""
        shape = np.broadcast_shapes(self.offset.origin.shape, active.machine.shape)
        wrong = (np.broadcast_to(self.offset.origin, shape) != 0) & (np.broadcast_to(active.machine, shape) != 0)
        return np.flatnonzero(wrong).astype(np.int64)


Bound = Integers | Pointers | None
"""What a value is bound to; None where it is unknown or neither an integer nor a pointer."""


def known(value: int, bits: int) -> Integers:
    """A scalar."""
    machine = _wrap(np.asarray(value, dtype=np.int64), bits)
    return Integers(machine, np.clip(machine, -_LIMIT, _LIMIT), np.zeros((), np.int64), bits)


def pointers_to(argument: str) -> Pointers:
    """The address that an argument holds."""
    return Pointers(argument, known(0, 64))


def compute(operation: Operation, operands: Sequence[Bound]) -> Bound:
    """The only result of an operation, or None where it is unknown."""
    result = operation.results[0]
    if operation.name == "arith.constant":
        return None if operation.constant is None or not result.bits else _constant(operation.constant, operation)
    if operation.name == "tt.make_range":
        lanes = np.arange(operation.attributes["start"], operation.attributes["end"], dtype=np.int64)
        return Integers(lanes, lanes, np.zeros_like(lanes), result.bits)
    if result.pointer and operation.name in ("tt.int_to_ptr", "tt.load"):
        return Pointers("", known(0, 64).mapped(lambda array: np.broadcast_to(array, result.shape)))
    if operation.name == "tt.addptr":
        return _advanced(operands[0], operands[1])
    if operation.name in _MOVES:
        return _moved(operation, operands[0])
    if operation.name == "arith.select":
        return _selected(operands)
    integers = [operand for operand in operands if isinstance(operand, Integers)]
    if not result.bits or not integers or len(integers) < len(operands):
        return None
    with np.errstate(over="ignore"):
        if operation.name == "arith.cmpi":
            return _true(_compared(operation.attributes["predicate"], integers[0], integers[1]), 1)
        if operation.name in _CASTS:
            return _cast(operation, integers[0])
        if operation.name in _SIGNED:
            return _signed(operation, integers[0], integers[1])
        if operation.name in _MACHINE:
            return _by_machine(operation, integers[0], integers[1])
    return None


def _constant(value: int, operation: Operation) -> Integers:
    shape = operation.results[0].shape
    return known(value, operation.results[0].bits).mapped(lambda array: np.broadcast_to(array, shape))


def _true(machine: Array | npt.NDArray[np.bool_], bits: int) -> Integers:
    """Values that are right by definition."""
    values = _wrap(machine.astype(np.int64), bits)
    return Integers(values, np.clip(values, -_LIMIT, _LIMIT), np.zeros_like(values), bits)


def _wrap(values: Array, bits: int) -> Array:
    if bits >= 64:
        return values
    if bits == 1:
        return values & 1
    half = np.int64(1 << (bits - 1))
    return ((values + half) & np.int64((1 << bits) - 1)) - half


def _unsigned(values: Array, bits: int) -> npt.NDArray[np.uint64]:
    return (values & np.int64((1 << bits) - 1) if bits < 64 else values).astype(np.uint64)


def _product(left: Array, right: Array | np.int64) -> Array:
    large = np.abs(left.astype(np.float64) * np.asarray(right, np.float64)) > _LIMIT
    sign = np.sign(left) * np.sign(right)
    with np.errstate(over="ignore"):
        return np.where(large, sign * np.int64(_LIMIT), left * right)


def _quotient(left: Array, right: Array) -> Array:
    # arith.divsi rounds towards zero, numpy down.
    magnitude = np.abs(left) // np.abs(right)
    return np.where((left < 0) != (right < 0), -magnitude, magnitude)


_SIGNED: dict[str, Callable[[Array, Array], Array]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": _product,
    "arith.shli": lambda a, b: _product(a, np.int64(1) << b),
    "arith.shrsi": lambda a, b: a >> b,
    "arith.divsi": _quotient,
    "arith.remsi": lambda a, b: a - _quotient(a, b) * b,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
}
"""Operations that have a meaning in the integers."""

_RAW: dict[str, Callable[[Array, Array], Array]] = {"arith.muli": np.multiply, "arith.shli": np.left_shift}
"""How the machine does those whose exact value is clipped: 32 bits times 32 bits fit, 64 bits wrap as they should."""

_MACHINE: dict[str, Callable[[npt.NDArray[np.uint64], npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]] = {
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.shrui": lambda a, b: a >> b,
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.minui": np.minimum,
    "arith.maxui": np.maximum,
}
"""Operations on the bits."""

_CASTS = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
_MOVES = ("tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast")
_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")
_SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")


def _undefined(operation: Operation, left: Integers, right: Integers) -> bool:
    """Division by zero, or a shift by the width or more."""
    if operation.name in _DIVISIONS:
        return not right.machine.all() or not right.exact.all()
    if operation.name in _SHIFTS:
        return bool(((right.machine < 0) | (right.machine >= min(left.bits, 62))).any())
    return False


def _signed(operation: Operation, left: Integers, right: Integers) -> Bound:
    if _undefined(operation, left, right):
        return None
    bits, apply = operation.results[0].bits, _SIGNED[operation.name]
    if bits == 1:
        return _true(apply(left.machine, right.machine), 1)
    count = right.machine if operation.name in _SHIFTS else right.exact
    machine = _wrap(_RAW.get(operation.name, apply)(left.machine, right.machine), bits)
    return _parted(operation, machine, apply(left.exact, count), left, right)


def _parted(operation: Operation, machine: Array, exact: Array, *operands: Integers) -> Integers:
    """Settle where each lane parted: with an operand, here, or not at all."""
    exact = np.clip(exact, -_LIMIT, _LIMIT)
    bits = operation.results[0].bits
    origin = np.zeros(machine.shape, np.int64)
    for operand in operands:
        origin = np.where(origin != 0, origin, operand.origin)
    # Only widths up to 32 bits are on trial: 2**63 elements do not exist.
    here = operation.index if bits <= 32 else 0
    origin = np.where(machine == exact, 0, np.where(origin != 0, origin, here))
    return Integers(machine, exact, origin, bits)


def _by_machine(operation: Operation, left: Integers, right: Integers) -> Bound:
    if _undefined(operation, left, right):
        return None
    bits = operation.results[0].bits
    values = _MACHINE[operation.name](_unsigned(left.machine, bits), _unsigned(right.machine, bits))
    return _true(values.astype(np.int64), bits)


def _cast(operation: Operation, operand: Integers) -> Integers:
    bits = operation.results[0].bits
    machine, exact = operand.machine, operand.exact
    if operation.name == "arith.extui":
        machine = _unsigned(machine, operand.bits).astype(np.int64)
        exact = np.where(exact < 0, machine, exact)
    elif operand.bits == 1:
        machine = exact = -machine
    if bits == 1:
        return _true(machine, 1)
    return _parted(operation, _wrap(machine, bits), exact, operand)


def _compared(predicate: int, left: Integers, right: Integers) -> npt.NDArray[np.bool_]:
    """By the numbers of MLIR's ``arith::CmpIPredicate``: eq ne slt sle sgt sge ult ule ugt uge."""
    a, b = left.machine, right.machine
    if predicate >= 6:
        a, b = _unsigned(a, left.bits), _unsigned(b, right.bits)  # type: ignore[assignment]
    compare = (np.equal, np.not_equal, *(np.less, np.less_equal, np.greater, np.greater_equal) * 2)[predicate]
    return np.asarray(compare(a, b))


def _selected(operands: Sequence[Bound]) -> Bound:
    condition, then, otherwise = operands
    if not isinstance(condition, Integers):
        return None
    take = condition.machine != 0
    if take.all() or not take.any():
        return then if take.all() else otherwise
    if not isinstance(then, Integers) or not isinstance(otherwise, Integers):
        return None
    return Integers(
        np.where(take, then.machine, otherwise.machine),
        np.where(take, then.exact, otherwise.exact),
        np.where(take, then.origin, otherwise.origin),
        then.bits,
    )


def _moved(operation: Operation, operand: Bound) -> Bound:
    """Change the shape; the lanes keep their values."""
    shape = operation.results[0].shape
    if isinstance(operand, Pointers):
        moved = _moved(operation, operand.offset)
        return Pointers(operand.argument, moved) if isinstance(moved, Integers) else None
    if operand is None or (operation.name == "tt.bitcast" and operation.results[0].bits not in (0, operand.bits)):
        return None
    if operation.name == "tt.trans":
        # The bindings do not show the permutation; of two axes only one is not the identity.
        return operand.mapped(np.transpose) if len(shape) == 2 else None
    if operation.name in ("tt.splat", "tt.broadcast"):
        return operand.mapped(lambda array: np.broadcast_to(array, shape))
    if operation.name == "tt.bitcast":
        return operand
    return operand.mapped(lambda array: np.reshape(array, shape))


def _advanced(pointers: Bound, offset: Bound) -> Bound:
    """``tt.addptr``: the address itself has 64 bits, so only the offset can have gone wrong."""
    if not isinstance(pointers, Pointers) or not isinstance(offset, Integers):
        return pointers
    already = pointers.offset.origin != 0
    return Pointers(
        pointers.argument,
        Integers(
            np.where(already, pointers.offset.machine, offset.machine),
            np.where(already, pointers.offset.exact, offset.exact),
            np.where(already, pointers.offset.origin, offset.origin),
            64,
        ),
    )
